"""Derivatives with respect to objects of classes registered by Box.register and VSpace.register.

A function reads such an object through primitives, as with autograd: each takes the object and returns
numbers. The function runs once to collect these numbers, and once more to be recorded as a function of them.
The rules of the primitives then turn their gradients into objects, which the vector space of the class adds
up.
"""

from __future__ import annotations

from builtins import type as class_of
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...record.value import Recorded
from ...same import same
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
    return class_of(x) in BOXES


def is_box(x: Any) -> bool:
    """Whether x is a box of an object."""
    return bool(BOXES) and "_tape" in getattr(x, "__dict__", ()) and class_of(x) in BOXES.values()


class Tape:
    """The calls of primitives that get an object.

    calls   (primitive, positions of the object, arguments, their names and values by name) of the first run
    given   in the second run, an iterator over pairs of a call and the result that it gets
    """

    def __init__(self, x: Any):
        self.x = x
        self.calls: list[tuple] = []
        self.results: list = []
        self.given: Iterator | None = None

    def box(self) -> Any:
        box = object.__new__(BOXES[class_of(self.x)])
        box._value, box._tape = self.x, self
        return box

    def result(self, primitive: Any, args: tuple, kwargs: dict) -> Any:
        name, kind = primitive.__name__, class_of(self.x).__name__
        places = tuple([i for i, x in enumerate(args) if is_box(x)])
        if any(args[i]._tape is not self for i in places):
            raise NotImplementedError(f"{name}: derivatives of derivatives by a {kind}")
        if any(class_of(v) is Recorded for v in flatten((args, kwargs))[0]):
            raise NotImplementedError(
                f"{name}: it was given a {kind} and a number that is differentiated as well; one of the two "
                "can be"
            )
        args = tuple([self.x if i in places else x for i, x in enumerate(args)])
        call = primitive, places, args, tuple(kwargs), tuple(kwargs.values())
        if self.given is not None:
            before, result = next(self.given, (None, None))
            return result if same(call, before) else self.differs(name)
        ans = primitive.fun(*args, **kwargs)
        is_number = isinstance(ans, (int, float, complex, np.generic, np.ndarray))
        if not is_number or np.asarray(ans).dtype.kind not in "biufc":
            raise NotImplementedError(
                f"{name} gives a {class_of(ans).__name__} of an object of a registered class: only numbers "
                "and arrays are followed from there on"
            )
        self.calls.append(call)
        self.results.append(ans if np.asarray(ans).dtype.kind in "fc" else np.asarray(ans, float)[()])
        return self.results[-1]

    def differs(self, name: str) -> None:
        raise NotImplementedError(
            f"{name}: a function of a {class_of(self.x).__name__} runs twice, with other calls each time. "
            "It has to call the same primitives with the same arguments each time"
        )


def make_vjp(fun: Callable, x: Any, seen: Callable = lambda ans: ans) -> tuple[Callable, Any]:
    """(vjp, seen(fun(x))) of an object. vjp takes a value in the shapes of the result."""
    if class_of(x) not in SPACES:
        name = class_of(x).__name__
        raise NotImplementedError(f"{name} has a Box, and no VSpace: VSpace.register names it")
    tape = Tape(x)
    fun(tape.box())

    def of_results(results):
        tape.given = iter([*zip(tape.calls, results)])
        ans = seen(fun(tape.box()))
        if next(tape.given, None) is not None:
            tape.differs(getattr(fun, "__name__", "f"))
        return ans

    ans, pull = reverse(of_results, tape.results)

    def vjp(g):
        """The gradient by the object, from the gradients by the results of its primitives."""
        space, total = SPACES[class_of(x)](x), None
        for (primitive, places, args, *by_name), result, d in zip(tape.calls, tape.results, pull(g)[0]):
            if primitive.vjp is None:
                raise NotImplementedError(f"the primitive {primitive.__name__} has no rule: defvjp sets it")
            for part in primitive.vjp(list(places), result, args, dict(zip(*by_name)))(d):
                total = total if part is None else space.mut_add(total, part)
        return space.zeros() if total is None else total

    return vjp, ans
