"""GPT-2 with parameters and gradients: the class GPT2 and its step.

description.py says which layers and tensors the model has, parameters.py fills its buffers; the forward is in
forward.py and the backward in backward.py. With backward="whole" both are one program.
"""

import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

import gpt2.backward as backwards
from gpt2 import autodiff as ad
from gpt2.errors import UserError, counted
from gpt2.layers import Layer
from gpt2.layers.crossentropy import check_targets, mean_loss
from gpt2.layers.encoder import check_ids
from gpt2.machine import cores
from gpt2.model.backward import Gradients, backward_pass
from gpt2.model.changes import Environment
from gpt2.model.config import GPT2Config
from gpt2.model.description import Block, Description
from gpt2.model.fitting import Layers
from gpt2.model.forward import block_forward, first_non_finite, forward_pass, loss_fn
from gpt2.model.own import OwnFile
from gpt2.model.parameters import initialise, scratch_range
from gpt2.model.presets import PRESETS
from gpt2.model.tensors import Named, Stack, Tensors, joined, ranges_of, views
from gpt2.model.tuning import Tuning


def _rebuilt(config, spec, modes, compile, detect_anomaly, elementwise, options) -> "GPT2":
    """A model with these settings, for GPT2.__reduce__. modes: per layer, as some may have been changed."""
    backward = spec if spec.strip() == "whole" else ",".join(["manual", *map("=".join, modes.items())])
    model = GPT2(config, backward, None, compile, detect_anomaly, elementwise, **options)
    model.spec = spec
    return model


def _identity(x):
    return x


class GPT2:
    """A GPT-2 with parameters, gradients, and the activations of the last forward pass.

    config    GPT2Config
    backward  "manual", "auto", a mix such as "manual,attention=auto", or "whole"; see gpt2.backward. By
              default "manual", except for the layers that have no manual backward
    seed      of the initial parameters; None leaves them zero, for a caller that fills them
    compile   False runs every layer line by line in NumPy, for debugging. Otherwise the first model of a
              process sets its threads and those of NumPy's BLAS, unless ad.set_threads has
    detect_anomaly   raise UserError with the op and line of the first nan or infinity of a step;
                     steps then take several times as long
    elementwise  "numpy", "numexpr" or "tuned": what computes the compiled elementwise operations
    layers    own layers in place of GPT-2's, by name: {"attention": rope}, a Layer or a forward function; or
              the path of a file that has them
    block     the user's Block, or a function (x, p, layers, config) -> x
    train     what is trained: "all", "lora:8", "last:2", "biases", or a gpt2.model.tuning.Tuning for more.
              The rest is frozen and costs no gradients

    description has the layers, tensors and shapes. model.layers[name] = layer replaces a layer everywhere.
    flat_params, flat_grads hold everything that is trained; params and grads are views of them by name.
    params has the frozen tensors as well; do not change them while an optimizer is at work.
    frozen has those as they lie in memory: name -> array, or a list of arrays, one a block.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, backward="whole", seed=0)
        >>> tokens = np.arange(12).reshape(2, 6)
        >>> model.forward(tokens).shape
        (2, 6, 65)
        >>> loss = model.loss_and_grads(tokens, tokens + 1)
        >>> model.grads["qkvw"].shape
        (2, 24, 8)
    """

    def __init__(
        self,
        config: GPT2Config,
        backward: str | None = None,
        seed: int | None = 0,
        compile: bool = True,
        detect_anomaly: bool = False,
        elementwise: str = "numpy",
        layers: Mapping[str, Layer | Callable] | OwnFile | str | Path | None = None,
        block: Block | Callable | None = None,
        train: Tuning | str | None = None,
    ):
        if not isinstance(config, GPT2Config):
            named = f"; GPT2Config.preset({config!r}) is one" if str(config) in PRESETS else ""
            raise TypeError(f"GPT2: config is {config!r}, expected a GPT2Config{named}")
        if compile:
            ad.prefer_threads(cores())
        self.config = config
        self.description = d = Description(config, layers, block, train)
        # spelled out, so that it can be shown and saved
        self.spec = backwards.default_for(d.written) if backward is None else backward
        self._elementwise = elementwise
        self._table = backwards.choose(self.spec, compile, elementwise, d.written, self._take)
        for name, layer in layers.items() if isinstance(layers, Mapping) and backward is None else ():
            if isinstance(layer, backwards.ModelLayer):  # compiled already
                dict.__setitem__(self._table, name, layer)
        self._whole = backwards.options_for(elementwise) if self.spec.strip() == "whole" else None
        self.program = self._made_program()
        self.environment = Environment(d)  # in which its programs are made
        self.flat_params = np.zeros(d.trained.count, config.dtype)
        self.flat_grads = np.zeros(d.trained.count, config.dtype)
        self.frozen: dict[str, Any] = {}
        self.params: Tensors = {}
        self.grads: Tensors = {}
        # zeros take no memory before they are written
        self.freeze(np.zeros(d.num_parameters - d.trained.count, config.dtype))
        initialise(self.params, d, seed or 0, d.fixed if seed is None else None)
        self._saved: Any = None
        self._find_tokenizer: Callable[[], Any] | None = None
        self.origin: str | None = None  # of its frozen weights: their name or folder, for peft
        self.compiled = compile
        self.drop_generation()
        self._traced = partial(backwards.traced, compile) if detect_anomaly else nullcontext

    def __reduce__(self) -> tuple:
        """For pickle. The copy has no activations, and compiles its programs again.

        Raises TypeError if an own layer is a function that pickle cannot find by its name.
        """
        for name, layer in {**self.description.own, "block": self.description.block}.items():
            try:
                pickle.dumps(None if self.description.file else layer)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise TypeError(
                    f"GPT2: its own layer {name} cannot be pickled ({error}); define its functions at the "
                    "top of a module, or give the model the path of a file with LAYERS"
                ) from None
        make, settings, (*arrays, find) = self._made_from()
        return make, settings, (*arrays, find and partial(_identity, find()))

    def __deepcopy__(self, memo: dict) -> "GPT2":
        """A model with copies of the arrays, and without activations."""
        make, settings, arrays = self._made_from()
        memo[id(self)] = other = make(*settings)
        other.__setstate__(deepcopy(arrays, memo))
        return other

    def _made_from(self):
        """(function, arguments, state) that rebuild the model, as for __reduce__."""
        anomaly = self._traced is not nullcontext
        settings = (self.compiled, anomaly, self._elementwise, self.description.options)
        named = [name for name in self.layers if name not in backwards.within_block(self.layers)]
        modes = {name: "auto" if self.layers[name].kind == "auto" else "manual" for name in named}
        arrays = self.flat_params, self.flat_grads, self.frozen
        return _rebuilt, (self.config, self.spec, modes, *settings), (*arrays, self._find_tokenizer)

    def __setstate__(self, state: tuple) -> None:
        self.flat_params, self.flat_grads, self.frozen, self._find_tokenizer = state
        self._see()

    def __repr__(self) -> str:
        c = self.config
        sizes = {"block": c.n_layer, "head": c.n_head, "channel": c.n_embd, "token": c.vocab_size}
        shape = ", ".join(counted(count, noun) for noun, count in sizes.items())
        own = "" if self.description.standard else f"; {self.description.summary()}"
        kind = f"{c.dtype}, backward={self.spec!r}{own}"
        return f"<GPT2: {self.num_parameters:,} parameters; {shape}, context {c.block_size}; {kind}>"

    def _repr_html_(self) -> str:
        """For notebooks: a table of the layers with their tensors, shapes and sizes."""
        import html

        d, rows = self.description, []
        seen: set[str] = set()
        for place, call in d.calls.items():
            layer = d.block.name if place == "block" else call.layer
            tensors = [name for name in call.tensors if name is not None]
            shapes = ", ".join(f"{name} {' x '.join(map(str, self.params[name].shape))}" for name in tensors)
            count = sum(self.params[name].size for name in {*tensors} - seen)
            size = f"{count:,}" if count else "shared" if tensors else ""
            rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in (place, layer, shapes, size)))
            seen |= {*tensors}
        head = "<tr><th>place</th><th>layer</th><th>tensors, of all blocks</th><th>numbers</th></tr>"
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(repr(self))}</p><table>{head}{table}</table>"

    def _made_program(self):
        """The whole loss as one program; None if backward is not "whole"."""
        if self._whole is None:
            return None
        d = self.description
        wanted = (
            None
            if d.trained.everything
            else [*(trained for *_, trained in self._inputs()), *[False] * (2 + len(self._divisors()))]
        )
        return backwards.whole(self._whole_loss, self._whole, wanted)

    def _inputs(self):
        """(name, block, whether it is trained) of each array argument of the whole program, in order.

        If something is frozen, the tensors of the blocks are passed block by block, so that arrays in a file
        need no other program; otherwise they are passed whole, and block is `...`.
        """
        d = self.description
        for name, shape in d.shapes:
            blocks = range(shape[0]) if name in d.in_block and not d.trained.everything else [...]
            for l in blocks:
                yield name, l, d.trained.at(name, l)

    def _arrays(self):
        """The array arguments of the whole program."""
        arrays = [
            self.params[name][l] if l is not ... else self.params[name] for name, l, _ in self._inputs()
        ]
        return [*arrays, *self._divisors()]

    def _divisors(self):
        """The divisors of all blocks as one array, if the config has them: arguments of the whole program."""
        d = self.description
        return list(map(np.concatenate, zip(*(d.divisors(l) for l in range(d.config.n_layer)))))

    @property
    def layers(self) -> dict[str, Layer]:
        """The layers that run, by name."""
        return self._table

    @layers.setter
    def layers(self, layers: Layers) -> None:
        for name, layer in layers.items():
            self._table[name] = layer

    def _take(self, name: str, layer: Layer) -> Layer:
        """Replace the layer `name` everywhere in this model; returns it as it runs."""
        if name == "block":
            raise UserError("model.layers['block']: is given when a model is made: GPT2(config, block=...)")
        d = self.description.with_layer(name, backwards.uncompiled(layer))
        if d.shapes != self.description.shapes:
            raise UserError(
                f"model.layers[{name!r}]: changes the model's tensors; give it when the model is made: "
                f"GPT2(config, layers={{{name!r}: ...}})"
            )
        if self.description.block is not None:
            raise UserError(
                f"model.layers[{name!r}]: the user's block already uses its layers; "
                f"give both when it is made: GPT2(config, layers={{{name!r}: ...}}, block=...)"
            )
        self.description = d
        self.environment = Environment(d)
        self.program = self._made_program()
        self._saved = None
        if isinstance(layer, backwards.ModelLayer):
            return layer
        return (
            backwards.as_written(d.layers[name])
            if d.layers[name].backward
            else backwards.auto(d.layers[name])
        )

    def drop_stale_programs(self) -> None:
        """Drop compiled programs if globals or closures that own layers read have changed."""
        if self.environment.unchanged():
            return
        self.environment = Environment(self.description)
        for name, layer in self._table.items():
            new = backwards.running(layer.written, layer.how, layer.options)
            dict.__setitem__(self._table, name, new)
        self.program = self._made_program()
        self.drop_generation()

    def drop_generation(self) -> None:
        """Forget what generation (model/decoder.py) keeps between calls."""
        self.checked_to_read: set[Description] = set()  # whose own layers read like their forward
        self.one_position: dict[int, tuple] = {}  # batch -> (Description, its program for one position)

    def use(self, flat_params: np.ndarray, flat_grads: np.ndarray) -> None:
        """Use these arrays (num_parameters,) for parameters and gradients from now on, with what they hold.

        For shared memory. The previous arrays are released.
        """
        for name, array in (("flat_params", flat_params), ("flat_grads", flat_grads)):
            if array.shape != self.flat_params.shape or array.dtype != self.config.dtype:
                raise ValueError(
                    f"GPT2.use: {name} is {array.dtype} {array.shape}, "
                    f"expected {self.config.dtype} {self.flat_params.shape}"
                )
        self.flat_params, self.flat_grads = flat_params, flat_grads
        self._see()

    def freeze(self, frozen: np.ndarray | Mapping[str, Any]) -> None:
        """Use these arrays for the frozen tensors; nothing is copied.

        frozen   a flat buffer of all of them, in the order of trained.frozen_shapes; or, for some, name ->
                 array, or a list of arrays, one a block. They may be read-only views of a file
        """
        shapes = dict(self.description.trained.frozen_shapes)
        if isinstance(frozen, np.ndarray):
            frozen = views(frozen, self.description.trained.frozen_shapes)
        for name, tensor in frozen.items():
            tensor = tensor.slices if isinstance(tensor, Stack) else tensor
            first = tensor if isinstance(tensor, np.ndarray) else tensor[0]
            shape = first.shape if isinstance(tensor, np.ndarray) else (len(tensor), *first.shape)
            if name not in shapes or shape != shapes[name] or first.dtype != self.config.dtype:
                raise ValueError(
                    f"GPT2.freeze: {name} is {first.dtype} {shape}, "
                    f"expected {self.config.dtype} {shapes.get(name, 'nothing: it is trained')}"
                )
            self.frozen[name] = tensor
        self._see()

    def frozen_copy(self, flat: np.ndarray) -> np.ndarray:
        """Copy the frozen tensors into a flat buffer, and return it."""
        for name, view in views(flat, self.description.trained.frozen_shapes).items():
            tensor = self.frozen[name]
            if isinstance(tensor, np.ndarray):
                view[...] = tensor
            else:
                Stack(list(view))[...] = tensor
        return flat

    def _see(self):
        """Make params and grads views of the current arrays."""
        d = self.description
        trained = views(self.flat_params, d.trained.shapes)
        self.params = Named(joined(self.frozen, trained, d.shapes, d.trained))
        self.grads = Named(views(self.flat_grads, d.trained.shapes))
        self.use_scratch(self.flat_grads[slice(*scratch_range(d))])

    def use_scratch(self, memory: np.ndarray) -> None:
        """Compute logits in this array (count,), of the model's dtype, if they fit, instead of in the
        gradients that are written last. The next call of `use` resets it.
        """
        self._scratch = memory

    def use_tokenizer(self, find_tokenizer: Callable[[], Any] | None, origin: str | None = None) -> None:
        """Set the Tokenizer for texts: the result of find_tokenizer(). origin: of the frozen weights."""
        self._find_tokenizer, self.origin = find_tokenizer, origin

    def use_tokenizer_of(self, other: "GPT2") -> None:
        """Set the Tokenizer for texts to that of another model."""
        self._find_tokenizer = other._find_tokenizer

    @property
    def tokenizer(self) -> Any:
        """The Tokenizer for texts; None for a model that was not loaded or trained."""
        return None if self._find_tokenizer is None else self._find_tokenizer()

    def twin(self) -> "GPT2":
        """A model that shares parameters and programs, but not gradients and activations.

        Two threads can use both at the same time.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.use(self.flat_params, np.zeros(self.flat_grads.shape, self.flat_grads.dtype))
        other._saved = None
        return other

    @property
    def num_parameters(self) -> int:
        """The number of parameters; flat_params.size is that of the trained ones."""
        return self.description.num_parameters

    @property
    def decayed(self) -> list[tuple[int, int]]:
        """Ranges (start, stop) of the flat buffer that weight decay applies to: the matrices."""
        ranges = ranges_of(self.description.trained.shapes)
        return [ranges[name] for name in self.description.trained.decayed]

    @overload
    def forward(self, tokens: ArrayLike, targets: None = None) -> np.ndarray: ...
    @overload
    def forward(self, tokens: ArrayLike, targets: ArrayLike) -> float: ...
    def forward(self, tokens: ArrayLike, targets: ArrayLike | None = None) -> float | np.ndarray:
        """Mean loss in nats per token, a float; or without targets the logits (B, T, V).

        tokens, targets  (B, T) integers in [0, vocab_size), T <= block_size. Targets of -1 and -100 do not
                         count: the mean is over the others, and 0.0 if there are none

        With targets, activations are kept for backward(), until that or the next call of forward.
        Raises ValueError if the arguments do not fit the model.
        """
        self._saved = None  # first of all, so that two sets of activations never exist at once
        self.drop_stale_programs()
        tokens, targets = checked(self.config, tokens, targets)
        if targets is None:
            return forward_pass(self.params, tokens, self.description, self.layers)[0]
        return self._forward(tokens, targets)

    def _forward(self, tokens, targets, scratch=None):
        """The mean loss, with activations kept. scratch: memory for the logits."""
        if self.program is not None:
            loss, self._saved = self.program.forward(*self._arrays(), tokens, targets)
            return float(loss)
        logits, saved = forward_pass(self.params, tokens, self.description, self.layers, buffer=scratch)
        losses, saved["loss"] = self.layers["crossentropy"].forward(logits, targets)
        saved["logits"], saved["targets"] = logits, targets
        self._saved = saved
        return float(mean_loss(losses, targets))

    def loss(self, tokens: ArrayLike, targets: ArrayLike) -> float:
        """The mean loss, for evaluation: activations are released."""
        loss = self.forward(tokens, targets)
        self._saved = None
        return loss

    def loss_and_grads(
        self,
        tokens: ArrayLike,
        targets: ArrayLike,
        scale: float = 1.0,
        accumulate: bool = False,
        on_ready: Callable[[int, int], None] | None = None,
    ) -> float:
        """forward(tokens, targets) and backward(scale, accumulate, on_ready) in one call; returns the loss.

        With backward="whole" this is one program, faster and smaller than the two halves. Otherwise it saves
        memory unless it accumulates: logits use the memory of gradients that are written later, so after an
        error gradients may hold anything.
        """
        with self._traced():
            self._saved = None  # first of all, so that two sets of activations never exist at once
            self.drop_stale_programs()
            tokens, targets = checked(self.config, tokens, np.asarray(targets))  # None is an error here
            if self.program is None:
                scratch = None if accumulate else self._logits_scratch(*tokens.shape)
                loss = self._forward(tokens, targets, scratch)
                self.backward(scale, accumulate, on_ready)
                return loss
            inputs = self._scale(scale), *self._arrays(), tokens, targets
            loss, _ = self.program.both(*inputs, out=self._grad_buffers(), add=accumulate)
            return float(loss)

    def _logits_scratch(self, B, T):
        """Memory for logits (B, T, V), which gradients overwrite after their last use; None if it is too
        small."""
        shape = (B, T, self.config.vocab_size)
        count = math.prod(shape)
        scratch = self._scratch
        start = -scratch.ctypes.data % 64 // scratch.itemsize  # the first cache line
        return scratch[start : start + count].reshape(shape) if start + count <= scratch.size else None

    def _whole_loss(self, *arrays):
        """loss_fn of the array arguments, tokens and targets: the function that is recorded."""
        *rest, tokens, targets = arrays
        d = self.description
        params: dict[str, Any] = {}
        tensors = iter(rest)
        for (name, l, _), array in zip(self._inputs(), tensors):
            if l is ...:
                params[name] = array
            else:
                params.setdefault(name, []).append(array)
        run_block = _repeated_block(d, list(tensors)) if d.gpt2 else block_forward
        return loss_fn(
            params, tokens, targets, config=self.config, layers=d.written, description=d, run_block=run_block
        )

    def _grad_buffers(self):
        at = self.description.trained.index
        buffers = [
            None if not trained else self.grads[name] if l is ... else self.grads[name][at(name, l)]
            for name, l, trained in self._inputs()
        ]
        return (*buffers, *[None] * (2 + len(self._divisors())))

    def _scale(self, scale):
        return np.full((), scale, self.config.dtype)

    def backward(
        self, scale: float = 1.0, accumulate: bool = False, on_ready: Callable[[int, int], None] | None = None
    ) -> None:
        """Fill grads with the gradient of scale * loss, or add it to them if accumulate is set.

        on_ready(start, stop), if given, is called for entries of flat_grads as soon as they are final, so
        that sending them can begin. All other ranges are final when this returns.

        Gradient accumulation over n batches: scale=1/n, accumulate on all but the first. The activations of
        the last forward pass are consumed, to free memory as early as possible.
        Raises RuntimeError unless forward(tokens, targets) came first.
        """
        if self._saved is None:
            raise RuntimeError("GPT2.backward: call forward(tokens, targets) first, once for each backward")
        saved, self._saved = self._saved, None
        if self.program is not None:
            self.program.backward(self._scale(scale), saved, self._grad_buffers(), accumulate)
            return
        grads = Gradients(self.grads, accumulate, on_ready, self.description)
        backward_pass(saved, scale, grads, self.description, self.layers)

    def first_non_finite(self, tokens: ArrayLike, targets: ArrayLike = None) -> str | None:
        """The first layer whose output holds a nan or an infinity, such as "block 3 fc (matmul)", or None.

        Runs the forward pass again and checks every layer: for diagnosis after the loss is not finite.
        """
        tokens, targets = checked(self.config, tokens, targets)
        return first_non_finite(self.params, self.layers, self.description, tokens, targets)


def checked(config: GPT2Config, tokens: Any, targets: Any = None) -> tuple[np.ndarray, Any]:
    """tokens and targets as arrays (B, T) that a model of this config can take, or ValueError."""
    tokens = _checked_ids("tokens", tokens, config)
    check_ids("GPT2.forward", "tokens", tokens, config.vocab_size)
    if targets is None:
        return tokens, None
    targets = _checked_ids("targets", targets, config)
    check_targets("GPT2.forward", targets, config.vocab_size)
    if targets.shape != tokens.shape:
        raise ValueError(
            f"GPT2.forward: targets has shape {targets.shape}, expected {tokens.shape} to match tokens"
        )
    return tokens, targets


def _checked_ids(name, ids, config):
    ids = np.asarray(ids)
    if ids.ndim != 2 or ids.size == 0:
        batch = f"; np.array({name})[None] is a batch of one" if ids.ndim == 1 and ids.size else ", not empty"
        raise ValueError(f"GPT2.forward: {name} has shape {ids.shape}, expected (B, T){batch}")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"GPT2.forward: {name} has dtype {ids.dtype}, expected integers")
    if ids.shape[1] > config.block_size:
        raise ValueError(
            f"GPT2.forward: {name} has T={ids.shape[1]} positions, more than "
            f"block_size {config.block_size}; pass shorter sequences"
        )
    return ids


def _repeated_block(d: Description, divisors: list[np.ndarray]) -> Callable:
    """block_forward without what it saves, recorded once: GPT-2's blocks are alike.

    divisors   of attention's scores in all blocks, an array (L,), or none

    A user's own layers may not be: they may count their calls.
    """
    names = d.block_tensors

    def block(x, *arrays):
        params = {name: [tensor] for name, tensor in zip(names, arrays)}
        return block_forward(x, params, 0, d, d.written, arrays[len(names) :])[0]

    inputs = ("x", *names, *("divisor" for _ in divisors))
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in inputs]
    vars(block)["__signature__"] = inspect.Signature(parameters)  # names its inputs
    once = ad.repeated(block)

    def run_block(x, params, l, d, layers):
        return once(x, *(params[name][l] for name in names), *(a[l : l + 1] for a in divisors)), {}

    return run_block
