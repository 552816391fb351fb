"""Inputs of every layer at any sizes: shapes, and values drawn from a seed.

    case = at(Sizes(B=2, T=5, C=12, OC=7, NH=3, V=11, max_t=8))["attention"]
    out, saved = LAYERS["attention"].forward(*case.inputs(), **case.static)

Checks, `gpt2 explain`, benchmarks and tests take their inputs from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Sizes:
    """B sequences of T tokens, C channels, OC output channels, NH heads, V words, max_t positions at most."""

    B: int
    T: int
    C: int
    OC: int
    NH: int
    V: int
    max_t: int


@dataclass(frozen=True)
class Ids:
    """Integers from `first` to below - 1; if there are some `ignored`, every third one is one of those."""

    shape: tuple[int, ...]
    below: int
    first: int = 0
    ignored: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """name: of the case. layer: of LAYERS. shapes: one per input; Ids for integers, None for no input."""

    name: str
    layer: str
    shapes: tuple
    static: dict[str, Any] = field(default_factory=dict)

    def inputs(self, dtype: DTypeLike = np.float64, seed: int | np.random.Generator = 0) -> tuple:
        """Seeded inputs: normal floats, and ids with repeats."""
        rng = np.random.default_rng(seed)
        return tuple(_drawn(rng, shape, dtype) for shape in self.shapes)


def _drawn(rng: np.random.Generator, shape: tuple | Ids | None, dtype: DTypeLike) -> np.ndarray | None:
    if shape is None:
        return None
    if isinstance(shape, Ids):
        ids = rng.integers(shape.first, shape.below, shape.shape)
        if shape.ignored:
            ids.flat[::3] = np.resize(shape.ignored, ids.flat[::3].shape)
        return ids
    return rng.standard_normal(shape).astype(dtype)


# Layer -> its shapes
_SHAPES: dict[str, Callable[[Sizes], tuple]] = {
    "encoder": lambda s: (Ids((s.B, s.T), s.V), (s.V, s.C), (s.max_t, s.C)),
    "layernorm": lambda s: ((s.B, s.T, s.C), (s.C,), (s.C,)),
    "matmul": lambda s: ((s.B, s.T, s.C), (s.OC, s.C), (s.OC,)),
    "attention": lambda s: ((s.B, s.T, 3 * s.C),),
    **dict.fromkeys(("gelu", "gelu_erf", "quick_gelu", "relu", "silu"), lambda s: ((s.B, s.T, s.C),)),
    "layernorm_no_bias": lambda s: ((s.B, s.T, s.C), (s.C,)),
    "scaled_attention": lambda s: ((s.B, s.T, 3 * s.C), Ids((1,), 3, first=2)),
    "residual": lambda s: ((s.B, s.T, s.C), (s.B, s.T, s.C)),
    "crossentropy": lambda s: ((s.B, s.T, s.V), Ids((s.B, s.T), s.V)),
}


def at(sizes: Sizes) -> dict[str, Case]:
    """Layer -> its case at these sizes."""
    cases = {layer: Case(layer, layer, shapes(sizes)) for layer, shapes in _SHAPES.items()}
    for layer in ("attention", "scaled_attention"):
        cases[layer].static["num_heads"] = sizes.NH
    return cases
