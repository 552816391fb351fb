"""What a model is, in one place: its shape, its layers and block, its table of parameters, its forward.

    tokens -> encoder -> L times [ layernorm, attention, + , layernorm, MLP, + ] -> layernorm -> head -> loss

Radford et al. 2019; the order of layers, tensors and names is llm.c's.

    GPT2Config              sizes
    Description             of a model: Description(config) is GPT-2's; with own layers or an own block it is
                            another model's. Training, generation, files and counts all read it
    Parameter, Block        what an own layer or block says of itself
    forward_pass, ...       the forward, pure functions of the parameters

An own layer stands at the place of one of GPT-2's. Its arguments are what that one is given, then tensors
by name: those of the layer that it replaces, which it may leave out (a normalisation without `bias` makes a
model without these biases), and those that it declares. Whatever does not fit is refused here, before
anything is computed or written.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.errors import UserError, reason
from gpt2.layers import LAYERS, Layer
from gpt2.layers.layer import Parameter
from gpt2.own import OwnFile

Tensors = dict[str, np.ndarray]  # llm.c's names -> parameters, or their gradients
Layers = Mapping[str, Layer]

# ---- Settings --------------------------------------------------------------------------------------------

PRESETS = {
    # the four that OpenAI released
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),  # 124 million parameters
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),  # 355 million
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),  # 774 million
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),  # 1558 million
    # small ones, for two cores and a few minutes; the second is nanoGPT's recipe for a CPU
    "small-cpu": dict(n_layer=6, n_head=6, n_embd=384, block_size=256),
    "shakespeare-char-cpu": dict(vocab_size=65, n_layer=4, n_head=4, n_embd=128, block_size=64),
    "tiny": dict(vocab_size=256, n_layer=2, n_head=2, n_embd=64, block_size=64),
}


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a model. Raises UserError where a field makes no sense.

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

# For each layer the arguments that are no parameters, and the keyword arguments that a model gives it
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
    """Where a layer stands in the model.

    layer    of LAYERS
    tensors  the layer's argument -> the tensor that it is given there; None for none
    block    whether it stands in each of the blocks
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
BLOCK_STEPS = tuple(step for step, place in PLACES.items() if place.block)
# Layers that stand in blocks alone: a block of one's own takes their places
IN_BLOCKS = ("attention", "gelu", "residual")


def _standard(config: GPT2Config) -> dict[str, Parameter]:
    """GPT-2's sixteen tensors in llm.c's order; those of a block without the L in front."""
    V, maxT, C = config.vocab_size, config.block_size, config.n_embd
    table = (
        Parameter("wte", (V, C)),  # token embedding, and the head's weight
        Parameter("wpe", (maxT, C)),  # position embedding
        Parameter("ln1w", (C,), start=1.0),  # layernorm before attention
        Parameter("ln1b", (C,)),
        Parameter("qkvw", (3 * C, C)),  # queries, keys, values
        Parameter("qkvb", (3 * C,)),
        Parameter("attprojw", (C, C), start="residual"),  # attention's way back to the residual stream
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
    return Description(config).shapes


# ---- The description -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block of one's own, in place of GPT-2's.

    forward(x, p, layers, config) -> (B, T, C), shaped like x

        x        (B, T, C), the residual stream
        p        the block's tensors by name: those declared below, and GPT-2's own, of which those that are
                 read make up the model's table
        layers   the model's layers by name, plain functions that give their output alone
        config   GPT2Config

    parameters   parameters(config) gives a list of Parameter, shaped as in one block; None: GPT-2's alone
    by_position  everything but the layers that it calls computes each position from itself alone, so that
                 generation can go on where it stopped
    """

    forward: Callable[..., np.ndarray]
    parameters: Callable[[GPT2Config], Sequence[Parameter]] | None = None
    by_position: bool = False

    @property
    def name(self) -> str:
        return _name(self.forward)


@dataclass(frozen=True)
class Step:
    """A layer at its place: whose it is, the tensors that it is given, and its keyword arguments."""

    layer: str
    tensors: tuple[str | None, ...]
    static: dict[str, Any]


class Description:
    """What a model is.

    config   GPT2Config
    layers   own layers by the names of those that they replace: a Layer, or a forward function, which gives
             its output, or its output and what it saved; or a file that has them
    block    a Block of one's own, or a function as its forward

    own      the own layers among `layers`, as they were given; block is the own one, or None
    layers   all by name, forwards as they are written
    steps    place -> Step
    table    all tensors, Parameters in their order; shapes the same with an L in front of those of the blocks

    Raises UserError in one line, which names the layer, where something does not fit.
    """

    def __init__(
        self,
        config: GPT2Config,
        layers: Mapping[str, Layer | Callable] | OwnFile | str | Path | None = None,
        block: Block | Callable | None = None,
    ):
        self.config = config
        self.file: OwnFile | None = None
        if isinstance(layers, str | Path):
            layers = OwnFile.at(layers)
        if isinstance(layers, OwnFile):
            self.file = layers
            layers, of_file = layers.contents()
            if block is not None and of_file is not None:
                raise UserError(f"{self.file.path}: has a BLOCK, and another one is given; give one of them")
            block = of_file if block is None else block
        self.own: dict[str, Layer] = {}
        self.layers: dict[str, Layer] = dict(LAYERS)
        arguments = {name: _arguments(name, layer, {}) for name, layer in LAYERS.items()}
        named: Any = layers or {}
        for slot, given in named.items():
            if slot not in LAYERS:
                raise UserError(
                    f"layers: there is no layer {slot!r} to replace, expected {', '.join(LAYERS)}"
                )
            layer = given if isinstance(given, Layer) else _layer_of(slot, given)
            if layer.forward is LAYERS[slot].forward:
                self.layers[slot] = layer  # GPT-2's own formula, with a backward of somebody's
                continue
            declared = _declared(_called(slot, layer), layer.parameters, config)
            arguments[slot] = _arguments(slot, layer, declared)
            self.own[slot] = layer
            self.layers[slot] = replace(layer, forward=_watched(slot, layer, config))
        self.block = block if isinstance(block, Block) or block is None else Block(_function("block", block))
        self._arrange(arguments)
        for slot in self.own:
            _try(slot, self)

    def _arrange(self, arguments):
        """Steps and table, from what the layers and the block take."""
        config, standard = self.config, _standard(self.config)
        self.steps: dict[str, Step] = {}
        read: dict[str, Parameter] = {}  # outside of blocks, then in them
        in_block: dict[str, Parameter] = {}
        for step, place in PLACES.items():
            tensors: list[str | None] = []
            roles, static, declared = arguments[place.layer]
            for role in roles:
                name = place.tensors.get(role, f"{step}_{role}")
                tensors.append(name)
                if name is not None:
                    parameter = (
                        standard[name] if role in place.tensors else replace(declared[role], name=name)
                    )
                    (in_block if place.block else read)[name] = parameter
            given = {"num_heads": config.n_head} if "num_heads" in static else {}
            self.steps[step] = Step(place.layer, tuple(tensors), given)
        if self.block is not None:
            in_block = self._block_table(standard)
        everything = {**read, **in_block}
        order = [*(n for n in standard if n in everything), *(n for n in everything if n not in standard)]
        if taken := sorted({*read} & {*in_block}):
            raise UserError(
                f"block: the name of its tensor {taken[0]!r} is that of one outside of the blocks"
            )
        self.table = tuple(everything[name] for name in order)
        self.in_block = frozenset(in_block)

    def _block_table(self, standard):
        """What the own block reads: found by running it once."""
        block, config = self.block, self.config
        what = f"block {block.name}"
        declared = _declared(what, block.parameters, config)
        offered = {n: p for n, p in standard.items() if n not in IN_NO_BLOCK} | declared
        rng = np.random.default_rng(0)
        arrays = _Tensors(what, {n: _drawn(rng, p.shape, config.dtype) for n, p in offered.items()})
        x = _drawn(rng, (2, min(3, config.block_size), config.n_embd), config.dtype)
        _twice(
            what,
            lambda *inputs: block.forward(*inputs, arrays, plain(self.layers), config),
            (x,),
            x.shape,
            x.dtype,
        )
        for name in declared:
            if name not in arrays.asked:
                raise UserError(f"{what}: declares the parameter {name!r} and never reads it")
        return {name: offered[name] for name in offered if name in arrays.asked}

    @property
    def standard(self) -> bool:
        """Whether this is GPT-2 as it was released."""
        return not self.own and self.block is None

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every tensor, in order. A leading L stands for one slice per block."""
        L = self.config.n_layer
        return tuple((p.name, (L, *p.shape) if p.name in self.in_block else p.shape) for p in self.table)

    @cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Where each tensor stands in the flat buffer: name -> (start, stop), in order without gaps."""
        ranges, start = {}, 0
        for name, shape in self.shapes:
            ranges[name] = (start, start + math.prod(shape))
            start += math.prod(shape)
        return ranges

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def decayed(self) -> tuple[str, ...]:
        """Tensors that weight decay applies to."""
        return tuple(p.name for p in self.table if p.decays)

    def deviation(self, name: str) -> float | None:
        """Of the numbers that a tensor is drawn with; None where all its entries start as `constant` says."""
        starts = next(p.starts for p in self.table if p.name == name)
        if starts == "residual":
            return 0.02 / math.sqrt(2 * self.config.n_layer)
        return 0.02 if starts == "normal" else None

    def constant(self, name: str) -> float:
        return float(next(p.starts for p in self.table if p.name == name))

    @cached_property
    def block_tensors(self) -> tuple[str, ...]:
        """Those of a block, in order."""
        return tuple(p.name for p in self.table if p.name in self.in_block)

    def block_layer(self, layers: Layers) -> Layer:
        """The own block as a layer of x and its tensors, which calls these layers."""
        block, config, names = self.block, self.config, self.block_tensors
        what, functions = f"block {block.name}", plain(layers)

        def forward(x, *tensors):
            out = block.forward(x, _Tensors(what, dict(zip(names, tensors))), functions, config)
            return _fitting(what, out, x.shape, x.dtype), ()

        forward.__name__ = block.name
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in ("x", *names)]
        vars(forward)["__signature__"] = inspect.Signature(
            parameters
        )  # by which a program's inputs are named
        return Layer("block", forward, None, by_position=block.by_position)

    @cached_property
    def written(self) -> dict[str, Layer]:
        """All layers as they are written, with the own block among them."""
        return (
            dict(self.layers)
            if self.block is None
            else {**self.layers, "block": self.block_layer(self.layers)}
        )

    def with_layer(self, slot: str, layer: Layer) -> "Description":
        """The same with another layer at one place."""
        given = {name: self.layers[name] for name in LAYERS if self.layers[name] is not LAYERS[name]}
        return Description(self.config, {**given, **self.own, slot: layer}, self.block)

    def resized(self, config: GPT2Config) -> "Description":
        """The same layers in a model of other sizes."""
        return Description(config, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """What makes the same description of a config: keyword arguments of Description and of GPT2."""
        if self.file is not None:
            return {"layers": self.file}
        given = {**{n: y for n, y in self.layers.items() if y is not LAYERS[n]}, **self.own}
        return {**({"layers": given} if given else {}), **({"block": self.block} if self.block else {})}

    def state(self) -> dict[str, Any]:
        """What a file keeps of it besides the sizes: {} for GPT-2."""
        if self.standard:
            return {}
        own: dict[str, Any] = {"layers": {slot: _name(layer.forward) for slot, layer in self.own.items()}}
        own["block"] = None if self.block is None else self.block.name
        own["file"] = None if self.file is None else {"path": self.file.path, "sha256": self.file.sha256}
        return {"own": own}

    def told(self) -> str:
        """The own layers in words: "attention is rope, the block is swiglu_block"."""
        return _told(
            {slot: _name(layer.forward) for slot, layer in self.own.items()}, self.block and self.block.name
        )


def _told(layers, block):
    parts = [f"{slot} is {name}" for slot, name in layers.items()]
    return ", ".join([*parts, *([f"the block is {block}"] if block else [])])


def described(
    config: GPT2Config, state: Mapping[str, Any], where: Any, given: Mapping[str, Any] | None = None
) -> Description:
    """The Description of a model in a file: of `config`, with the own layers that the file's state tells.

    where    the file, for messages
    given    keyword arguments of Description: layers, block. Needed where the layers lay in no file

    Raises UserError where layers are needed and not given, given and not needed, or are others.
    """
    given = {name: value for name, value in (given or {}).items() if value is not None}
    own = state.get("own")
    if own is None:
        if given:
            raise UserError(
                f"{where}: holds GPT-2 as it was released, and own layers are given; leave them out"
            )
        return Description(config)
    try:
        told, file = _told(own["layers"], own["block"]), own["file"]
        kept = None if file is None else OwnFile(file["path"], file["sha256"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{where}: what it says of own layers cannot be read; the file is damaged") from None
    if not given:
        if kept is None:
            raise UserError(
                f"{where}: a model with own layers ({told}), which lie in no file that it knows; give them: "
                "gpt2.load(..., layers=..., block=...), or --layers FILE.py"
            )
        return Description(config, kept)
    made = Description(config, **given)
    if kept is not None and made.file is not None and made.file.sha256 != kept.sha256:
        raise UserError(f"{where}: made with the layers of {kept.path}, and {made.file.path} holds others")
    now = made.state().get("own", {"layers": {}, "block": None})
    if (now["layers"], now["block"]) != (own["layers"], own["block"]):
        raise UserError(f"{where}: made with own layers ({told}), given are others ({made.told() or 'none'})")
    return made


# ---- What own layers have to keep to ---------------------------------------------------------------------


def _name(function):
    return getattr(function, "__name__", type(function).__name__)


def _called(slot, layer):
    return f"layers[{slot!r}], {_name(layer.forward)}"


def _function(what, given):
    if not callable(given):
        raise UserError(f"{what}: is {given!r}, expected a function")
    return given


def _layer_of(slot, function):
    """A forward function as a Layer without a backward."""
    return Layer(_name(_function(f"layers[{slot!r}]", function)), function, None)


def _declared(what, parameters, config):
    """name -> Parameter of those that an own layer or block says it has."""
    if parameters is None:
        return {}
    try:
        found = list(parameters(config))
    except Exception as error:
        raise UserError(
            f"{what}: its parameters(config) fails: {type(error).__name__}: {reason(error)}"
        ) from None
    for p in found:
        if not isinstance(p, Parameter) or not str(p.name).isidentifier():
            raise UserError(f"{what}: its parameters(config) gives {p!r}, expected Parameter(name, shape)")
        shape = p.shape if isinstance(p.shape, tuple) else ()
        if not shape or not all(isinstance(n, int | np.integer) and n > 0 for n in shape):
            raise UserError(
                f"{what}: its parameter {p.name!r} has the shape {p.shape!r}, expected whole numbers from 1"
            )
        if not (p.starts in ("normal", "residual") or isinstance(p.starts, int | float)):
            raise UserError(
                f"{what}: its parameter {p.name!r} starts as {p.start!r}; expected normal, residual, a number"
            )
    names = [p.name for p in found]
    if len({*names}) < len(names):
        raise UserError(f"{what}: declares a parameter twice: {', '.join(names)}")
    return dict(zip(names, found))


def _arguments(slot, layer, declared):
    """(tensors that it takes, keywords that it is given, declared) of a layer, by its signature."""
    what, data = _called(slot, layer), DATA[slot]
    place = next(place for place in PLACES.values() if place.layer == slot)
    positional, static = [], []
    for p in inspect.signature(layer.forward).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise UserError(f"{what}: takes {p}; a layer names each of its arguments")
        (static if p.kind == p.KEYWORD_ONLY else positional).append(p)
    if len(positional) < len(data):
        raise UserError(f"{what}: takes {len(positional)} arguments, it is given {', '.join(data)}")
    tensors = []
    for k, p in enumerate(positional[len(data) :]):
        if p.name in declared or p.name in place.tensors:
            if k != len(tensors):
                raise UserError(
                    f"{what}: its tensor {p.name!r} comes after an argument that is none; put it first"
                )
            tensors.append(p.name)
        elif p.default is p.empty:
            known = [*place.tensors, *declared]
            raise UserError(
                f"{what}: takes {p.name!r}, which is no parameter of this model"
                + (f" (there are {', '.join(known)})" if known else "")
                + "; declare it: Layer(..., parameters=lambda config: [Parameter(name, shape)])"
            )
    for name in declared:
        if name not in tensors:
            raise UserError(
                f"{what}: declares the parameter {name!r}, and its forward takes none of this name"
            )
    for p in static:
        if p.default is p.empty and p.name not in STATIC.get(slot, ()):
            raise UserError(
                f"{what}: takes the keyword {p.name!r}, which the model does not have; give it a default"
            )
    if slot == "matmul" and "weight" not in tensors:
        raise UserError(f"{what}: takes no weight, which the head shares with the embedding")
    return tensors, [p.name for p in static if p.name in STATIC.get(slot, ())], declared


def _expected(slot, config, inputs):
    """The shape that a layer's output has to have."""
    if slot == "encoder":
        return (*inputs[0].shape, config.n_embd)
    if slot == "matmul":
        return (*inputs[0].shape[:-1], inputs[1].shape[0])
    if slot == "attention":
        return (*inputs[0].shape[:-1], config.n_embd)
    return inputs[1].shape if slot == "crossentropy" else inputs[0].shape


def _fitting(what, out, shape, dtype):
    """`out`, if it is an array of this shape and dtype."""
    found = getattr(out, "shape", None), getattr(out, "dtype", None)
    if found != (shape, dtype):
        got = type(out).__name__ if any(x is None for x in found) else f"{found[1]} {found[0]}"
        hint = ""
        if found == (shape, np.float64):
            hint = "; NumPy's own float64 numbers widen it, Python's floats do not"
        raise UserError(f"{what}: returns {got}, expected {np.dtype(dtype)} {shape}{hint}")
    return out


def _watched(slot, layer, config):
    """The own layer's forward, giving (out, saved), and refusing an output that does not fit."""
    what = _called(slot, layer)

    def forward(*inputs, **static):
        result = layer.forward(*inputs, **static)
        out, saved = result if isinstance(result, tuple) and len(result) == 2 else (result, ())
        return _fitting(what, out, _expected(slot, config, inputs), config.dtype), saved

    forward.__name__ = _name(layer.forward)
    vars(forward)["__wrapped__"] = layer.forward  # whose signature names the inputs of its programs
    return forward


class _Tensors(dict):
    """A block's tensors by name; notes which were asked for, and refuses others."""

    def __init__(self, what, tensors):
        super().__init__(tensors)
        self.what, self.asked = what, set()

    def __getitem__(self, name):
        if name not in self:
            raise UserError(
                f"{self.what}: reads a parameter {name!r} that is not there; there are {', '.join(self)}. "
                "Own ones are declared: Block(..., parameters=lambda config: [Parameter(name, shape)])"
            )
        self.asked.add(name)
        return super().__getitem__(name)


class _Functions(dict):
    """Layers by name as plain functions of their outputs alone."""

    def __missing__(self, name):
        raise UserError(f"a block asks for the layer {name!r}; there are {', '.join(self)}")


def plain(layers: Layers) -> Mapping[str, Callable]:
    """name -> a function that gives the layer's output alone."""

    def function(layer):
        return lambda *inputs, **static: layer.forward(*inputs, **static)[0]

    return _Functions({name: function(layers[name]) for name in LAYERS})


def _drawn(rng, shape, dtype):
    """Numbers for a trial. Of large tensors few are drawn: a trial has to be quick."""
    few = rng.standard_normal(min(math.prod(shape), 4096)).astype(dtype)
    return np.resize(few, shape)


def _twice(what, forward, inputs, shape, dtype):
    """The result of a forward, run twice: it has to fit, come out the same, and leave its inputs alone."""
    before = [np.array(a) for a in inputs]
    with np.errstate(all="ignore"):
        try:
            first, second = (np.array(_fitting(what, forward(*inputs), shape, dtype)) for _ in range(2))
        except UserError:
            raise
        except Exception as error:
            told = ", ".join(f"{a.dtype} {a.shape}" for a in inputs)
            raise UserError(f"{what}: fails for {told}: {type(error).__name__}: {reason(error)}") from None
    if any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, inputs)):
        raise UserError(f"{what}: writes to its arguments; a layer returns a new array")
    if not np.array_equal(first, second, equal_nan=True):
        raise UserError(
            f"{what}: gives another result each time; a layer is a pure function of its arguments"
        )
    return first


def _try(slot, d):
    """Run an own layer once at each kind of place where it stands, and its backward where it has one."""
    config, layer = d.config, d.layers[slot]
    B, T, C, V = 2, min(3, config.block_size), config.n_embd, config.vocab_size
    rng = np.random.default_rng(0)
    shapes = dict(d.shapes)
    for step, s in d.steps.items():
        if s.layer != slot or (d.block is not None and PLACES[step].block):
            continue
        tensors = [
            None if n is None else _drawn(rng, shapes[n][1:] if n in d.in_block else shapes[n], config.dtype)
            for n in s.tensors
        ]
        width = {"att": 3 * C, "gelu": 4 * C, "fcproj": 4 * C, "loss": V}.get(step, C)
        data = [_drawn(rng, (B, T, width), config.dtype) for _ in DATA[slot]]
        if slot == "encoder":
            data = [rng.integers(0, V, (B, T))]
        if slot == "crossentropy":
            data[1] = rng.integers(0, V, (B, T))
        inputs = [*data, *tensors]
        shape = _expected(slot, config, inputs)
        present = [a for a in inputs if a is not None]

        def forward(*arrays, inputs=inputs, s=s):
            given = iter(arrays)
            return layer.forward(*(None if a is None else next(given) for a in inputs), **s.static)

        out = _twice(_called(slot, d.own[slot]), lambda *a: forward(*a)[0], present, shape, config.dtype)
        if layer.backward is not None:
            _try_backward(_called(slot, d.own[slot]), layer, inputs, out, s.static)


def _try_backward(what, layer, inputs, out, static):
    """Whether the backward by hand gives a gradient for each input."""
    _, saved = layer.forward(*inputs, **static)
    with np.errstate(all="ignore"):
        try:
            gradients = layer.backward(out, saved, **static)
        except Exception as error:
            raise UserError(f"{what}: its backward fails: {type(error).__name__}: {reason(error)}") from None
    if not isinstance(gradients, tuple):
        raise UserError(
            f"{what}: its backward returns a {type(gradients).__name__}, expected a tuple of gradients"
        )
    if len(gradients) != len(inputs):
        raise UserError(f"{what}: its backward returns {len(gradients)} gradients for {len(inputs)} inputs")
    for k, (g, a) in enumerate(zip(gradients, inputs)):
        if a is None or a.dtype.kind != "f":
            continue
        found = getattr(g, "dtype", type(g).__name__), getattr(g, "shape", "")
        if found != (a.dtype, a.shape):
            raise UserError(
                f"{what}: gradient {k} of its backward is {found[0]} {found[1]}, expected {a.dtype} {a.shape}"
            )


# ---- Forward: pure functions of the parameters -----------------------------------------------------------


def run_layer(
    d: Description, step: str, layers: Layers, params: Tensors, l: Any, *inputs: np.ndarray
) -> tuple[np.ndarray, tuple]:
    """The layer at a place, given its tensors of block l (... outside of the blocks): (out, saved)."""
    s = d.steps[step]
    tensors = [None if name is None else params[name][l] for name in s.tensors]
    return layers[s.layer].forward(*inputs, *tensors, **s.static)


def block_forward(
    x: np.ndarray, params: Tensors, l: int, d: Description, layers: Layers
) -> tuple[np.ndarray, dict[str, tuple]]:
    """Block l of the stack: x (B, T, C) -> (B, T, C), and what its layers saved, by step."""
    saved = {}
    if d.block is not None:
        x, saved["block"] = layers["block"].forward(x, *(params[name][l] for name in d.block_tensors))
        return x, saved

    def run(step, *inputs):
        out, saved[step] = run_layer(d, step, layers, params, l, *inputs)
        return out

    ln1 = run("ln1", x)
    qkv = run("qkv", ln1)  # (B, T, 3C)
    atty = run("att", qkv)  # (B, T, C)
    attproj = run("attproj", atty)
    x = run("residual1", x, attproj)
    ln2 = run("ln2", x)
    fch = run("fc", ln2)  # (B, T, 4C)
    fch_gelu = run("gelu", fch)
    fcproj = run("fcproj", fch_gelu)  # (B, T, C)
    x = run("residual2", x, fcproj)
    return x, saved


def forward_pass(
    params: Tensors, tokens: np.ndarray, d: Description, layers: Layers, last_only: bool = False
) -> tuple[np.ndarray, dict]:
    """logits (B, T, V), and what every layer saved: a dict for the ends, a list of dicts for the blocks.

    last_only   the logits of the last position alone, (B, 1, V)
    """
    saved: dict = {"shape": tokens.shape, "blocks": []}
    x, saved["encoder"] = run_layer(d, "encoder", layers, params, ..., tokens)  # (B, T, C)
    for l in range(d.config.n_layer):
        x, block = block_forward(x, params, l, d, layers)
        saved["blocks"].append(block)
    x = x[:, -1:] if last_only else x
    x, saved["lnf"] = run_layer(d, "lnf", layers, params, ..., x)
    logits, saved["head"] = run_layer(d, "head", layers, params, ..., x)  # tied to the embedding
    return logits, saved


def logits_fn(
    params: Tensors,
    tokens: np.ndarray,
    *,
    config: GPT2Config,
    layers: Layers,
    description: Description | None = None,
) -> np.ndarray:
    """logits (B, T, V) of tokens (B, T) as a pure function of params."""
    return forward_pass(params, tokens, description or Description(config), layers)[0]


def loss_fn(
    params: Tensors,
    tokens: np.ndarray,
    targets: np.ndarray,
    *,
    config: GPT2Config,
    layers: Layers,
    description: Description | None = None,
) -> np.floating:
    """Mean loss in nats per token as a pure function of params: what backward="whole" differentiates."""
    logits = logits_fn(params, tokens, config=config, layers=layers, description=description)
    losses, _ = layers["crossentropy"].forward(logits, targets)
    return np.mean(losses)
