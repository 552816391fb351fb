"""What a model is: its layers and block, and its table of parameters.

config.py has the sizes and GPT-2's places, fitting.py the checks of own layers, tuning.py the names of what
is trained, and forward.py the forward.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.errors import OptionError, UserError, suggestion
from gpt2.layers import LAYERS, Layer, lora
from gpt2.layers.layer import Parameter
from gpt2.model.adapted import Adapted
from gpt2.model.config import (
    BLOCK_PLACES,
    COMPUTED_BY,
    DATA,
    IN_NO_BLOCK,
    PLACES,
    GPT2Config,
    LayerCall,
    gpt2_tensors,
    layers_of,
    static_of,
    tensor_at,
)
from gpt2.model.fitting import (
    BlockTensors,
    Layers,
    arguments_of,
    called,
    check_pure,
    declared_by,
    drawn,
    expected_shape,
    fitting,
    layer_of,
    name_of,
    plain,
    required_function,
    try_layer,
    watched,
)
from gpt2.model.lora import LoRA
from gpt2.model.own import OwnFile
from gpt2.model.presets import ACTIVATIONS
from gpt2.model.tuning import Tuning, option_error, tuning


@dataclass(frozen=True)
class Block:
    """A user's block, in place of GPT-2's.

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
        return name_of(self.forward)


class Trained(dict[str, Sequence[int]]):
    """The tensors that are trained: name -> the blocks in which they are; none outside of the blocks.

    d   Description of the model, whose `tuning` says what is trained: a kind, less what is frozen by name
    """

    def __init__(self, d: Description):
        self.d, tuning, L = d, d.tuning, d.config.n_layer
        names = [p.name for p in d.table]
        for name in tuning.frozen:
            if name not in names:
                near = suggestion(name, names) or f"; there are {', '.join(names)}"
                raise option_error("freeze", tuning.freeze, f"there is no tensor {name!r}{near}")
        everywhere: dict[Any, Sequence[int]] = {n: range(L) if n in d.in_block else () for n in names}
        if d.lora is not None:
            trained = {**d.adapters, **d.lora.tensors}
        elif tuning.kind == "biases":
            biases = {place.tensors.get("bias") for place in PLACES.values()}
            trained = {name: blocks for name, blocks in everywhere.items() if name in biases}
        elif tuning.kind == "last":
            if tuning.number > L:
                raise tuning.wrong(f"the model has {L} block{'s' * (L > 1)}")
            trained = {name: () for name in d.calls["lnf"].tensors}
            trained |= dict.fromkeys(d.in_block, range(L - tuning.number, L))
        else:
            trained = everywhere
        super().__init__({n: trained[n] for n in names if n in trained and n not in tuning.frozen})
        if not self:
            text = f"{tuning.summary()}: nothing is left to train"
            raise OptionError(f"train: {text}", f"--train {text}")

    @property
    def everything(self) -> bool:
        """Whether all of the model is trained."""
        L = self.d.config.n_layer
        return len(self) == len(self.d.table) and all(len(self[name]) == L for name in self.d.in_block)

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of what is trained, in order; in the blocks, only the trained blocks."""
        return tuple(
            (name, (len(self[name]), *shape[1:]) if name in self.d.in_block else shape)
            for name, shape in self.d.shapes
            if name in self
        )

    @cached_property
    def frozen_shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The same for what is not trained: whole tensors, and the other blocks of those trained in some."""
        kept = [(name, shape) for name, shape in self.d.shapes if name not in self]
        some = [(name, shape) for name, shape in self.d.shapes if name in self and name in self.d.in_block]
        others = [(name, (shape[0] - len(self[name]), *shape[1:])) for name, shape in some]
        return (*kept, *((name, shape) for name, shape in others if shape[0]))

    def frozen_blocks(self, name: str) -> list[int]:
        """The blocks in which a tensor is frozen; none if it is not in the blocks."""
        blocks = range(self.d.config.n_layer) if name in self.d.in_block else ()
        return [l for l in blocks if l not in self.get(name, ())]

    def index(self, name: str, l: int) -> int:
        """The position of block l among the trained blocks of a tensor."""
        return self[name].index(l)

    @property
    def count(self) -> int:
        """The number of trained parameters."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def decayed(self) -> tuple[str, ...]:
        """Tensors that weight decay applies to."""
        return tuple(p.name for p in self.d.table if p.decays and p.name in self)

    def at(self, name: str | None, l: Any) -> bool:
        """Whether a tensor is trained; l: its slice of this block, ... outside of the blocks."""
        return name in self and (l is ... or l in self[name])

    def wanted(self, place: str, l: Any) -> tuple[bool, ...] | None:
        """Whether the gradient of each input of the layer at a place is needed; None: all are.

        l: the block, or ...; place is "block" for a user's block.
        """
        return None if self.everything else self._wanted[place, l]

    @cached_property
    def _wanted(self) -> dict[tuple[str, Any], tuple[bool, ...] | None]:
        """(place, block) -> wanted. The gradient of an input is needed if anything before it is trained."""
        d = self.d
        found: dict[tuple[str, Any], tuple[bool, ...] | None] = {}

        def visit(place, l, *inputs):
            """Whether the output depends on what is trained. An input of integers is None."""
            names = d.calls[place].tensors
            wanted = (*inputs, *(None if name is None else self.at(name, l) for name in names))
            full = all(w is None or w for w in wanted)
            found[place, l] = None if full else tuple(map(bool, wanted))
            return any(wanted)

        x = visit("encoder", ..., None)
        for l in range(d.config.n_layer):
            if d.block is not None:
                x = visit("block", l, x)
                continue
            for branch, join in ((BLOCK_PLACES[:4], "residual1"), (BLOCK_PLACES[5:9], "residual2")):
                y = x
                for place in branch:
                    y = visit(place, l, y, *[None] * (d.calls[place].data - 1))
                x = visit(join, l, x, y)
        x = visit("head", ..., visit("lnf", ..., x))
        visit("loss", ..., x, None)
        return found


class Description:
    """What a model is.

    config   GPT2Config
    layers   own layers by the name of the layer that each replaces: a Layer, or a forward function, which
             returns its output, or its output and what it saved; or a file that has them
    block    the user's Block, or its forward
    train    what is trained: a Tuning, or its text, such as "lora:8"; by default everything

    own      the own layers among `layers`, as they were passed; block is the user's, or None
    layers   all layers by name, uncompiled
    calls    place -> LayerCall, in order; an own block is one of them, in place of GPT-2's in the blocks
    table    all tensors, as Parameters in their order; shapes has an L in front of those of the blocks
    trained  the Trained tensors

    Raises UserError, which names the layer, if something does not fit.
    """

    def __init__(
        self,
        config: GPT2Config,
        layers: Mapping[str, Layer | Callable] | OwnFile | str | Path | None = None,
        block: Block | Callable | None = None,
        train: Tuning | str | None = None,
    ):
        self.config = config
        self.tuning = tuning(train)
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
        self.activation = ACTIVATIONS[config.activation_function]
        self.layers: dict[str, Layer] = layers_of(config)
        slots = {"gelu" if name == self.activation else name: name for name in self.layers}
        arguments = {slot: arguments_of(slot, self.layers[name], {}) for slot, name in slots.items()}
        named: Any = layers or {}
        for slot, given in named.items():
            if slot not in self.layers:
                raise UserError(
                    f"layers: there is no layer {slot!r} to replace, expected {', '.join(self.layers)}"
                )
            layer = layer_of(slot, given)
            if layer.forward is self.layers[slot].forward:
                self.layers[slot] = layer  # the config's own formula, with a user's backward
                continue
            if slot not in LAYERS:
                raise UserError(f"layers[{slot!r}]: is the config's activation_function; leave that out")
            declared = declared_by(called(slot, layer), layer.parameters, config)
            arguments[slot] = arguments_of(slot, layer, declared)
            self.own[slot] = layer
            self.layers[slot] = replace(layer, forward=watched(slot, layer, config))
        self.block = (
            block if isinstance(block, Block) or block is None else Block(required_function("block", block))
        )
        self._check_settings()
        self._arrange(arguments)
        self._try_own()
        self.trained = Trained(self)

    def _check_settings(self):
        """Raise UserError for a setting of the config that own layers or an own block do not compute."""
        for slot, names in COMPUTED_BY.items():
            who = f"layers[{slot!r}]" if slot in self.own else "block" if self.block is not None else ""
            for name in names if who else ():
                if name in self.config.settings:
                    raise UserError(
                        f"{who}: computes in place of GPT-2's {slot}, so {name} has no effect; leave it out"
                    )

    def _arrange(self, arguments):
        """Set calls and table from the arguments of the layers and the block."""
        config, standard = self.config, gpt2_tensors(self.config)
        self.calls: dict[str, LayerCall] = {}
        read: dict[str, Parameter] = {}  # outside of blocks, then in them
        in_block: dict[str, Parameter] = {}
        for place, row in PLACES.items():
            tensors: list[str | None] = []
            roles, static, declared = arguments[row.layer]
            for role in roles:
                name = tensor_at(place, role, config)
                tensors.append(name)
                if name is not None:
                    parameter = standard[name] if role in row.tensors else replace(declared[role], name=name)
                    (in_block if row.block else read)[name] = parameter
            given = {"num_heads": config.n_head} if "num_heads" in static else {}
            given |= static_of(row.layer, config) if row.layer not in self.own else {}
            layer = self.activation if row.layer == "gelu" else row.layer
            data = len(DATA[row.layer]) + (place == "att" and config.scale_attn_by_inverse_layer_idx)
            self.calls[place] = LayerCall(layer, tuple(tensors), given, data)
        self._adapt(read, in_block)
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
        if self.block is not None:
            first, *rest = ((place, call) for place, call in self.calls.items() if not PLACES[place].block)
            self.calls = dict([first, ("block", LayerCall("block", self.block_tensors, {})), *rest])

    def _adapt(self, read, in_block):
        """Put the layers of adapters in their places, and add their tensors to the tables."""
        # their tensors -> the blocks in which they are trained
        self.adapters: dict[str, tuple[int, ...]] = {}
        self.fixed: dict[str, np.ndarray] = {}  # their other tensors -> the values
        if self.lora is None:
            return
        who = "matmul" if "matmul" in self.own else "block" if self.block is not None else ""
        if who:
            text = f"the model's own {who} has taken the place of the matrices that adapters stand beside"
            raise self.tuning.wrong(text)
        shapes = {name: p.shape for name, p in (read | in_block).items()}
        adapted = Adapted(self.lora, self.calls, shapes, self.config.n_layer)
        self.adapters, self.fixed = adapted.trained, adapted.fixed
        self.calls |= adapted.calls
        self.layers |= {call.layer: lora.LAYERS[call.layer] for call in adapted.calls.values()}
        read |= adapted.outside
        in_block |= adapted.in_block

    @property
    def lora(self) -> LoRA | None:
        """The adapters, or None."""
        return self.tuning.lora

    def _block_table(self, standard):
        """The tensors that the own block reads, found by running it once."""
        block, config = self.block, self.config
        what = f"block {block.name}"
        declared = declared_by(what, block.parameters, config)
        offered = {n: p for n, p in standard.items() if n not in IN_NO_BLOCK} | declared
        rng = np.random.default_rng(0)
        arrays = BlockTensors(what, {n: drawn(rng, p.shape, config.dtype) for n, p in offered.items()})
        x = drawn(rng, (2, min(3, config.block_size), config.n_embd), config.dtype)
        check_pure(
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

    def _try_own(self):
        """Run each own layer, and its backward if it has one, once at each of its places."""
        config, rng = self.config, np.random.default_rng(0)
        for slot in self.own:
            for place in self.places_of(slot):
                inputs = self.inputs_at(place, 2, min(3, config.block_size), rng)
                what, shape = called(slot, self.own[slot]), expected_shape(slot, config, inputs)
                try_layer(what, self.layers[slot], inputs, shape, config.dtype, self.calls[place].static)

    def places_of(self, slot: str) -> list[str]:
        """The places at which a layer runs."""
        return [place for place, call in self.calls.items() if call.layer == slot]

    def inputs_at(self, place: str, B: int, T: int, rng: np.random.Generator) -> list[np.ndarray | None]:
        """Random inputs of the layer at a place, or of "block", the own block, for B sequences of T."""
        config, shapes = self.config, {p.name: p.shape for p in self.table}
        C, V = config.n_embd, config.vocab_size

        def tensors(names):
            return [None if name is None else weight(shapes[name]) for name in names]

        def weight(shape):  # scaled so that a product with a matrix keeps the size of its input
            scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 1.0
            return drawn(rng, shape, config.dtype) * np.dtype(config.dtype).type(scale)

        if place == "block":
            return [drawn(rng, (B, T, C), config.dtype), *tensors(self.block_tensors)]
        s = self.calls[place]
        width = {"att": 3 * C, "gelu": config.inner, "fcproj": config.inner, "loss": V}.get(place, C)
        data = [drawn(rng, (B, T, width), config.dtype) for _ in DATA[PLACES[place].layer]]
        if s.layer == "encoder":
            data = [rng.integers(0, V, (B, T))]
        if s.layer == "crossentropy":
            data[1] = rng.integers(0, V, (B, T))
        return [*data, *tensors(s.tensors)]

    @property
    def standard(self) -> bool:
        """Whether this is GPT-2 as it was released."""
        return self.gpt2 and self.lora is None and not self.config.differences

    @property
    def gpt2(self) -> bool:
        """Whether all layers are those of the config, with or without adapters."""
        return not self.own and self.block is None

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every tensor, in order. A leading L stands for one slice per block."""
        L = self.config.n_layer
        return tuple((p.name, (L, *p.shape) if p.name in self.in_block else p.shape) for p in self.table)

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    def start(self, name: str) -> tuple[float | None, float | np.ndarray]:
        """How a tensor's entries start: (deviation, 0.0) if they are drawn, or (None, their value)."""
        starts = next(p.starts for p in self.table if p.name == name)
        if starts == "residual":
            return 0.02 / math.sqrt(2 * self.config.n_layer), 0.0
        if starts == "fan_in":  # as PyTorch's linear layers start, which is how PEFT's adapters do
            return 1.0 / math.sqrt(3 * dict(self.shapes)[name][-1]), 0.0
        if starts == "normal":
            return 0.02, 0.0
        return None, self.fixed[name] if name in self.fixed else float(starts)

    def divisors(self, l: int) -> tuple[np.ndarray, ...]:
        """The divisor of attention's scores in block l, (1,) int, if the config has one."""
        return (np.array([l + 1]),) if self.config.scale_attn_by_inverse_layer_idx else ()

    @cached_property
    def block_tensors(self) -> tuple[str, ...]:
        """The tensors of a block, in order."""
        return tuple(p.name for p in self.table if p.name in self.in_block)

    def block_layer(self, layers: Layers) -> Layer:
        """The own block as a layer of x and its tensors, which calls these layers."""
        block, config, names = self.block, self.config, self.block_tensors
        what, functions = f"block {block.name}", plain(layers)

        def forward(x, *tensors):
            out = block.forward(x, BlockTensors(what, dict(zip(names, tensors))), functions, config)
            return fitting(what, out, x.shape, x.dtype), ()

        forward.__name__ = block.name
        vars(forward)["__wrapped__"] = block.forward  # whose source is shown
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in ("x", *names)]
        vars(forward)["__signature__"] = inspect.Signature(parameters)  # names the inputs of programs
        return Layer("block", forward, None, by_position=block.by_position)

    @cached_property
    def written(self) -> dict[str, Layer]:
        """All layers uncompiled, the own block included."""
        return self.layers | ({} if self.block is None else {"block": self.block_layer(self.layers)})

    def with_layer(self, slot: str, layer: Layer) -> Description:
        """The same description with another layer in place of one."""
        return Description(self.config, {**self._replaced, slot: layer}, self.block, self.tuning)

    def changed(self, config: GPT2Config | None = None, **options: Any) -> Description:
        """The same layers in a model of another config, or with other options."""
        return Description(config or self.config, **{**self.options, **options})

    @property
    def _replaced(self) -> dict[str, Layer]:
        """The layers that are not the config's, by slot, as they were passed."""
        standard = layers_of(self.config)
        given = {n: y for n, y in self.layers.items() if y is not standard.get(n, y)}
        return given | self.own

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of Description and of GPT2 that make the same description of a config."""
        train = {} if self.tuning == Tuning() else {"train": self.tuning}
        if self.file is not None:
            return {"layers": self.file, **train}
        return {
            **({"layers": self._replaced} if self._replaced else {}),
            **({"block": self.block} if self.block else {}),
            **train,
        }

    def state(self) -> dict[str, Any]:
        """What a file stores besides the sizes: {} for GPT-2, all of it trained."""
        tuned = {} if self.tuning == Tuning() else {"tuned": asdict(self.tuning)}
        if self.gpt2:
            return tuned
        own = {
            "layers": {slot: name_of(layer.forward) for slot, layer in self.own.items()},
            "block": None if self.block is None else self.block.name,
            "file": None if self.file is None else {"path": self.file.path, "sha256": self.file.sha256},
        }
        return {"own": own, **tuned}

    def summary(self) -> str:
        """What is not as released, as text: "attention is rope, the block is swiglu_block", "n_inner 64"."""
        own = {slot: name_of(layer.forward) for slot, layer in self.own.items()}
        adapters = [] if self.lora is None else [f"adapters {self.tuning.summary()}"]
        names = _layer_names(own, self.block and self.block.name)
        return ", ".join([*filter(None, [self.config.differences, names]), *adapters])


def _layer_names(layers, block):
    parts = [f"{slot} is {name}" for slot, name in layers.items()]
    return ", ".join([*parts, *([f"the block is {block}"] if block else [])])


def described(
    config: GPT2Config, state: Mapping[str, Any], where: Any, given: Mapping[str, Any] | None = None
) -> Description:
    """The Description of a model in a file: of `config`, with the own layers that the file's state names.

    where    the file, for messages
    given    keyword arguments of Description. layers, block: needed if the layers were not in a file, or if
             their code may only run when the user names it (model/own.py). train: used if the file does not
             say what is trained. offered: an OwnFile that the user names, used if the model was made with it

    Raises UserError if layers are needed and not given, given and not needed, or not the same.
    """
    given = {name: value for name, value in (given or {}).items() if value is not None}
    offered = given.pop("offered", None)
    train = {"train": given.pop("train", None)}
    if state.get("tuned") is not None:
        try:
            train = {"train": Tuning(**state["tuned"])}
        except (TypeError, UserError):
            raise UserError(
                f"{where}: its note about what is trained cannot be read; the file is damaged"
            ) from None
    own = state.get("own")
    if own is None:
        if given:
            raise UserError(
                f"{where}: holds GPT-2 as it was released, and own layers are given; leave them out"
            )
        return Description(config, **train)
    try:
        saved, file = _layer_names(own["layers"], own["block"]), own["file"]
        kept = None if file is None else OwnFile(str(file["path"]), str(file["sha256"]))
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{where}: its note about own layers cannot be read; the file is damaged") from None
    if not given:
        if kept is None:
            text = f"{where}: a model with own layers ({saved}), which are not in a file; give them"
            raise OptionError(f"{text}: gpt2.load(..., layers=..., block=...)", f"{text} as --layers FILE.py")
        same = offered is not None and offered.sha256 == kept.sha256
        return Description(config, offered if same else kept, **train)
    made = Description(config, **given, **train)
    if kept is not None and made.file is not None and made.file.sha256 != kept.sha256:
        raise UserError(f"{where}: made with the layers of {kept.path}, and {made.file.path} holds others")
    now = made.state().get("own", {"layers": {}, "block": None})
    if (now["layers"], now["block"]) != (own["layers"], own["block"]):
        raise UserError(
            f"{where}: made with own layers ({saved}), given are others ({made.summary() or 'none'})"
        )
    return made
