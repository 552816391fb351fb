"""Options of the compiler: passes to leave out, the backend of elementwise regions, `with options(...)`,
`with detect_anomaly()`; and its log, GPT2_AD_DEBUG.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar

# The names of the passes in gpt2/autodiff/passes, in the order in which their rules are tried: those that
# remove nodes first, then those that rearrange
PASSES = ("alike", "fold", "views", "assemble", "rows", "reduce", "matrix", "algebra", "cse", "dce")
STRICT, FAST = "strict", "fast"
MATH = (STRICT, FAST)
BACKENDS = ("numpy", "numexpr", "tuned")


@dataclass(frozen=True)
class Options:
    """How programs are compiled. Compared and hashed by value: programs are cached by their options.

    off      names of passes to leave out: some of Options.PASSES
    before   simplify what was recorded before it is differentiated, and not only the derivative

    math     "strict": what NumPy gives, to the bit where a value is returned or decides something, and within
             stated bounds elsewhere (docs/values.md). "fast": sums and products may be put together in other
             ways, as if numbers were real ones

    elementwise  what computes chains of elementwise ops in the emitted program, one of Options.BACKENDS:
                 "numpy", "numexpr", or "tuned", which times each region both ways. They differ by rounding

    Raises ValueError for an unknown name, and ImportError if numexpr is chosen and missing.

        >>> ad.Options(math="fast").math
        'fast'
        >>> try:
        ...     ad.Options(off=frozenset({"magic"}))
        ... except ValueError as error:
        ...     print("magic" in str(error))
        True
    """

    PASSES: ClassVar[tuple[str, ...]] = PASSES
    BACKENDS: ClassVar[tuple[str, ...]] = BACKENDS

    off: frozenset = frozenset()
    before: bool = True
    math: str = STRICT
    elementwise: str = "numpy"

    def __post_init__(self):
        object.__setattr__(self, "off", frozenset(self.off))
        unknown = sorted(self.off - set(PASSES))
        if unknown:
            raise ValueError(
                f"Options: no pass {unknown[0]!r} to switch off, expected one of {', '.join(PASSES)}"
            )
        for name, value, known in (("math", self.math, MATH), ("elementwise", self.elementwise, BACKENDS)):
            if value not in known:
                raise ValueError(f"Options: {name} is {value!r}, expected one of {', '.join(known)}")
        if self.elementwise != "numpy" and importlib.util.find_spec("numexpr") is None:
            raise ImportError(NO_NUMEXPR)


NO_NUMEXPR = "elementwise: the package numexpr is not installed; install it, or choose numpy"
DEFAULT = Options()


class Switch:
    """A setting of the current context (contextvars): other threads and asyncio tasks have their own."""

    def __init__(self, name: str):
        self._open: ContextVar[tuple[dict, ...]] = ContextVar(name, default=())
        self.open = self._open.get  # the fields of each `with`, the outermost first

    @contextmanager
    def turned(self, fields: dict) -> Iterator[None]:
        self._open.set((*self.open(), fields))
        try:
            yield
        finally:
            # By identity, as two generators may end in the order in which they began
            others = tuple([f for f in self.open() if f is not fields])
            if len(others) == len(self.open()):
                fields.clear()  # a generator that ends in another context: void where it began
            self._open.set(others)


_options = Switch("options")
_anomaly = Switch("detect_anomaly")
overrides = _options.open  # overrides(): something true unless this context has the default options
followed = _anomaly.open  # any(followed()): whether programs are followed


def current_options() -> Options:
    """The options of this context."""
    current = DEFAULT
    for fields in overrides():
        current = replace(current, **fields)
    return current


@contextmanager
def options(**fields: Any) -> Iterator[Options]:
    """Compile with other options: `with ad.options(off={"cse"}): ...`

    off      names of passes to leave out: some of Options.PASSES
    before   False: simplify only after differentiating, not what was recorded as well
    math     "fast": sums and products may be put together in other ways than NumPy would (docs/values.md)

    They hold in this context: other threads and asyncio tasks keep theirs, and a task that is started here
    inherits these. Programs are cached by their options.

        >>> with ad.options(off={"cse"}):
        ...     g = ad.grad(lambda x: np.sum(np.exp(x) * np.exp(x)))(np.zeros(2))
        >>> g
        array([2., 2.])
    """
    chosen = replace(current_options(), **fields)
    with _options.turned(fields):
        yield chosen


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Follow every program run in this context: AnomalyError at the first nan or inf.

    Other threads and asyncio tasks are not followed, but for those that the compiler runs work on.

    >>> slope = ad.grad(lambda x: np.sum(np.sqrt(x)))
    >>> try:
    ...     with np.errstate(all="ignore"), ad.detect_anomaly():
    ...         g = slope(np.array([1.0, 0.0]))
    ... except ad.AnomalyError as error:
    ...     print(str(error).partition(": ")[2])
    divide made inf at [1] of t3 float64 (2,), from the number = 0.5, t1 = 0; in f_grad
    """
    with _anomaly.turned({"followed": True}):
        yield


# GPT2_AD_DEBUG, an environment variable that makes the compiler say on stderr what it does:
#
#     1   a line for each stage: why a function is recorded, the time that the stage took, how many nodes a
#         graph has, how many regions and bytes of arena a program has
#     2   also the graph after each stage
#     3   also the emitted source
DEBUG_LEVELS = ("0", "1", "2", "3")


_level = os.environ.get("GPT2_AD_DEBUG") or "0"
if _level not in DEBUG_LEVELS:
    raise ValueError(f"GPT2_AD_DEBUG is {_level!r}, expected one of {', '.join(DEBUG_LEVELS)}")
DEBUG = int(_level)  # read once


def log_stage(name: str, title: str, result: Any, seconds: float, remark: str = "") -> None:
    """Log one stage of the program `name`: a line, and its result if the level is high enough.

    result   a graph, or a program, which has a `source`
    """
    source = getattr(result, "source", None)
    size = f"{len(result.nodes)} nodes" if source is None else result.measures
    lines = [f"autodiff {name}: {title:<20} {seconds * 1e3:9.3f} ms  {size}{remark and '; ' + remark}"]
    if source is None and DEBUG >= 2:
        lines.append(textwrap.indent(str(result), "    "))
    if source is not None and DEBUG >= 3:
        lines.append(textwrap.indent(source.rstrip(), "    "))
    print("\n".join(lines), file=sys.stderr, flush=True)
