"""The seam: for each layer, the backward written by hand or the one derived by the compiler.

Both run as compiled programs. The hand-written functions go through the same compiler without the step that
differentiates, as C's hand-written and Enzyme's derived code both go through LLVM: so the layers stay pure
mathematics, and the comparison is fair. With compile=False every layer runs as it is written.
"""

from __future__ import annotations  # the compiler is loaded once it compiles

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
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
    changed: Callable[[str, Layer], Layer] | None = None,
) -> Table:
    """The table of layers that a model runs with: a dict from name to Layer.

    spec is a mode for all layers, then exceptions, separated by commas: "manual", "auto", "whole",
    "manual,attention=auto". Raises UserError where a word of it is not known, and where a layer that is to
    run by hand has no backward.
    With "whole" the model differentiates its loss as one program; the table is for what it does besides.

    Each is a ModelLayer; another Layer that is put into the table becomes one.
    elementwise: "numpy", "numexpr" or "tuned" (options_for), in whatever is compiled.
    layers: of the model, its own among them; "block" is a block of its own
    changed: called with a layer that is put into the table later; returns the one that runs
    """
    if spec.strip() == "whole":
        spec = default_for(layers)
    default, *exceptions = [part.strip() for part in spec.split(",")]
    modes = dict.fromkeys(layers, _checked(default, spec))
    for part in exceptions:
        name, equals, mode = part.partition("=")
        if not equals or name not in layers:
            text = f"{part!r} is not LAYER=MODE, with LAYER one of {', '.join(layers)}"
            raise _not_known(spec, text + suggestion(name, layers))
        if name in within_block(layers):
            raise _not_known(spec, f"{name} stands in the block alone, and the model's own is derived as one")
        modes[name] = _checked(mode, spec)
    for name, mode in modes.items():
        if mode == "manual" and layers[name].backward is None and name not in within_block(layers):
            problem = f"{name} is {layers[name].forward.__name__}, which has no backward by hand"
            raise _not_known(spec, f"{problem}; write one, or take {default_for(layers)!r}")
    options = options_for(elementwise)

    def written(layer):
        return compiled(layer, options) if compile else as_written(layer)

    table = Table(changed)
    for name, mode in modes.items():
        made = auto(layers[name], options) if mode == "auto" else written(layers[name])
        dict.__setitem__(table, name, made)
    return table


WITHIN_BLOCK = ("attention", "gelu", "residual")  # what a user's block replaces


def within_block(layers: Mapping[str, Layer]) -> tuple[str, ...]:
    """The layers that run in an own block alone, and are differentiated with it; none if it is GPT-2's."""
    return WITHIN_BLOCK if "block" in layers else ()


def default_for(layers: Mapping[str, Layer]) -> str:
    """The backward where none is named: manual, but for those layers that have none by hand."""
    derived = [name for name in layers if layers[name].backward is None and name not in within_block(layers)]
    return ",".join(["manual", *(f"{name}=auto" for name in derived)])


@dataclass(frozen=True, repr=False)
class ModelLayer(Layer):
    """A layer as a model runs it. Its backward takes two arguments more: out, a buffer or None for each
    gradient, written instead of a new array; and add=True, to add the gradients to what the buffers hold.

    written   the layer that this is a compiled form of
    narrowed  makes, of a tuple that says for each input whether its gradient is wanted, a layer whose
              backward computes these alone, and gives None for the others
    into      into(room, *inputs, **static) -> (out, saved): the forward with `out` in this memory where that
              can be, an array of its shape and dtype; None if the layer takes no such argument
    remade    (function, arguments) that make this layer again, where it is loaded from a pickle
    """

    written: Layer | None = None
    narrowed: Callable[[tuple[bool, ...]], Layer] | None = None
    into: Callable | None = None
    remade: tuple[Callable, tuple] | None = None

    def __reduce__(self):
        if self.remade is None:
            raise TypeError(f"layer {self.name}: cannot be pickled; pickle the layer it was made of")
        return self.remade

    def wanting(self, wanted: tuple[bool, ...]) -> Layer:
        return self if self.narrowed is None else self.narrowed(wanted)


def uncompiled(layer: Layer) -> Layer:
    """The layer with the functions that it was made of, where it is a compiled form of them."""
    return layer.written if isinstance(layer, ModelLayer) and layer.written is not None else layer


class Table(dict):
    """Layers by name, each a ModelLayer. `changed` is called with one that is put in, returning what runs."""

    def __init__(self, changed: Callable[[str, Layer], Layer] | None = None):
        super().__init__()
        self.changed = changed

    def __setitem__(self, name, layer):
        layer = self.changed(name, layer) if self.changed else layer
        super().__setitem__(name, layer if isinstance(layer, ModelLayer) else as_written(layer))

    def __reduce__(self):
        return _table, (dict(self),)

    def _one_by_one(self, *args, **kwargs):
        raise TypeError("layers are changed one by one: model.layers[name] = layer")

    update = setdefault = pop = popitem = clear = __delitem__ = __ior__ = _one_by_one


def _table(layers: Mapping[str, Layer]) -> Table:
    """A table that belongs to no model."""
    table = Table()
    for name, layer in layers.items():
        table[name] = layer
    return table


def _checked(mode, spec):
    if mode == "whole":
        raise _not_known(spec, "whole stands alone, as the model is then one program")
    if mode not in MODES:
        raise _not_known(
            spec, f"{mode!r} is not one of {', '.join(MODES)}, whole" + suggestion(mode, [*MODES, "whole"])
        )
    return mode


def _not_known(spec, reason):
    return OptionError(f"backward {spec!r}: {reason}", as_flag=f"--backward {spec}: {reason}")


def options_for(elementwise: str = "numpy") -> ad.Options:
    """The compiler's options. elementwise says what computes chains of elementwise operations: "numpy",
    "numexpr", or "tuned", which times each region both ways and keeps the faster. Results differ by rounding.
    math="fast": layers are sums and products of moderate numbers, and may be put together in other ways than
    they are written in; what that costs in digits is bounded in docs/promises.md.

    Raises UserError for another word, and where numexpr is wanted and not installed.
    """
    try:
        return ad.Options(elementwise=elementwise, math="fast")
    except ValueError as error:
        raise OptionError(str(error), as_flag=f"--elementwise {elementwise}: {error}") from None
    except ImportError as error:  # "elementwise: the package numexpr is not installed; ..."
        raise OptionError(str(error), as_flag=f"--{error}") from None


def replace_functions(
    layer: Layer,
    forward: Callable,
    backward: Callable,
    kind: str,
    narrowed: Callable | None = None,
    into: Callable | None = None,
    remade: tuple | None = None,
) -> ModelLayer:
    """The layer with these functions to run. narrowed, into, remade: see ModelLayer; what the first makes is
    made once.
    """
    facts = {f.name: getattr(layer, f.name) for f in fields(Layer)}
    facts |= {"forward": forward, "backward": backward, "kind": kind}
    written, narrowed = uncompiled(layer), narrowed and cache(narrowed)
    return ModelLayer(**facts, written=written, narrowed=narrowed, into=into, remade=remade)


def made_again(layer: ModelLayer) -> Layer:
    """The layer without the programs that it has compiled."""
    make, args = layer.remade or (lambda: layer, ())
    return make(*args)


def forward_alone(layer: Layer, forward: Callable) -> ModelLayer:
    """The layer where no gradient is wanted at all: nothing is saved. forward(*inputs) -> out."""

    def saving_nothing(*inputs, **static):
        return forward(*inputs, **static), ()

    def backward(dout, saved, out=None, add=False, **static):
        raise RuntimeError(f"{layer.name}: no gradient was wanted, and now one is asked for")

    return replace_functions(layer, saving_nothing, backward, layer.kind)


def compiled_forward(layer: Layer, options: ad.Options | None) -> ad.Fixed:
    """The layer's output alone, compiled."""

    def output(*inputs, **static):
        return layer.forward(*inputs, **static)[0]

    return ad.Fixed(output, options, name=f"{layer.name}_output")


def auto(layer: Layer, options: ad.Options | None = None) -> Layer:
    """The same layer with a backward that the compiler derives from layer.forward.

    What it saves between the two is its own choice.
    """
    options = options or options_for()

    def derived(wanted: tuple[bool, ...] | None) -> ModelLayer:
        if wanted is not None and not any(wanted):
            return forward_alone(layer, compiled_forward(layer, options))
        pair = ad.FixedPair(layer.forward, options, name=layer.name, wanted=wanted)

        def backward(dout, saved, out=None, add=False, **static):
            return pair.backward(dout, saved, out, add)

        def into(room, *inputs, **static):
            return pair.forward(*inputs, out=room, **static)

        whole: dict[str, Any] = {} if wanted else {"narrowed": derived, "remade": (auto, (layer, options))}
        return replace_functions(layer, pair.forward, backward, "auto", into=into, **whole)

    return derived(None)


def compiled(layer: Layer, options: ad.Options | None = None) -> Layer:
    """The same layer with its two functions compiled as they are written."""

    options = options or options_for()
    forward = ad.Fixed(layer.forward, options, name=f"{layer.name}_forward")

    def into(room, *inputs, **static):
        return forward(*inputs, out=(room, None), **static)

    def by_hand(wanted: tuple[bool, ...] | None) -> ModelLayer:
        if wanted is not None and not any(wanted):
            return forward_alone(layer, compiled_forward(layer, options))

        def separate(dout, *saved, **static):
            gradients = layer.backward(dout, saved, **static)
            # what is not needed is not a result of the program, and is not computed
            return gradients if wanted is None else tuple(g if w else None for g, w in zip(gradients, wanted))

        gradients = ad.Fixed(separate, options, name=f"{layer.name}_backward")

        def backward(dout, saved, out=None, add=False, **static):
            return gradients(dout, *saved, out=out, add=add, **static)

        whole: dict[str, Any] = (
            {} if wanted else {"narrowed": by_hand, "remade": (compiled, (layer, options))}
        )
        return replace_functions(layer, forward, backward, layer.kind, into=into, **whole)

    return by_hand(None)


def as_written(layer: Layer) -> Layer:
    """The same layer, run by NumPy line by line. Gradients are copied where they are wanted; a backward
    computes all of them, or is not run.
    """

    def backward(dout, saved, out=None, add=False, **static):
        gradients = layer.backward(dout, saved, **static)
        if out is None:
            return gradients
        for buffer, gradient in zip(out, gradients, strict=True):
            if buffer is not None:
                buffer[...] = buffer + gradient if add else gradient
        return tuple(g if b is None else b for b, g in zip(out, gradients))

    def narrowed(wanted):
        everything = as_written(layer)
        return everything if any(wanted) else forward_alone(layer, lambda *a, **k: layer.forward(*a, **k)[0])

    return replace_functions(
        layer, layer.forward, backward, layer.kind, narrowed, remade=(as_written, (layer,))
    )


def whole(
    f: Callable[..., Any], options: ad.Options | None = None, wanted: Sequence[bool] | None = None
) -> ad.FixedPair:
    """f(*arrays) -> a scalar, differentiated as one program: an object with forward, backward and both.

    wanted   for each argument whether its gradient is wanted; None: of all
    """
    # Small models keep what is fastest (4x128, B=12, T=64, one thread: 0.92 of the time at rate 1.0). Of
    # large ones memory counts more than the last per cent: at rate 1.0 elementwise values are computed again
    # (124M, B=4, T=256: 0.3 GB instead of 1.0 beside the parameters, in the same time within the noise).
    return ad.FixedPair(f, options or options_for(), name="loss", rate=1.0, ample=AMPLE, wanted=wanted)


def repeated(f: Callable) -> Callable:
    """f, a pure function of arrays that a model calls for each of its blocks: it is recorded once for all
    that are alike, where the whole model is differentiated as one program.
    """
    return ad.repeated(f)


@contextmanager
def traced(compile: bool = True) -> Iterator[None]:
    """Within this context the first nan or infinity is a UserError that names the op and line that made it.

    compile   whether layers run as compiled programs, which are then followed op by op; as they are written
              it is NumPy that stops at the line
    """
    try:
        if compile:
            with ad.detect_anomaly():
                yield
        else:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                yield
    except FloatingPointError as error:
        raise UserError(str(error) if compile else _line_of(error)) from error


def _line_of(error):
    """The innermost line of the error's traceback, and what NumPy said."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.relpath(frame.filename)}:{frame.lineno}: {error}, in `{frame.line}`"
