"""GPT-2's sizes and variants, the places of its layers, and its tensors: sixteen as it was released.

    tokens -> encoder -> L times [ layernorm, attention, + , layernorm, MLP, + ] -> layernorm -> head -> loss

Radford et al. 2019; the order of layers, tensors and names is llm.c's.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gpt2.errors import UserError, suggestion
from gpt2.layers import ALL_LAYERS, LAYERS
from gpt2.layers.layer import Layer, Parameter
from gpt2.model.presets import ACTIVATIONS, PRESETS

SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dtype")  # the others are variants


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a model, and how it differs from GPT-2 as it was released. Raises UserError if a field is
    invalid.

    The fields after dtype have transformers' names, but for bias, which is nanoGPT's.

    >>> config = gpt2.GPT2Config.preset("gpt2")
    >>> config.n_layer, config.n_embd, f"{config.num_parameters:,}"
    (12, 768, '124,439,808')
    >>> gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8).num_parameters
    1536
    >>> gpt2.GPT2Config.preset("gpt2", activation_function="relu", bias=False).settings
    {'activation_function': 'relu', 'bias': False}
    """

    vocab_size: int = 50257  # V: distinct tokens
    block_size: int = 1024  # maxT: the longest sequence, in tokens
    n_layer: int = 12  # L: blocks
    n_head: int = 12  # NH: attention heads, a divisor of n_embd
    n_embd: int = 768  # C: channels
    dtype: str = "float32"  # of parameters, activations and gradients: float32 or float64
    n_inner: int | None = None  # channels inside the MLP; None: 4 C
    activation_function: str = "gelu_new"  # of the MLP, one of gpt2.model.ACTIVATIONS
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True  # divide attention's scores by sqrt(HS)
    scale_attn_by_inverse_layer_idx: bool = False  # and by the number of the block, from 1
    tie_word_embeddings: bool = True  # the head is wte; if not, a tensor of its own, lmheadw
    bias: bool = True  # whether there are biases; without them, matmul and layernorm have weights alone

    def __post_init__(self):
        for size in SIZES[:5]:
            value = getattr(self, size)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise UserError(f"GPT2Config: {size} is {value!r}, expected a whole number from 1")
            object.__setattr__(self, size, int(value))
        if self.n_embd % self.n_head:
            raise UserError(
                f"GPT2Config: n_embd {self.n_embd} is not divisible by n_head {self.n_head}; "
                "heads share the channels equally"
            )
        try:
            name = np.dtype(self.dtype).name
        except TypeError:
            name = ""
        if name not in ("float32", "float64"):
            raise UserError(f"GPT2Config: dtype is {self.dtype!r}, expected float32 or float64")
        object.__setattr__(self, "dtype", name)
        self._check_variant()

    def _check_variant(self):
        F, activation, eps = self.n_inner, self.activation_function, self.layer_norm_epsilon
        if F is not None and (isinstance(F, bool) or not isinstance(F, int | np.integer) or F < 1):
            raise UserError(f"GPT2Config: n_inner is {F!r}, expected a whole number from 1, or None")
        object.__setattr__(self, "n_inner", None if F in (None, 4 * self.n_embd) else int(F))
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise UserError(
                f"GPT2Config: activation_function is {activation!r}, expected one of "
                + ", ".join(ACTIVATIONS)
                + suggestion(str(activation), ACTIVATIONS)
            )
        number = isinstance(eps, int | float | np.number) and not isinstance(eps, bool)
        if not number or not 0.0 <= eps < math.inf:
            raise UserError(f"GPT2Config: layer_norm_epsilon is {eps!r}, expected a number from 0")
        object.__setattr__(self, "layer_norm_epsilon", float(eps))
        for name in (f.name for f in fields(self) if f.type is bool):
            if not isinstance(value := getattr(self, name), bool | np.bool):
                raise UserError(f"GPT2Config: {name} is {value!r}, expected True or False")
            object.__setattr__(self, name, bool(value))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "GPT2Config":
        """A named shape, e.g. preset("gpt2"), with fields changed as given, e.g. block_size=64."""
        if name not in PRESETS:
            raise UserError(f"GPT2Config: no preset {name!r}, expected one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that differ from GPT-2 as it was released, sizes and dtype aside."""
        variant = [f for f in fields(self)[len(SIZES) :] if getattr(self, f.name) != f.default]
        return {f.name: getattr(self, f.name) for f in variant}

    @property
    def differences(self) -> str:
        """As text, what other programs would compute differently if they knew only the released GPT-2."""
        same = ACTIVATIONS[self.activation_function] == "gelu"
        parts = [f"{n} {v}" for n, v in self.settings.items() if not (same and n == "activation_function")]
        return ", ".join(parts)

    @property
    def inner(self) -> int:
        """F: channels inside the MLP."""
        return self.n_inner or 4 * self.n_embd

    @property
    def num_parameters(self) -> int:
        """Entries of all tensors. A head that is wte again counts once."""
        return sum(math.prod(shape) for _, shape in parameter_table(self))


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
# The settings that a layer computes; one of the user's own in its place computes something else
COMPUTED_BY = {
    "gelu": ("activation_function",),
    "layernorm": ("layer_norm_epsilon",),
    "attention": ("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
}


def layers_of(config: "GPT2Config") -> dict[str, Layer]:
    """The layers of a config: LAYERS, some of them replaced. An activation has its own name."""
    layers = {"attention": "scaled_attention"} if config.settings.keys() & COMPUTED_BY["attention"] else {}
    layers |= {} if config.bias else {"layernorm": "layernorm_no_bias"}
    activation = ACTIVATIONS[config.activation_function]
    names = [activation if name == "gelu" else name for name in LAYERS]
    return {name: ALL_LAYERS[layers.get(name, name)] for name in names}


def static_of(layer: str, config: "GPT2Config") -> dict[str, Any]:
    """The keyword arguments of a config's layer besides STATIC, where they are not its defaults."""
    if layer == "layernorm" and "layer_norm_epsilon" in config.settings:
        return {"eps": config.layer_norm_epsilon}
    return {"scaled": False} if layer == "attention" and not config.scale_attn_weights else {}


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


@dataclass(frozen=True)
class LayerCall:
    """The call of a layer at its place: its name, its tensors, its keyword arguments, and the number of
    arguments before the tensors.
    """

    layer: str
    tensors: tuple[str | None, ...]
    static: dict[str, Any]
    data: int = 1


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
    """GPT-2's tensors in llm.c's order, those of the blocks without the leading L.

    They are sixteen, fewer without biases; lmheadw, after them, is a head that is not wte.
    """
    V, maxT, C, F = config.vocab_size, config.block_size, config.n_embd, config.inner
    table = (
        Parameter("wte", (V, C)),  # token embedding, and the head's weight if tied
        Parameter("wpe", (maxT, C)),  # position embedding
        Parameter("ln1w", (C,), start=1.0),  # layernorm before attention
        Parameter("ln1b", (C,)),
        Parameter("qkvw", (3 * C, C)),  # queries, keys, values
        Parameter("qkvb", (3 * C,)),
        Parameter("attprojw", (C, C), start="residual"),  # attention's projection into the residual stream
        Parameter("attprojb", (C,)),
        Parameter("ln2w", (C,), start=1.0),  # layernorm before the MLP
        Parameter("ln2b", (C,)),
        Parameter("fcw", (F, C)),  # MLP: up, gelu,
        Parameter("fcb", (F,)),
        Parameter("fcprojw", (C, F), start="residual"),  # and down again
        Parameter("fcprojb", (C,)),
        Parameter("lnfw", (C,), start=1.0),  # layernorm before the head
        Parameter("lnfb", (C,)),
        Parameter("lmheadw", (V, C)),  # the head's weight if not tied
    )
    left_out = {"lmheadw"} if config.tie_word_embeddings else set()
    if not config.bias:
        left_out |= {place.tensors.get("bias") for place in PLACES.values()}
    return {p.name: p for p in table if p.name not in left_out}


def tensor_at(place: str, role: str, config: GPT2Config) -> str | None:
    """The tensor of a layer's argument at a place; None for a bias where there is none."""
    if role == "bias" and not config.bias:
        return None
    if (place, role) == ("head", "weight") and not config.tie_word_embeddings:
        return "lmheadw"
    return PLACES[place].tensors.get(role, f"{place}_{role}")


IN_NO_BLOCK = ("wte", "wpe", "lnfw", "lnfb", "lmheadw")


def parameter_table(config: GPT2Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of GPT-2's tensors, in llm.c's order. A leading L: one slice per block."""
    front = {name: () if name in IN_NO_BLOCK else (config.n_layer,) for name in gpt2_tensors(config)}
    return tuple((name, (*front[name], *p.shape)) for name, p in gpt2_tensors(config).items())
