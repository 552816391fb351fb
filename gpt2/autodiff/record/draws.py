"""Random numbers as inputs of a program: what an np.random.Generator gives while a function is recorded.

The first time a function runs under observation, its generators are exchanged for objects of Drawing: those
among its arguments, and those that stand in its closures and globals, in those of the functions that these
lead to, and in the attributes of an object whose method it is. A Drawing draws from the same stream, and
notes the call. What it gives is an input of the graph; before each later run of the program the same calls
are made again, in the same order. So the numbers are fresh, the same that the function itself would get, and
the generator is left as the function would leave it.

A parameter of a distribution may be a recorded value. Where the numbers are a function of plain noise
(loc + scale * z) they are recorded as that. The noise of a gamma distribution depends on its shape: that is
computed before the program runs, as it was while recording, and the sample is an op with an implicit
derivative (ops/sampling.py).

What is not understood here, a method without a rule or a function that turns noise into a decision, has the
function recorded at each call, with plain generators.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..graph import Graph, Node
from ..ops import apply, input_node
from ..ops.interpret import evaluate_graph
from ..ops.sampling import gamma_slope  # noqa: F401  the rows are in the table then
from ..tree import Tree
from ..undo import undoing
from . import recording, source_lines
from .bytecode import reads
from .recording import NUMBERS, ActiveRecording
from .value import Recorded, as_node, value_of

# Methods that compute new numbers from their arguments, and change nothing but the stream
_PURE = (
    "beta binomial chisquare choice exponential f gamma geometric gumbel hypergeometric integers laplace "
    "logistic lognormal logseries multinomial multivariate_hypergeometric multivariate_normal "
    "negative_binomial noncentral_chisquare noncentral_f normal pareto permutation poisson power random "
    "rayleigh standard_cauchy standard_exponential standard_gamma standard_normal standard_t triangular "
    "uniform vonmises wald weibull zipf dirichlet"
).split()
# The position of an array that they are to write to
_OUT = {"standard_normal": 2, "random": 2, "standard_gamma": 3, "standard_exponential": 3}
_MOST = 1000  # functions and objects that are looked through for generators


class Draw:
    """One call of a generator's method. `params` are recorded values that it takes before its other
    arguments, `node` is the graph's input that stands for what it gives, and `value` what it gave at first.
    """

    def __init__(
        self, generator: np.random.Generator, name: str, params: tuple[Node, ...], args: tuple, kwargs: dict
    ):
        self.generator, self.name, self.params = generator, name, params
        self.args, self.kwargs = args, kwargs
        self.node: Any = None
        self.value: Any = None

    def again(self, params: Sequence = ()) -> Any:
        return getattr(self.generator, self.name)(*params, *self.args, **self.kwargs)


class Draws:
    """The draws of one recording, in order; and the state in which each generator was before."""

    def __init__(self):
        self.made: list[Draw] = []
        self.states: dict[int, tuple[np.random.Generator, dict]] = {}

    def add(self, run: ActiveRecording, draw: Draw, params: Sequence = ()) -> Recorded:
        """Adds what a new call gives as an input of the recording."""
        g = draw.generator
        if id(g) not in self.states:
            self.states[id(g)] = g, g.bit_generator.state
        value = draw.again(params)
        dtype = np.asarray(value).dtype
        if dtype.kind not in NUMBERS:
            raise UnsupportedError(f"rng.{draw.name} gives dtype {dtype}", source_lines.here())
        draw.value = np.asarray(value)
        draw.node = input_node(np.shape(value), dtype, draw.name)
        draw.node.loc = source_lines.here()
        self.made.append(draw)
        return Recorded(run, draw.node, value, owned=False)

    def rewind(self) -> None:
        """Put the generators back to where they were."""
        for g, state in self.states.values():
            g.bit_generator.state = state


def again(made: Sequence[tuple[int, Draw]], inputs: Sequence[Node], operands: list) -> None:
    """Draw once more. operands are those of the recorded graph, of which entry k is what each (k, draw) gave.

    A parameter is computed op by op, as it was while recording, so that it is the same to the last bit.
    """
    for k, draw in made:
        params = evaluate_graph(Graph(inputs, draw.params), operands) if draw.params else ()
        operands[k] = np.asarray(draw.again(params))


# --- the objects that stand in for generators -----------------------------------------------------------


@contextmanager
def plainly() -> Iterator[None]:
    """Within this context generators give plain numbers: for functions that run as one op."""
    before, recording.local.plain = recording.plain(), True
    try:
        yield
    finally:
        recording.local.plain = before


def taker() -> ActiveRecording | None:
    """The recording that takes what is drawn in this thread, the outermost."""
    run = recording.outermost()
    return None if run is None or run.draws is None or recording.plain() else run


def count() -> int:
    """How often something was drawn so far in the outermost recording."""
    run = recording.outermost()
    if run is None:
        return 0
    return len(run.drew_plainly) + (0 if run.draws is None else len(run.draws.made))


def _plainly(generator: np.random.Generator, name: str, args: Sequence, kwargs: dict) -> Any:
    """A call that gives plain numbers. A recording that has seen some may not be used again."""
    run = recording.outermost()
    if run is not None:
        run.drew_plainly.append(name)
    return getattr(generator, name)(*args, **kwargs)


class Drawing(np.random.Generator):
    """A generator of the user's while a function is recorded: the same stream, with every call noted. In a
    thread that does not record it is as the generator itself.
    """

    def __init__(self, generator: np.random.Generator):
        super().__init__(generator.bit_generator)
        self.generator = generator

    @property
    def bit_generator(self) -> Any:
        run = recording.outermost()
        if run is not None:
            run.drew_plainly.append("bit_generator")
        return self.generator.bit_generator

    def __reduce__(self):
        return self.generator.__reduce__()

    def __eq__(self, other):
        return plain_generator(other) is self.generator

    def __hash__(self):
        return hash(self.generator)

    # distributions that are functions of plain noise

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        if not _recorded(loc, scale):
            return _plain_call(self, "normal", loc, scale, size)
        _positive("scale", scale)
        return loc + scale * self.standard_normal(_size(size, loc, scale))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        if not _recorded(low, high):
            return _plain_call(self, "uniform", low, high, size)
        return low + (high - low) * self.random(_size(size, low, high))

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        if not _recorded(scale):
            return _plain_call(self, "exponential", scale, size)
        _positive("scale", scale)
        return scale * self.standard_exponential(_size(size, scale))

    # distributions whose noise depends on a parameter

    def standard_gamma(self, shape: Any, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        if not _recorded(shape):
            return _plain_call(self, "standard_gamma", shape, size, dtype, out)
        if out is not None:
            raise UnsupportedError("rng.standard_gamma(recorded, out=)", source_lines.here())
        return _implicit(self, "standard_gamma", "gamma_sample", shape, _size(size, shape), dtype)

    def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None) -> Any:
        if not _recorded(shape, scale):
            return _plain_call(self, "gamma", shape, scale, size)
        _positive("scale", scale)
        return scale * self.standard_gamma(shape, _size(size, shape, scale))

    def standard_t(self, df: Any, size: Any = None) -> Any:
        if not _recorded(df):
            return _plain_call(self, "standard_t", df, size)
        return _implicit(self, "standard_t", "t_sample", df, _size(size, df))

    def dirichlet(self, alpha: Any, size: Any = None) -> Any:
        if not _recorded(alpha):
            return _plain_call(self, "dirichlet", alpha, size)
        value = np.asarray(value_of(alpha))
        if value.ndim != 1 or not np.max(value, initial=0.0) >= 0.1:
            raise UnsupportedError(
                "rng.dirichlet has a derivative by a vector alpha of which an entry is 0.1 or more: below, "
                "NumPy draws it in another way",
                source_lines.here(),
            )
        rows = () if size is None else (size,) if np.ndim(size) == 0 else tuple(size)
        z = self.standard_gamma(alpha, (*rows, len(value)))
        return z * (1.0 / np.cumsum(z, axis=-1)[..., -1:])  # added up one by one, as NumPy does


def plain_generator(x: Any) -> Any:
    """The generator behind a Drawing; anything else as it is."""
    return x.generator if type(x) is Drawing else x


def _noted(name: str) -> Callable:
    def method(self, *args, **kwargs):
        return _plain_call(self, name, *args, **kwargs)

    method.__name__ = name
    return method


def _other(name: str) -> Callable:
    def method(self, *args, **kwargs):
        return _plainly(self.generator, name, args, kwargs)

    method.__name__ = name
    return method


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in Drawing.__dict__:
        setattr(Drawing, _name, (_noted if _name in _PURE else _other)(_name))


def _recorded(*params: Any) -> bool:
    return any(type(x) is Recorded for x in params) and taker() is not None


def _plain_call(drawing: Drawing, name: str, *args: Any, **kwargs: Any) -> Any:
    """A call whose arguments are all plain."""
    g, run = drawing.generator, taker()
    if run is None:
        return _plainly(g, name, args, kwargs)
    if any(type(x) is Recorded for x in (*args, *kwargs.values())):
        raise UnsupportedError(
            f"rng.{name} of a recorded value: there are derivatives by the parameters of normal, uniform, "
            "exponential, gamma, standard_gamma, standard_t and dirichlet alone",
            source_lines.here(),
        )
    position = _OUT.get(name, len(args))
    if kwargs.get("out") is not None or position < len(args) and args[position] is not None:
        return _plainly(g, name, args, kwargs)
    kept = [_own(x) for x in args], {k: _own(v) for k, v in kwargs.items()}
    return run.draws.add(run, Draw(g, name, (), *kept))


def _own(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _implicit(drawing: Drawing, name: str, op: str, param: Any, size: Any, *args: Any) -> Any:
    """A sample that depends on a recorded parameter: an input, as a function of that."""
    run = taker()
    if param._rec is not run or np.asarray(value_of(param)).dtype.kind != "f":
        raise UnsupportedError(
            f"rng.{name} of a value inside of another function that is derived, checkpointed or a loop's "
            "body: its noise depends on that value. Draw it outside, or take floats",
            source_lines.here(),
        )
    draw = Draw(drawing.generator, name, (param.node,), (size, *args), {})
    z = run.draws.add(run, draw, (value_of(param),))
    wide = np.broadcast_to(param, z.shape) if np.shape(value_of(param)) != z.shape else param
    wide = wide.astype(z.dtype) if z.dtype != wide.dtype else wide
    node = apply(op, as_node(run, wide), z.node)
    recording.label(node, source_lines.site())
    return Recorded(run, node, z.value, owned=False)


def _size(size: Any, *params: Any) -> Any:
    """The size of the noise: that of all parameters together, if none is asked for."""
    shapes = [np.shape(value_of(x)) for x in params]
    shape = np.broadcast_shapes(*shapes)
    if size is None:
        return shape or None
    asked = tuple(size) if np.ndim(size) else (int(size),)
    if np.broadcast_shapes(asked, shape) != asked:
        raise ValueError(
            f"Output size {asked} is not compatible with broadcast dimensions of inputs {shape}."
        )
    return asked


def _positive(name: str, x: Any) -> None:
    if np.any(np.asarray(value_of(x)) < 0):
        raise ValueError(f"{name} < 0")


# --- where generators are found -------------------------------------------------------------------------

_lock = threading.Lock()
_exchanged: dict[tuple, tuple] = {}  # (id of the holder, name) -> (for whom, holder, generator)


def seen(f: Callable, draws: Draws, run: Callable[[Draws], Any]) -> Any:
    """run(draws), during which the generators that f leads to are exchanged for objects of Drawing."""
    holders = list(_holders(f))
    put_back = functools.partial(_put_back, draws, holders)
    with undoing(put_back), undoing(put_back):
        _exchange(draws, holders)
        return run(draws)


def _exchange(draws: Draws, holders: Sequence) -> None:
    proxies: dict[int, Drawing] = {}
    with _lock:
        for holder, name, g in holders:
            whom, *_ = _exchanged.setdefault((id(holder), name), (set(), holder, g))
            whom.add(draws)
            if len(whom) == 1:
                _put(holder, name, proxies.setdefault(id(g), Drawing(g)))


def _put_back(draws: Draws, holders: Sequence) -> None:
    with _lock:
        for holder, name, g in holders:
            whom, *_ = _exchanged.get((id(holder), name), (None,))
            if whom is None:
                continue
            whom.discard(draws)
            if not whom:
                if type(_held(holder, name)) is Drawing:
                    _put(holder, name, g)
                del _exchanged[id(holder), name]


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        holder[name] = value


def _held(holder: Any, name: str) -> Any:
    try:
        return holder.cell_contents if isinstance(holder, types.CellType) else holder.get(name)
    except ValueError:  # an empty cell
        return None


def _holders(f: Any) -> Iterator[tuple[Any, str, np.random.Generator]]:
    """(cell or namespace, name, generator) that can be reached from f by the names in the code."""
    todo, met = [f], set()
    while todo and len(met) < _MOST:
        v = todo.pop()
        if id(v) in met:
            continue
        met.add(id(v))
        for holder, name, held in _around(v):
            held = plain_generator(held)
            if type(held) is np.random.Generator:
                if holder is not None and (id(holder), name) not in met:
                    met.add((id(holder), name))
                    yield holder, name, held
            elif isinstance(held, (types.FunctionType, types.MethodType, functools.partial)):
                todo.append(held)


def _around(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """(where it stands or None, its name there, what it is) for what v leads to."""
    if isinstance(v, types.FunctionType):
        if source_lines.is_own(v.__code__.co_filename):
            state = getattr(v, "__derived__", None)
            yield None, "", getattr(state, "f", None)
        elif not source_lines.is_inside(v.__code__.co_filename):
            yield from _variables(v)
    elif isinstance(v, types.MethodType):
        yield None, "", v.__func__
        yield from _attributes(v.__self__)
    elif isinstance(v, functools.partial):
        yield None, "", v.func
    else:
        yield None, "", type(v).__dict__.get("__call__")
        yield from _attributes(v)


def _variables(f: types.FunctionType) -> Iterator[tuple[Any, str, Any]]:
    codes = [f.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in reads(code).globals:
            if name in f.__globals__:
                yield f.__globals__, name, f.__globals__[name]
    for cell in f.__closure__ or ():
        yield cell, "", _held(cell, "")


def _attributes(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """Those of an object, and the functions of its class."""
    held = getattr(v, "__dict__", None)
    if type(held) is dict:
        for name, x in held.items():
            yield held, name, x
        for c in type(v).__mro__[:-1]:
            for x in c.__dict__.values():
                yield None, "", x


def exchanged_in(tree: Tree) -> Tree:
    """The tree of arguments, with a Drawing for each generator among the static values."""
    found: dict[int, Drawing] = {}

    def walk(spec):
        if not isinstance(spec, tuple):
            return spec
        if spec[0] == "static":
            g = spec[1]
            return ("static", found.setdefault(id(g), Drawing(g))) if type(g) is np.random.Generator else spec
        children = tuple(map(walk, spec[2]))
        return spec if all(a is b for a, b in zip(children, spec[2])) else (*spec[:2], children)

    spec = walk(tree.spec)
    return tree if spec is tree.spec else Tree(spec, tree.size)
