"""Hidden constants: values that can be exchanged in a compiled program.

Recordings of one piece of code often differ only in floats and arrays that it read from outside, such as lam
in `for lam in grid: ad.grad(lambda w: loss(w, lam))(w)`. The second of them is compiled with a Hidden or
HiddenArray in place of each of these. What the compiler computes from one is hidden as well, and its
decisions that depend on one are noted on a Tape. With the values of a third recording the tape is replayed:
it returns the program's constants if all decisions are the same, else None. So the program with these
constants is the one that compiling the third recording would give, to the last bit.

Any other use raises TypeError: a Hidden cannot become a float, an array or a key of a dict. A recording whose
numbers are used like that is compiled with its constants.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

LARGEST = 1 << 16  # bytes of a hidden array: larger ones are constants

_local = threading.local()
# No end that emitters put behind a user's name: the second variable `hidden` is hidden_2
_NAME = re.compile(r"\bhidden_(\d+)_number\b")


class Tape:
    """How a program's constants follow from its hidden inputs, and which decisions depend on them.

    literals   texts of the constants that are not hidden: equal constants are one value to the compiler
    """

    def __init__(self, values: Sequence):
        self.n_inputs = len(values)
        # function, arguments, outcome of a decision or None
        self.steps: list[tuple[Callable, tuple, Any]] = []
        self.literals: set[str] = set()
        self._known: dict[str, Any] = {}  # step as a text -> its result
        # index of a hidden constant -> the first equal one; and the first ones by their texts
        self._first: dict[int, int] = {}
        self._keyed: dict[str, int] = {}
        self._count = 0
        self.inputs = [self._hidden(v) for v in values]

    def _hidden(self, value: Any) -> Hidden | HiddenArray:
        self._count += 1
        if type(value) is float:
            return Hidden(self, self._count - 1, value)
        if type(value) is np.ndarray and value.dtype.kind in "fc" and value.nbytes <= LARGEST:
            return HiddenArray(self, self._count - 1, value)
        raise TypeError(f"a hidden value became a {type(value).__name__}")

    def noted(self, function: Callable, args: tuple, decides: bool) -> Any:
        """function(*args): a hidden value, or a decision, which other values must not change."""
        places = tuple([(a.index, None) if type(a) in _HIDDEN else (None, a) for a in args])
        text = f"{function!r} {[text_of(a) if i is None else i for i, a in places]}"
        if text not in self._known:
            value = function(*[a.now if type(a) in _HIDDEN else a for a in args])
            self._known[text] = value if decides else self._hidden(value)
            self.steps.append((function, places, value if decides else None))
        return self._known[text]

    def key(self, x: Hidden | HiddenArray) -> str:
        """A text for a hidden constant: the same for equal ones."""
        self._first[x.index] = first = self._keyed.setdefault(text_of(x.now), x.index)
        return f"hidden_{first}_number"

    def values(self, inputs: Sequence) -> list | None:
        """All hidden values for these inputs, or None if another program would be compiled."""
        constants = list(inputs)
        try:
            for function, places, outcome in self.steps:
                value = function(*[c if i is None else constants[i] for i, c in places])
                if outcome is None:
                    constants.append(value)
                elif value != outcome:
                    return None
        except (ArithmeticError, TypeError):  # such as a number that became complex
            return None
        # The same of the values must be equal to each other, and none to another constant
        texts = {i: text_of(constants[i]) for i in self._first}
        different = {texts[i] for i in self._keyed.values()}
        if len(different) != len(self._keyed) or not different.isdisjoint(self.literals):
            return None
        return constants if all(texts[i] == texts[k] for i, k in self._first.items()) else None


class _Constant:
    """What is not known while a program is compiled. `now` is its value in this recording."""

    __slots__ = ("tape", "index", "now")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, tape: Tape, index: int, now: Any):
        self.tape, self.index, self.now = tape, index, now

    def __array__(self, *args, **kwargs):
        raise TypeError("a hidden constant is used as an array")

    def __str__(self):
        raise TypeError("a hidden constant is used as a text")

    def __format__(self, spec):
        return str(self)

    def __repr__(self):
        return self.tape.key(self)


class Hidden(_Constant):
    """A float."""

    __slots__ = ()
    __class__ = property(lambda self: float)  # type: ignore  # for isinstance. type(x) is Hidden


class HiddenArray(_Constant):
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    shape = property(lambda self: self.now.shape)
    dtype = property(lambda self: self.now.dtype)

    def __eq__(self, other):
        raise TypeError("a hidden array is compared")


_HIDDEN = (Hidden, HiddenArray)


def is_hidden(value: Any) -> bool:
    return type(value) in _HIDDEN


def text_of(value: Any) -> str:
    """A text that is the same for equal values alone: nan equals nan, and 0.0 does not equal -0.0."""
    if type(value) is not np.ndarray:
        return repr(value)
    digest = hashlib.blake2b(np.ascontiguousarray(value)).hexdigest()
    return f"{value.dtype} {value.shape} {digest}"


def _add_operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "pow"):
        op = getattr(operator, name)
        setattr(Hidden, f"__{name}__", lambda a, b, op=op: _arithmetic(op, a, b))
        setattr(Hidden, f"__r{name}__", lambda a, b, op=op: _arithmetic(op, b, a))
    for op in (operator.neg, operator.abs):
        setattr(Hidden, f"__{op.__name__}__", lambda a, op=op: computed(op, a))
    for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        setattr(Hidden, f"__{op.__name__}__", lambda a, b, op=op: _compared(op, a, b))
    Hidden.__bool__ = lambda a: decided(bool, a)


def _arithmetic(op: Callable, a: Any, b: Any) -> Any:
    return computed(op, a, b) if _are_numbers(a, b) else NotImplemented


def _compared(op: Callable, a: Any, b: Any) -> Any:
    return decided(op, a, b) if _are_numbers(a, b) else NotImplemented


def _are_numbers(*values: Any) -> bool:
    return all(type(v) in (Hidden, int, float) for v in values)


_add_operators()


def computed(function: Callable, *args: Any) -> Any:
    """function(*args), hidden if one of the arguments is."""
    return _noted(function, args, decides=False)


def decided(function: Callable, *args: Any) -> Any:
    """function(*args), which decides what the compiler does."""
    return _noted(function, args, decides=True)


def _noted(function: Callable, args: tuple, decides: bool) -> Any:
    tape = next((a.tape for a in args if type(a) in _HIDDEN), None)
    return function(*args) if tape is None else tape.noted(function, args, decides)


def known(value: Any) -> Any:
    """The value, which must not be hidden."""
    if is_hidden(value):
        raise TypeError("a hidden number is used as it is")
    return value


def is_whole(value: float) -> bool:
    return decided(_is_whole, value)


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and value == int(value)


def active() -> Tape | None:
    """The tape of the program that this thread compiles."""
    return getattr(_local, "tape", None)


@contextmanager
def compiling(tape: Tape) -> Iterator[None]:
    """A context in which this thread compiles a program with constants of this tape."""
    before, _local.tape = active(), tape
    try:
        yield
    finally:
        _local.tape = before


def named_in(source: str) -> dict[str, int]:
    """{name: index} of the hidden constants in a source."""
    return {f"hidden_{i}_number": int(i) for i in _NAME.findall(source)}
