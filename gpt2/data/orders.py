"""The orders of batches, for --order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpt2.data import conversations, llmc
from gpt2.data.conversations import Examples
from gpt2.data.tokens import Epochs, Loader, evenly
from gpt2.errors import option_error


@dataclass(frozen=True)
class Order:
    """How a run draws its batches.

    of_text             (tokens, B, T, seed) -> an object with next_batch(), state() and load_state()
    validation_of_text  (tokens, B, T, batches) -> the batches of a validation, inputs and targets; 0: all

    Examples (conversations.py) have a loader of their own, in the order `epochs`.
    """

    of_text: Callable[..., Any]
    validation_of_text: Callable[..., Any]

    def loader(self, tokens: Any, B: int, T: int, seed: int) -> Any:
        if not isinstance(tokens, Examples):
            return self.of_text(tokens, B, T, seed)
        if self is not ORDERS["epochs"]:
            raise option_error("order", "is for a running text; conversations are taken in --order epochs")
        return conversations.ExampleEpochs(tokens, B, T, seed)

    def validation(self, tokens: Any, B: int, T: int, batches: int) -> Iterator[Any]:
        of = conversations.evenly if isinstance(tokens, Examples) else self.validation_of_text
        return of(tokens, B, T, batches)


ORDERS = {
    "epochs": Order(Epochs, evenly),
    "random": Order(Loader, evenly),
    "llm.c": Order(llmc.LlmcLoader, llmc.validation),
}
