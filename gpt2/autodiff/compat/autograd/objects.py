"""Derivatives with respect to objects of classes registered by Box.register and VSpace.register.

A function reads such an object through primitives, as with autograd: each takes the object and returns
numbers. The function runs once to collect these numbers, and once more to be recorded as a function of them.
The rules of the primitives then turn their gradients into objects, which the vector space of the class adds
up.
"""

from __future__ import annotations

from builtins import type as class_of
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...record.value import Recorded
from ...same import same_items
from ...transforms.vjp import vjp as reverse
from ...tree import flatten

BOXES: dict[type, type] = {}  # class of objects -> the class of their boxes
SPACES: dict[type, Callable] = {}  # class of objects -> function from an object to its vector space
_PLAIN = (np.ndarray, np.generic, int, float, complex, str, bytes, tuple, list, dict, set, Recorded)


def enter(table: dict, what: str, value_type: Any, maker: Any) -> None:
    """Register a class other than numbers, arrays and containers, which need no registration."""
    if not isinstance(value_type, type) or issubclass(value_type, _PLAIN) or value_type is object:
        raise NotImplementedError(
            f"{what}({getattr(value_type, '__name__', value_type)}): derivatives are taken of numbers, "
            "arrays and trees of them as they are; docs/autodiff.md says which classes are trees"
        )
    table[value_type] = maker


def is_object(x: Any) -> bool:
    """Whether x is of a registered class."""
    return class_of(x) in BOXES


def is_box(x: Any) -> bool:
    """Whether x is a box of an object."""
    return bool(BOXES) and "_tape" in getattr(x, "__dict__", ()) and class_of(x) in BOXES.values()


def refuse(x: Any) -> None:
    if is_object(x) or is_box(x):
        raise NotImplementedError(
            f"derivatives with respect to a {class_of(x).__name__}, a registered class: grad, value_and_grad "
            "and make_vjp have them, one at a time and of first order"
        )


class Call(NamedTuple):
    """A call of a primitive that got the object."""

    primitive: Any
    places: list[int]  # positions of the object among the arguments
    args: tuple
    kwargs: dict
    ans: Any

    def is_like(self, primitive: Any, places: list[int], args: tuple, kwargs: dict) -> bool:
        if self.primitive is not primitive or self.places != places or list(self.kwargs) != list(kwargs):
            return False
        return same_items([*self.args, *self.kwargs.values()], [*args, *kwargs.values()])


class Tape:
    """The calls of primitives in the first run, with their results; the second run gets `answers_given`."""

    def __init__(self, x: Any):
        self.x = x
        self.calls: list[Call] = []
        self.answers_given: list | None = None
        self.at = 0

    def box(self) -> Any:
        box = object.__new__(BOXES[class_of(self.x)])
        box._value, box._tape = self.x, self
        return box

    def answers(self, primitive: Any, args: tuple, kwargs: dict) -> Any:
        places = [i for i, x in enumerate(args) if is_box(x)]
        plain = tuple(x._value if is_box(x) else x for x in args)
        self._check(primitive, places, args, kwargs)
        if self.answers_given is None:
            ans = _numbers(primitive, primitive.fun(*plain, **kwargs))
            self.calls.append(Call(primitive, places, plain, kwargs, ans))
            return ans
        self.at += 1
        call = self.calls[self.at - 1] if self.at <= len(self.calls) else None
        if call is None or not call.is_like(primitive, places, plain, kwargs):
            self.differs(primitive.__name__)
        return self.answers_given[self.at - 1]

    def differs(self, name: str) -> None:
        raise NotImplementedError(
            f"{name}: a function of a {class_of(self.x).__name__} runs twice, with other calls each time. "
            "It has to call the same primitives with the same arguments each time"
        )

    def _check(self, primitive: Any, places: list[int], args: tuple, kwargs: dict) -> None:
        name = class_of(self.x).__name__
        if any(args[i]._tape is not self for i in places):
            raise NotImplementedError(f"{primitive.__name__}: derivatives of derivatives by a {name}")
        if any(class_of(v) is Recorded for v in flatten((args, kwargs))[0]):
            raise NotImplementedError(
                f"{primitive.__name__}: it was given a {name} and a number that is differentiated as well; "
                "one of the two can be"
            )

    def pulled(self, grads: list) -> Any:
        """The gradient by the object, from the gradients by the results of its primitives."""
        space = SPACES[class_of(self.x)](self.x)
        total = None
        for call, g in zip(self.calls, grads):
            rule = call.primitive.vjp
            if rule is None:
                name = call.primitive.__name__
                raise NotImplementedError(f"the primitive {name} has no rule: defvjp sets it")
            for d in rule(call.places, call.ans, call.args, call.kwargs)(g):
                if d is not None:
                    total = d if total is None else space.add(total, d)
        return space.zeros() if total is None else total


def _numbers(primitive: Any, ans: Any) -> Any:
    is_number = isinstance(ans, (int, float, complex, np.generic, np.ndarray))
    if not is_number or np.asarray(ans).dtype.kind not in "biufc":
        raise NotImplementedError(
            f"{primitive.__name__} gives a {class_of(ans).__name__} of an object of a registered class: only "
            "numbers and arrays are followed from there on"
        )
    return ans if np.asarray(ans).dtype.kind in "fc" else np.asarray(ans, float)[()]


def answered(primitive: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a primitive called with a box."""
    return next(x for x in args if is_box(x))._tape.answers(primitive, args, kwargs)


def make_vjp(fun: Callable, x: Any, seen: Callable = lambda ans: ans) -> tuple[Callable, Any]:
    """(vjp, seen(fun(x))) of an object. vjp takes a value in the shapes of the result."""
    if class_of(x) not in SPACES:
        name = class_of(x).__name__
        raise NotImplementedError(f"{name} has a Box, and no VSpace: VSpace.register names it")
    tape = Tape(x)
    fun(tape.box())

    def of_answers(answers):
        tape.answers_given, tape.at = answers, 0
        ans = seen(fun(tape.box()))
        if tape.at != len(tape.calls):
            tape.differs(getattr(fun, "__name__", "f"))
        return ans

    ans, pull = reverse(of_answers, [call.ans for call in tape.calls])

    def vjp(g):
        return tape.pulled(pull(g)[0])

    return vjp, ans
