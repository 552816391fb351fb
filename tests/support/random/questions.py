"""What may be asked of a value or a function while something is recorded, against the answer of plain Python.

    check(write(seed))      "right", "refused", or "undecided", where the program does not run as it is

A question is about one kind of number, NumPy scalar or array, or what an operation makes of it; or whether a
function of NumPy's is the one that was passed, held or imported before.
"""

import collections.abc
import numbers
import random
import typing

import numpy as np

from gpt2 import autodiff as ad


def _split(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split("|")]


VALUES = _split("""
2.5 | -0.0 | 1.5 + 2j | 3 | True | np.float64(1.5) | np.float32(2) | np.float16(2) | np.complex64(1j)
np.complex128(1 + 1j) | np.int64(3) | np.int8(1) | np.uint16(7) | np.bool_(True) | np.array(2.0)
np.array(3) | np.array(1j) | np.array(True) | np.array([1.0, 2.0]) | np.array([1, 2]) | np.zeros((2, 3))
np.ones((2, 2), np.float32) | np.array([1j, 2.0]) | np.array([True, False]) | np.zeros(0)
np.zeros((1,), np.int8)
""")
MADE = _split("""
x | x | x | x * 2 | x + x | -x | +x | abs(x) | x ** 2 | x / 2 | x // 2 | x % 2 | x == x | x > 0 | x.real
x.imag | x.conjugate() | x.item() | x[0] | x[()] | x[..., None] | x[:1] | x.T | x.copy() | x.tolist()
x.flat | x.astype(np.float32) | x.sum() | x.max() | x.ravel() | x.shape | x.dtype | x.size | np.sum(x)
np.mean(x) | np.sqrt(x) | np.asarray(x) | np.array(x) | np.real(x) | np.conjugate(x)
np.where(x == x, x, x) | np.max(x) | np.float64(x) | round(x, 1) | divmod(x, 2) | np.square(x)
np.maximum(x, 1) | np.dot(x, x) | np.full(2, x) | np.stack([x, x]) | [*x] | x.__class__(1)
np.take(x, 0) | np.cumsum(x) | np.round(x, 1) | x.__copy__() | x.reshape(-1) | np.expand_dims(x, 0)
1 - x | 2.0 ** x
""")
TYPES = {
    **{t.__name__: t for t in (float, int, complex, bool, object, list, tuple, str)},
    **{
        f"np.{t}": getattr(np, t)
        for t in "ndarray generic number floating inexact float64 float32 int64".split()
    },
    **{n: getattr(collections.abc, n) for n in collections.abc.__all__},
    **{n: getattr(numbers, n) for n in numbers.__all__},
    **{n: getattr(typing, n) for n in typing.__all__ if n.startswith("Supports")},
}
OURS = "node value root weak is_array snapshot view_of _rec _node _value numpy detach".split()
ATTRIBUTES = sorted({*OURS, *(n for t in (float, complex, int, np.ndarray, np.float64) for n in dir(t))})
QUESTIONS = _split("""
hasattr(v, {name!r}) | hasattr(v, {name!r}) | getattr(v, {name!r}, None) is None | {name!r} in dir(v)
isinstance(v, {type}) | isinstance(v, ({type}, {other})) | issubclass(v.__class__, {type}) | callable(v)
tried(len, v) | tried(iter, v) | tried(reversed, v) | tried(hash, v) | tried(next, v) | tried(vars, v)
tried(lambda v: 1 in v, v) | tried(lambda v: v[0], v) | tried(lambda v: [*v], v)
tried(lambda v: v(), v) | tried(operator.index, v) | tried(operator.length_hint, v)
v.__class__.__name__ | v.__class__ is {type} | v.__class__ in ({type}, {other}) | np.isscalar(v)
np.iterable(v) | np.ndim(v) | np.shape(v) | np.size(v) | np.iscomplexobj(v) | np.isrealobj(v)
np.result_type(np.int8, *[v]) if hasattr(v, 'dtype') else 0 | np.result_type(v, np.float32)
np.can_cast(v.dtype, np.float32) | np.issubdtype(v.dtype, np.floating) | matched(v)
type(v) is {type} | type(v) is bool | type(v).__name__ | str(type(v)) | type(v) in {{{type}, {other}}}
{{float: 1, np.ndarray: 2, bool: 3}}.get(type(v)) | hash(type(v)) == hash({type}) | same({type}, type(v))
{{*map(type, [v])}} == {{{type}}} | [*map(type, [v])][0] is {type} | kind_is(v, {type})
isinstance(v, {type}) and not hasattr(v, {name!r}) | np.min_scalar_type(v)
""")
FUNCTIONS = [
    f"{module}.{name}"
    for module, namespace in (
        ("np", np),
        ("np.linalg", np.linalg),
        ("np.fft", np.fft),
        ("np.random", np.random),
    )
    for name in namespace.__all__
    if callable(getattr(namespace, name)) and not isinstance(getattr(namespace, name), type)
]
TESTS = _split("""
how is {f} | {f} is how | how is not {f} | how == {f} | how != {f} | how in ({f}, None)
how in [None, {f}] | {{{f}: 1}}.get(how) | TABLE.get({f}) | {f} in TABLE | id(how) == id({f})
operator.is_(how, {f}) | same(how, {f}) | (lambda g: g is how)({f}) | hash(how) == hash({f})
how.__name__ == {f}.__name__ | repr(how) == repr({f}) | type({f}) is type(how) | case(how)
HOLDER.how is {f} | FUNCTIONS[0] is {f} | how is FUNCTIONS[0] | how is other
isinstance({f}, type(how)) | {{*FUNCTIONS, {f}}} == {{*FUNCTIONS}}
""")
HEAD = """
import operator, numpy as np
def tried(f, v):
    try:
        f(v)
    except (TypeError, AttributeError, IndexError) as error:
        return [t.__name__ for t in (TypeError, AttributeError, IndexError) if isinstance(error, t)]
    return "works"
def matched(v):
    match v:
        case bool(): return "bool"
        case int(): return "int"
        case float(): return "float"
        case complex(): return "complex"
        case np.ndarray(): return "array"  # from NumPy 2.5 on it matches [*_] too: docs/limits.md
        case [*_]: return "sequence"
        case {}: return "mapping"
    return "other"
def same(a, b):
    return a is b
def kind_is(v, t):
    kind = type(v)
    return kind is t
"""


def write(seed: int) -> str:
    """The source of a function f that notes the answer, and its arguments."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        name, other = rng.choice(FUNCTIONS), rng.choice(FUNCTIONS)
        held = rng.choice((name, name, other))
        test = rng.choice(TESTS).format(f=name)
        given, arguments = rng.choice(
            (
                ("how", f"(1.5, {held}), {{}}"),
                (f"how={held}", "(1.5,), {}"),
                ("*, how", f"(1.5,), dict(how={held})"),
            )
        )
        return f"""{HEAD}
from types import SimpleNamespace
FUNCTIONS, TABLE, HOLDER, other = [{held}], {{{held}: 2}}, SimpleNamespace(how={held}), {held}
def case(how):
    match how:
        case {name}: return 1
    return 2
def f(x, {given}):
    answers.append({test})
    return x * 1.0
args, kwargs = {arguments}
"""
    types = rng.sample([*TYPES], 2)
    words = dict(name=rng.choice(ATTRIBUTES), type=types[0], other=types[1])
    question = rng.choice(QUESTIONS).format(**words)
    made = rng.choice(MADE)
    return f"""{HEAD}
def f(x):
    v = {made}
    answers.append({question})
    return x * 1
args, kwargs = ({rng.choice(VALUES)},), {{}}
"""


def check(source: str) -> str:
    """How it went; raises AssertionError with the source where the answer differs."""
    answers: list = []
    names = {**TYPES, "answers": answers}
    exec(source, names)
    f, args, kwargs = names["f"], names["args"], names["kwargs"]
    try:
        f(*args, **kwargs)
    except Exception:
        return "undecided"
    (wanted,) = answers
    try:
        ad.compile(f)(*args, **kwargs)
    except (ad.AutodiffError, AttributeError, TypeError):
        return "refused"
    for got in answers[1:]:
        assert type(got) is type(wanted) and got == wanted, f"{got} for {wanted} of{source[len(HEAD) :]}"
    return "right"
