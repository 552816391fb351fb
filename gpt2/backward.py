"""Choose, for each layer, the backward written by hand or the one derived by the compiler.

Both run as compiled programs. The hand-written functions go through the same compiler without the step that
differentiates, as C's hand-written and Enzyme's derived code both go through LLVM: so the layers stay pure
mathematics, and the comparison is fair. With compile=False every layer runs as it is written.
"""

from __future__ import annotations  # the compiler is loaded once it compiles

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2.errors import OptionError, UserError, suggestion
from gpt2.layers import LAYERS, Layer

MODES = ("manual", "auto")
AMPLE = 256 << 20  # bytes of activations that `whole` may keep where that is faster


def choose(
    spec: str = "manual",
    compile: bool = True,
    elementwise: str = "numpy",
    layers: Mapping[str, Layer] = LAYERS,
    on_set: Callable[[str, Layer], Layer] | None = None,
) -> Table:
    """The table of layers that a model runs with: a dict from name to Layer.

    spec is a mode for all layers, then exceptions, separated by commas: "manual", "auto", "whole",
    "manual,attention=auto". Raises UserError if a name or mode in it is unknown, or if a layer is manual and
    has no backward.
    With "whole" the model differentiates its loss as one program; the table serves everything else.

    Each is a ModelLayer; any Layer that is put into the table is wrapped in one.
    elementwise: "numpy", "numexpr" or "tuned" (see options_for), for all compiled programs
    layers: the model's, including the user's own; "block" is the user's block
    on_set: called with a layer that is put into the table later; returns the one that runs
    """
    if spec.strip() == "whole":
        spec = default_for(layers)
    default, *exceptions = [part.strip() for part in spec.split(",")]
    modes = dict.fromkeys(layers, _check_mode(default, spec))
    for part in exceptions:
        name, equals, mode = part.partition("=")
        if not equals or name not in layers:
            text = f"{part!r} is not LAYER=MODE, with LAYER one of {', '.join(layers)}"
            raise _bad_spec(spec, text + suggestion(name, layers))
        if name in within_block(layers):
            text = f"{name} runs only inside the block, and the model's own block is derived as a whole"
            raise _bad_spec(spec, text)
        modes[name] = _check_mode(mode, spec)
    for name, mode in modes.items():
        if mode == "manual" and layers[name].backward is None and name not in within_block(layers):
            problem = f"{name} is {layers[name].forward.__name__}, which has no backward by hand"
            raise _bad_spec(spec, f"{problem}; write one, or take {default_for(layers)!r}")
    options = options_for(elementwise)
    table = Table(on_set)
    by_hand = "compiled" if compile else "written"
    for name, mode in modes.items():
        how = "auto" if mode == "auto" else by_hand
        dict.__setitem__(table, name, running(layers[name], how, None if how == "written" else options))
    return table


WITHIN_BLOCK = ("attention", "gelu", "residual")  # what a user's block replaces


def within_block(layers: Mapping[str, Layer]) -> tuple[str, ...]:
    """The layers that run only inside a user's block, and are differentiated with it; none for GPT-2's."""
    return WITHIN_BLOCK if "block" in layers else ()


def default_for(layers: Mapping[str, Layer]) -> str:
    """The backward if none is named: manual, except for the layers that have none by hand."""
    derived = [name for name in layers if layers[name].backward is None and name not in within_block(layers)]
    return ",".join(["manual", *(f"{name}=auto" for name in derived)])


@dataclass(frozen=True, repr=False)
class ModelLayer(Layer):
    """A layer as a model runs it. Its backward takes two more arguments: out, a buffer or None for each
    gradient, written instead of a new array; and add=True, to add the gradients to the buffers.

    written   the layer that this is a form of
    how       "auto", "compiled" or "written", with these options of the compiler
    into      into(buffer, *inputs, **static) -> (out, saved): the forward with `out` written to the buffer if
              possible, an array of its shape and dtype; None if the layer takes no such argument
    narrowed  wanted -> the layer whose backward computes only the gradients that are wanted, once it is made
    """

    written: Layer | None = None
    how: str = "written"
    options: ad.Options | None = None
    into: Callable | None = None
    narrowed: dict[tuple[bool, ...], Layer] = field(default_factory=dict, compare=False)

    def __reduce__(self):
        return running, (self.written, self.how, self.options)

    def wanting(self, wanted: tuple[bool, ...]) -> Layer:
        if wanted not in self.narrowed:
            self.narrowed[wanted] = running(self.written, self.how, self.options, wanted, self.forward)
        return self.narrowed[wanted]


def uncompiled(layer: Layer) -> Layer:
    """The layer as written, if this is a compiled form of it."""
    return layer.written if isinstance(layer, ModelLayer) and layer.written is not None else layer


class Table(dict):
    """Layers by name, each a ModelLayer. `on_set` is called with a layer put in, and returns what runs."""

    def __init__(self, on_set: Callable[[str, Layer], Layer] | None = None):
        super().__init__()
        self.on_set = on_set

    def __setitem__(self, name, layer):
        layer = self.on_set(name, layer) if self.on_set else layer
        super().__setitem__(name, layer if isinstance(layer, ModelLayer) else as_written(layer))

    def __reduce__(self):
        return _table, (dict(self),)

    def _one_by_one(self, *args, **kwargs):
        raise TypeError("layers are changed one by one: model.layers[name] = layer")

    update = setdefault = pop = popitem = clear = __delitem__ = __ior__ = _one_by_one


def _table(layers: Mapping[str, Layer]) -> Table:
    """A table without a model, as unpickled."""
    table = Table()
    for name, layer in layers.items():
        table[name] = layer
    return table


def _check_mode(mode, spec):
    if mode == "whole":
        raise _bad_spec(spec, "whole cannot be combined, as the model is then one program")
    if mode not in MODES:
        text = f"{mode!r} is not one of {', '.join(MODES)}, whole"
        raise _bad_spec(spec, text + suggestion(mode, [*MODES, "whole"]))
    return mode


def _bad_spec(spec, reason):
    return OptionError(f"backward {spec!r}: {reason}", as_flag=f"--backward {spec}: {reason}")


def options_for(elementwise: str = "numpy") -> ad.Options:
    """The compiler's options. elementwise says what computes chains of elementwise operations: "numpy",
    "numexpr", or "tuned", which times each region both ways and keeps the faster. Results differ by rounding.
    math="fast": layers are sums and products of moderate numbers, which may be reordered; docs/promises.md
    bounds the rounding error.

    Raises UserError for any other value, or if numexpr is not installed.
    """
    try:
        return ad.Options(elementwise=elementwise, math="fast")
    except ValueError as error:
        raise OptionError(str(error), as_flag=f"--elementwise {elementwise}: {error}") from None
    except ImportError as error:  # "elementwise: the package numexpr is not installed; ..."
        raise OptionError(str(error), as_flag=f"--{error}") from None


def auto(layer: Layer, options: ad.Options | None = None) -> Layer:
    """The same layer with a backward that the compiler derives from layer.forward.

    What it saves between the two is its own choice.
    """
    return running(layer, "auto", options or options_for())


def compiled(layer: Layer, options: ad.Options | None = None) -> Layer:
    """The same layer with its two functions compiled as they are written."""
    return running(layer, "compiled", options or options_for())


def as_written(layer: Layer) -> Layer:
    """The same layer, run by NumPy line by line. The backward computes all gradients or is not run."""
    return running(layer, "written", None)


def running(
    layer: Layer,
    how: str,
    options: ad.Options | None,
    wanted: tuple[bool, ...] | None = None,
    forward: Callable | None = None,
) -> ModelLayer:
    """The ModelLayer of a layer.

    how       "auto", "compiled" or "written"
    wanted    whether the gradient of each input is wanted; None: all are
    forward   of the same ModelLayer with all gradients, if there is one
    """
    layer = uncompiled(layer)
    facts: dict[str, Any] = {f.name: getattr(layer, f.name) for f in fields(Layer)}
    if wanted is not None and not any(wanted):
        facts |= _forward_only(layer, how, options)
    elif how == "auto":
        facts |= _derived(layer, options, wanted)
    elif how == "compiled":
        facts |= _compiled(layer, options, wanted, forward)
    else:
        facts["backward"] = _backward_as_written(layer)
    return ModelLayer(**facts, written=layer, how=how, options=options)


def _forward_only(layer, how, options):
    """The functions of a layer if no gradient is wanted: nothing is saved."""

    def output(*inputs, **static):
        return layer.forward(*inputs, **static)[0]

    run = output if how == "written" else ad.Fixed(output, options, name=f"{layer.name}_output")

    def forward(*inputs, **static):
        return run(*inputs, **static), ()

    def backward(dout, saved, out=None, add=False, **static):
        raise RuntimeError(f"{layer.name}: backward called, but the layer was built without gradients")

    return {"forward": forward, "backward": backward}


def _derived(layer, options, wanted):
    pair = ad.FixedPair(layer.forward, options, name=layer.name, wanted=wanted)

    def backward(dout, saved, out=None, add=False, **static):
        return pair.backward(dout, saved, out, add)

    def into(buffer, *inputs, **static):
        return pair.forward(*inputs, out=buffer, **static)

    return {"forward": pair.forward, "backward": backward, "into": into, "kind": "auto"}


def _compiled(layer, options, wanted, forward):
    forward = forward or ad.Fixed(layer.forward, options, name=f"{layer.name}_forward")

    def into(buffer, *inputs, **static):
        return forward(*inputs, out=(buffer, None), **static)

    def separate(dout, *saved, **static):
        gradients = layer.backward(dout, saved, **static)
        # a gradient that is not returned is not computed
        return gradients if wanted is None else tuple(g if w else None for g, w in zip(gradients, wanted))

    gradients = ad.Fixed(separate, options, name=f"{layer.name}_backward")

    def backward(dout, saved, out=None, add=False, **static):
        return gradients(dout, *saved, out=out, add=add, **static)

    return {"forward": forward, "backward": backward, "into": into}


def _backward_as_written(layer):
    def backward(dout, saved, out=None, add=False, **static):
        gradients = layer.backward(dout, saved, **static)
        if out is None:
            return gradients
        for buffer, gradient in zip(out, gradients, strict=True):
            if buffer is not None:
                buffer[...] = buffer + gradient if add else gradient
        return tuple(g if b is None else b for b, g in zip(out, gradients))

    return backward


def whole(
    f: Callable[..., Any], options: ad.Options | None = None, wanted: Sequence[bool] | None = None
) -> ad.FixedPair:
    """f(*arrays) -> a scalar, differentiated as one program with the methods forward, backward and both.

    wanted   whether each argument's gradient is wanted; None: all
    """
    # Small models keep what is fastest (4x128, B=12, T=64, one thread: 0.92 of the time at rate 1.0). For
    # large ones memory counts more than the last per cent: at rate 1.0 elementwise values are recomputed
    # (124M, B=4, T=256: 0.3 GB instead of 1.0 beside the parameters, in the same time within the noise).
    return ad.FixedPair(f, options or options_for(), name="loss", rate=1.0, ample=AMPLE, wanted=wanted)


@contextmanager
def traced(compile: bool = True) -> Iterator[None]:
    """Within this context the first nan or infinity is a UserError that names the op and line that made it.

    compile   whether layers run as compiled programs, which are then checked op by op; otherwise NumPy raises
              at the line
    """
    try:
        if compile:
            with ad.detect_anomaly():
                yield
        else:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                yield
    except FloatingPointError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{os.path.relpath(frame.filename)}:{frame.lineno}: {error}, in `{frame.line}`"
        raise UserError(str(error) if compile else line) from error
