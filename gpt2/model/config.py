"""GPT-2's sizes, the places of its layers, and its sixteen tensors.

    tokens -> encoder -> L times [ layernorm, attention, + , layernorm, MLP, + ] -> layernorm -> head -> loss

Radford et al. 2019; the order of layers, tensors and names is llm.c's.

    GPT2Config       sizes; gpt2.model.PRESETS has them by name
    PLACES           place -> its layer, and the tensors that the layer gets
    parameter_table  name and shape of every tensor
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gpt2.errors import UserError
from gpt2.layers.layer import Parameter
from gpt2.model import PRESETS

# ---- Settings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a model. Raises UserError if a field is invalid.

    >>> config = gpt2.GPT2Config.preset("gpt2")
    >>> config.n_layer, config.n_embd, f"{config.num_parameters:,}"
    (12, 768, '124,439,808')
    >>> gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8).num_parameters
    1536
    """

    vocab_size: int = 50257  # V: distinct tokens
    block_size: int = 1024  # maxT: the longest sequence, in tokens
    n_layer: int = 12  # L: blocks
    n_head: int = 12  # NH: attention heads, a divisor of n_embd
    n_embd: int = 768  # C: channels
    dtype: str = "float32"  # of parameters, activations and gradients: float32 or float64

    def __post_init__(self):
        for size in fields(self)[:5]:
            value = getattr(self, size.name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise UserError(f"GPT2Config: {size.name} is {value!r}, expected a whole number from 1")
            object.__setattr__(self, size.name, int(value))
        if self.n_embd % self.n_head:
            raise UserError(
                f"GPT2Config: n_embd {self.n_embd} is not divisible by n_head {self.n_head}; "
                "heads share the channels equally"
            )
        name = _dtype_name(self.dtype)
        if name not in ("float32", "float64"):
            raise UserError(f"GPT2Config: dtype is {self.dtype!r}, expected float32 or float64")
        object.__setattr__(self, "dtype", name)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "GPT2Config":
        """A named shape, e.g. preset("gpt2"), with fields changed as given, e.g. block_size=64."""
        if name not in PRESETS:
            raise UserError(f"GPT2Config: no preset {name!r}, expected one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @property
    def num_parameters(self) -> int:
        """Entries of all sixteen tensors. The head is wte again, so it counts once."""
        return sum(math.prod(shape) for _, shape in parameter_table(self))


def _dtype_name(dtype):
    try:
        return np.dtype(dtype).name
    except TypeError:
        return None


# ---- GPT-2's places --------------------------------------------------------------------------------------

# For each layer its arguments that are not parameters, and the keyword arguments that a model passes
DATA = {
    "encoder": ("tokens",),
    "layernorm": ("inp",),
    "matmul": ("inp",),
    "attention": ("qkv",),
    "gelu": ("inp",),
    "residual": ("a", "b"),
    "crossentropy": ("logits", "targets"),
}
STATIC = {"attention": ("num_heads",)}


@dataclass(frozen=True)
class Place:
    """A place of a layer in the model.

    layer    of LAYERS
    tensors  the layer's argument -> its tensor, or None
    block    whether it is in each of the blocks
    """

    layer: str
    tensors: dict[str, str | None] = field(default_factory=dict)
    block: bool = True


def _affine(name):
    return {"weight": f"{name}w", "bias": f"{name}b"}


PLACES = {
    "encoder": Place("encoder", {"wte": "wte", "wpe": "wpe"}, block=False),
    "ln1": Place("layernorm", _affine("ln1")),
    "qkv": Place("matmul", _affine("qkv")),
    "att": Place("attention"),
    "attproj": Place("matmul", _affine("attproj")),
    "residual1": Place("residual"),
    "ln2": Place("layernorm", _affine("ln2")),
    "fc": Place("matmul", _affine("fc")),
    "gelu": Place("gelu"),
    "fcproj": Place("matmul", _affine("fcproj")),
    "residual2": Place("residual"),
    "lnf": Place("layernorm", _affine("lnf"), block=False),
    "head": Place("matmul", {"weight": "wte", "bias": None}, block=False),
    "loss": Place("crossentropy", block=False),
}
BLOCK_PLACES = tuple(name for name, place in PLACES.items() if place.block)


def gpt2_tensors(config: GPT2Config) -> dict[str, Parameter]:
    """GPT-2's sixteen tensors in llm.c's order, those of the blocks without the leading L."""
    V, maxT, C = config.vocab_size, config.block_size, config.n_embd
    table = (
        Parameter("wte", (V, C)),  # token embedding, and the head's weight
        Parameter("wpe", (maxT, C)),  # position embedding
        Parameter("ln1w", (C,), start=1.0),  # layernorm before attention
        Parameter("ln1b", (C,)),
        Parameter("qkvw", (3 * C, C)),  # queries, keys, values
        Parameter("qkvb", (3 * C,)),
        Parameter("attprojw", (C, C), start="residual"),  # attention's projection into the residual stream
        Parameter("attprojb", (C,)),
        Parameter("ln2w", (C,), start=1.0),  # layernorm before the MLP
        Parameter("ln2b", (C,)),
        Parameter("fcw", (4 * C, C)),  # MLP: up, gelu,
        Parameter("fcb", (4 * C,)),
        Parameter("fcprojw", (C, 4 * C), start="residual"),  # and down again
        Parameter("fcprojb", (C,)),
        Parameter("lnfw", (C,), start=1.0),  # layernorm before the head
        Parameter("lnfb", (C,)),
    )
    return {p.name: p for p in table}


IN_NO_BLOCK = ("wte", "wpe", "lnfw", "lnfb")


def parameter_table(config: GPT2Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of GPT-2's sixteen tensors, in llm.c's order. A leading L: one slice per block."""
    front = {name: () if name in IN_NO_BLOCK else (config.n_layer,) for name in gpt2_tensors(config)}
    return tuple((name, (*front[name], *p.shape)) for name, p in gpt2_tensors(config).items())
