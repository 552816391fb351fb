"""Checks that an own layer or block fits into the model. One that does not is a UserError of one line.

An own layer replaces one of GPT-2's. It takes the same inputs, then tensors by name: those of the layer that
it replaces, some of which it may leave out (a normalisation without `bias` makes a model without these
biases), and those that it declares. Its signature is inspected, and it is run once on small inputs, before
anything else is computed or written. `watched` and BlockTensors check each run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2.errors import UserError, reason
from gpt2.layers import LAYERS, Layer
from gpt2.layers.layer import Parameter
from gpt2.model.config import DATA, PLACES, STATIC, GPT2Config

Layers = Mapping[str, Layer]


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def called(slot: str, layer: Layer) -> str:
    return f"layers[{slot!r}], {name_of(layer.forward)}"


def required_function(what: str, given: Any) -> Callable:
    if not callable(given):
        raise UserError(f"{what}: is {given!r}, expected a function")
    return given


def layer_of(slot: str, given: Any) -> Layer:
    """The Layer that a user gives, uncompiled; a forward function is a Layer without a backward."""
    if isinstance(given, Layer):
        return getattr(given, "written", None) or given
    return Layer(name_of(required_function(f"layers[{slot!r}]", given)), given, None)


def declared_by(what: str, parameters: Callable | None, config: GPT2Config) -> dict[str, Parameter]:
    """name -> Parameter of those that an own layer or block declares."""
    if parameters is None:
        return {}
    try:
        found = list(parameters(config))
    except (Exception, SystemExit) as error:
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
        if not (p.starts in ("normal", "residual", "fan_in") or isinstance(p.starts, int | float)):
            raise UserError(
                f"{what}: its parameter {p.name!r} starts as {p.start!r}; expected normal, residual, "
                "fan_in, a number"
            )
    names = [p.name for p in found]
    if len({*names}) < len(names):
        raise UserError(f"{what}: declares a parameter twice: {', '.join(names)}")
    return dict(zip(names, found))


def arguments_of(
    slot: str, layer: Layer, declared: Mapping[str, Parameter]
) -> tuple[list[str], list[str], Mapping[str, Parameter]]:
    """(tensors that the layer takes, keywords that the model passes, declared), by its signature."""
    what, data = called(slot, layer), DATA[slot]
    place = next(place for place in PLACES.values() if place.layer == slot)
    positional, static = [], []
    for p in inspect.signature(layer.forward).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise UserError(f"{what}: takes {p}; a layer names each of its arguments")
        (static if p.kind == p.KEYWORD_ONLY else positional).append(p)
    if len(positional) < len(data):
        raise UserError(f"{what}: takes {len(positional)} arguments, the model passes {', '.join(data)}")
    tensors = _tensors_taken(what, positional[len(data) :], [*place.tensors, *declared])
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


def _tensors_taken(what: str, taken: Sequence[inspect.Parameter], known: Sequence[str]) -> list[str]:
    """The names of the arguments that are tensors of the model; they come first."""
    tensors: list[str] = []
    for k, p in enumerate(taken):
        if p.name in known:
            if k != len(tensors):
                raise UserError(
                    f"{what}: its tensor {p.name!r} comes after an argument that is no tensor; put it first"
                )
            tensors.append(p.name)
        elif p.default is p.empty:
            raise UserError(
                f"{what}: takes {p.name!r}, which is not a parameter of this model"
                + (f" (there are {', '.join(known)})" if known else "")
                + "; declare it: Layer(..., parameters=lambda config: [Parameter(name, shape)])"
            )
    return tensors


def expected_shape(slot: str, config: GPT2Config, inputs: Sequence) -> tuple[int, ...]:
    """The shape that a layer's output must have."""
    if slot == "encoder":
        return (*inputs[0].shape, config.n_embd)
    if slot == "matmul":
        return (*inputs[0].shape[:-1], inputs[1].shape[0])
    if slot == "attention":
        return (*inputs[0].shape[:-1], config.n_embd)
    return inputs[1].shape if slot == "crossentropy" else inputs[0].shape


def fitting(what: str, out: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return `out` if it is an array of this shape and dtype, else raise UserError."""
    found = getattr(out, "shape", None), getattr(out, "dtype", None)
    if found != (shape, dtype):
        got = type(out).__name__ if any(x is None for x in found) else f"{found[1]} {found[0]}"
        hint = ""
        if found == (shape, np.float64):
            hint = "; NumPy's own float64 numbers widen it, Python's floats do not"
        raise UserError(f"{what}: returns {got}, expected {np.dtype(dtype)} {shape}{hint}")
    return out


def watched(slot: str, layer: Layer, config: GPT2Config) -> Callable:
    """The own layer's forward, which returns (out, saved) and raises UserError if the output does not fit."""
    what = called(slot, layer)

    def forward(*inputs, **static):
        result = layer.forward(*inputs, **static)
        out, saved = result if isinstance(result, tuple) and len(result) == 2 else (result, ())
        return fitting(what, out, expected_shape(slot, config, inputs), config.dtype), saved

    forward.__name__ = name_of(layer.forward)
    vars(forward)["__wrapped__"] = layer.forward  # whose signature names the inputs of its programs
    return forward


class BlockTensors(dict):
    """A block's tensors by name; records which are read. Raises UserError for an unknown name."""

    def __init__(self, what: str, tensors: Mapping[str, Any]):
        super().__init__(tensors)
        self.what, self.asked = what, set()

    def __getitem__(self, name):
        if name not in self:
            raise UserError(
                f"{self.what}: reads an unknown parameter {name!r}; there are {', '.join(self)}. "
                "Own ones are declared: Block(..., parameters=lambda config: [Parameter(name, shape)])"
            )
        self.asked.add(name)
        return super().__getitem__(name)


class _Functions(dict):
    """Layers by name as plain functions of their outputs alone."""

    def __missing__(self, name):
        raise UserError(f"a block asks for the layer {name!r}; there are {', '.join(self)}")


def plain(layers: Layers) -> Mapping[str, Callable]:
    """name -> a function that returns the layer's output alone."""

    def function(layer):
        return lambda *inputs, **static: layer.forward(*inputs, **static)[0]

    return _Functions({name: function(layers[name]) for name in LAYERS})


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Random numbers for a trial. A large tensor repeats a few of them, as a trial must be quick; their count
    is prime, so that no two rows are the same.
    """
    few = rng.standard_normal(min(math.prod(shape), 4093)).astype(dtype)
    return np.resize(few, shape)


def check_pure(
    what: str, forward: Callable, inputs: Sequence, shape: tuple[int, ...], dtype: DTypeLike
) -> np.ndarray:
    """The result of a forward. It is run twice: results must fit and be equal, and inputs unchanged."""
    before = [np.array(a) for a in inputs]
    with np.errstate(all="ignore"):
        try:
            first, second = (np.array(fitting(what, forward(*inputs), shape, dtype)) for _ in range(2))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            kinds = ", ".join(f"{a.dtype} {a.shape}" for a in inputs)
            raise UserError(f"{what}: fails for {kinds}: {type(error).__name__}: {reason(error)}") from None
    if any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, inputs)):
        raise UserError(f"{what}: writes to its arguments; a layer returns a new array")
    if not np.array_equal(first, second, equal_nan=True):
        raise UserError(
            f"{what}: gives another result each time; a layer is a pure function of its arguments"
        )
    return first


def try_layer(
    what: str, layer: Layer, inputs: Sequence, shape: tuple[int, ...], dtype: DTypeLike, static: dict
) -> None:
    """Run an own layer on these inputs (None: an argument is left out), and its backward if it has one."""
    present = [a for a in inputs if a is not None]

    def forward(*arrays):
        given = iter(arrays)
        return layer.forward(*(None if a is None else next(given) for a in inputs), **static)[0]

    out = check_pure(what, forward, present, shape, dtype)
    if layer.backward is not None:
        _try_backward(what, layer, inputs, out, static)


def _try_backward(what, layer, inputs, out, static):
    """Raise UserError unless the manual backward returns a gradient for each input."""
    _, saved = layer.forward(*inputs, **static)
    with np.errstate(all="ignore"):
        try:
            gradients = layer.backward(out, saved, **static)
        except (Exception, SystemExit) as error:
            raise UserError(f"{what}: its backward fails: {type(error).__name__}: {reason(error)}") from None
    wrong = ""
    if not isinstance(gradients, tuple):
        wrong = f"returns a {type(gradients).__name__}, expected a tuple of gradients"
    elif len(gradients) != len(inputs):
        wrong = f"returns {len(gradients)} gradients for {len(inputs)} inputs"
    if wrong:
        raise UserError(f"{what}: its backward {wrong}")
    for k, (g, a) in enumerate(zip(gradients, inputs)):
        if a is None or a.dtype.kind != "f":
            continue
        found = getattr(g, "dtype", type(g).__name__), getattr(g, "shape", "")
        if found != (a.dtype, a.shape):
            raise UserError(
                f"{what}: gradient {k} of its backward is {found[0]} {found[1]}, expected {a.dtype} {a.shape}"
            )
