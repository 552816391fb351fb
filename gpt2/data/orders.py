"""The orders of batches, for --order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpt2.data import llmc
from gpt2.data.tokens import Epochs, Loader, evenly


@dataclass(frozen=True)
class Order:
    """How a run draws its batches.

    loader      (tokens, B, T, seed) -> an object with next_batch(), state() and load_state()
    validation  (tokens, B, T, batches) -> the batches of a validation, each inputs and targets; 0: all
    """

    loader: Callable[..., Any]
    validation: Callable[..., Any]


ORDERS = {
    "epochs": Order(Epochs, evenly),
    "random": Order(Loader, evenly),
    "llm.c": Order(llmc.LlmcLoader, llmc.validation),
}
