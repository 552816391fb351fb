"""A layer of GPT-2, or of a user's file of layers, with inputs to run it on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.layers import ALL_LAYERS, Layer
from gpt2.layers.cases import Sizes, at
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description

BLOCK = "block"
SIZES = Sizes(B=2, T=5, C=12, NH=3, V=17, OC=7, max_t=8)  # all different: no swapped axis passes


@dataclass(frozen=True)
class Subject:
    """A layer to check or explain: GPT-2's, or one of a user's file. inputs(seed) draws its inputs."""

    layer: Layer
    static: dict[str, Any]
    inputs: Callable[..., Sequence]


def subject(name: str, sizes: Sizes, dtype: str, file: str | None = None) -> Subject:
    """The layer of this name: GPT-2's, or the file's, whose block is "block".

    Raises UserError if the file has no layer of this name.
    """
    if file is None:
        case = at(sizes)[name]
        return Subject(ALL_LAYERS[name], case.static, lambda seed=0: case.inputs(dtype, seed))
    d = described(sizes, file, dtype)
    if name not in own(d):
        raise UserError(f"--layers {file}: defines no {name}; it defines {', '.join(own(d))}")
    place = name if name == BLOCK else d.places_of(name)[0]
    static = {} if name == BLOCK else d.calls[place].static

    def inputs(seed=0):
        return d.inputs_at(place, sizes.B, sizes.T, np.random.default_rng(seed))

    return Subject(d.written[name], static, inputs)


def described(sizes: Sizes, file: str, dtype: str = "float32") -> Description:
    """The description of a small model with the layers of a file."""
    s = sizes
    return Description(GPT2Config(s.V, s.max_t, 1, s.NH, s.C, dtype), layers=file)


def own(d: Description) -> list[str]:
    """The names of a model's layers that are the user's, and "block"."""
    used = [name for name in d.own if d.places_of(name)]
    return used if d.block is None else [*used, BLOCK]


def names_of(file: str | None) -> list[str]:
    """The names that `subject` takes."""
    return list(ALL_LAYERS) if file is None else own(described(SIZES, file))
