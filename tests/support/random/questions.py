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
from tests.support.tables import sections

GRAMMAR = sections(__file__)
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
FUNCTIONS = [
    f"{module}.{name}"
    for module, namespace in (
        ("np", np),
        ("np.linalg", np.linalg),
        ("np.fft", np.fft),
        ("np.random", np.random),
    )
    for name in sorted(namespace.__all__)  # NumPy makes its own of a set
    if callable(getattr(namespace, name)) and not isinstance(getattr(namespace, name), type)
]
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
        test = rng.choice(GRAMMAR["tests"]).format(f=name)
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
    question = rng.choice(GRAMMAR["questions"]).format(**words)
    made = rng.choice(GRAMMAR["made"])
    return f"""{HEAD}
def f(x):
    v = {made}
    answers.append({question})
    return x * 1
args, kwargs = ({rng.choice(GRAMMAR["values"])},), {{}}
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
