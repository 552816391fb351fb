"""`explain`: any function beside its derived backward, and one by hand, as a page to touch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..doors import beside
from ..errors import AutodiffError
from ..programs.derived import name_of
from ..programs.fixed import FixedPair
from ..record.record import input_names
from ..switches import current_options
from ..tracebacks import of_user
from ..tree import flatten, unflatten
from .page import Section, page
from .panels import panels

INTRO = "A function, and the forward and backward that the compiler wrote from it alone."
INTRO_BY_HAND = "A function, its backward by hand, and the forward and backward that the compiler wrote."


class Explanation:
    """A page about functions. A notebook shows it where a cell ends with it; print(it) gives the sources.

    >>> explained = ad.explain(lambda x: np.sin(x), np.ones(3))
    >>> explained.html.splitlines()[0]
    '<!DOCTYPE html>'
    >>> explained.sections[0].name
    'f'
    """

    def __init__(self, sections: Sequence[Section], title: str, intro: str):
        self.sections, self.title, self.intro = sections, title, intro

    @functools.cached_property
    def html(self) -> str:
        """The page: one file that needs nothing else."""
        return page(self.sections, self.title, self.intro)

    def save(self, path: str | Path) -> None:
        """Write the page, over a file of that name."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        frame = 'width="100%" height="800" style="border: 0" title="functions and their backwards"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        texts = []
        for shown in (section.panels for section in self.sections):
            parts = {"forward": shown.forward, "by hand": shown.manual, "derived": shown.derived}
            texts += [(title, "\n".join(s.source for s in parts)) for title, parts in parts.items() if parts]
        return "\n\n".join(f"# {title}\n\n{text.strip(chr(10))}" for title, text in texts)


@of_user
def explain(f: Callable, *args: Any, backward: Callable | None = None, **kwargs: Any) -> Explanation:
    """The page of `gpt2 explain` for a function: its source beside the derived forward and backward, with the
    lines that belong together, the numbers of this call, and what each stage of the compiler changed.

    f         a function of arrays and numbers, also nested in tuples, lists and dicts, that depends on
              nothing else that changes. Its first result is differentiated with respect to all floats, which
              are converted to double precision
    backward  one by hand, to be shown and checked: backward(dout, *args), or backward(dout, saved) if f
              returns (out, saved) with saved a tuple

    Raises AutodiffError if f cannot be recorded, writes to its arguments, or has no float among them.

        >>> def softplus(x):
        ...     return np.log(1.0 + np.exp(x))
        >>> explained = ad.explain(softplus, np.linspace(-1.0, 1.0, 5))  # explained.save("softplus.html")
        >>> print(str(explained)[-114:])
        def softplus_backward(x, dout):
            exp_x = np.exp(x)
            dx = 1.0 * dout * exp_x / (1.0 + exp_x)
            return (dx,)
    """
    call = FlatCall(f, args, kwargs, backward is not None)
    by_hand = None if backward is None else call.backward(backward)
    options, arrays = current_options(), call.arrays
    shown = panels(call.name, call.forward, by_hand, arrays, options)
    settings = [f"{k} = {v}" for k, v in kwargs.items() if isinstance(v, (bool, int, float, str))]
    shown = replace(shown, shapes=", ".join([shown.shapes, *settings]))
    entry, _ = FixedPair(call.forward, options, name=call.name).entry(arrays, {})
    programs = {"forward": entry.forward, "backward": entry.backward.program}
    emitted = [(f"{half}, emitted", program.source) for half, program in programs.items()]
    about, _, rest = (inspect.getdoc(f) or "").partition("\n")
    checks = functools.partial(_checks, call, backward)
    section = Section(call.name, about, rest.strip("\n"), shown, emitted, checks)
    title = f"{call.name} and its {'backward' if backward is None else 'backwards'}"
    return Explanation([section], title, INTRO if backward is None else INTRO_BY_HAND)


class FlatCall:
    """A call as a function of its arrays alone, which returns (out, saved).

    arrays   the floats and arrays among the arguments, floats in double precision
    """

    def __init__(self, f: Callable, args: tuple, kwargs: dict, by_hand: bool):
        if not callable(f):
            raise TypeError(f"explain: f is {f!r}, expected a function")
        self.f, self.args, self.kwargs = f, args, kwargs
        name = name_of(f).removesuffix("_forward")
        self.name = name if name.isidentifier() else "f"
        leaves, self.tree = flatten((args, kwargs))
        self.leaves = [_in_double_precision(x) for x in leaves]
        self.arrays = [x for x in self.leaves if type(x) is np.ndarray]
        if not any(x.dtype.kind in "fc" for x in self.arrays):
            raise AutodiffError(
                f"explain: {self.name} is called without a float to differentiate by. Give an example of its "
                "arguments: ad.explain(f, np.ones(3))"
            )
        result = f(*self.rebuilt(self.arrays)[0], **kwargs) if by_hand else None
        self.saves = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], tuple)
        names = [n for n, x in zip(input_names(f, self.tree), self.leaves) if type(x) is np.ndarray]
        forward = functools.wraps(f)(lambda *arrays: self._call(arrays))
        vars(forward)["__signature__"] = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        )
        self.forward = forward

    def rebuilt(self, arrays: Sequence) -> tuple[tuple, dict]:
        """(args, kwargs) with these arrays."""
        given = iter(arrays)
        return unflatten(self.tree, [next(given) if type(x) is np.ndarray else x for x in self.leaves])

    def _call(self, arrays: Sequence) -> tuple[Any, tuple]:
        args, kwargs = self.rebuilt(arrays)
        result = self.f(*args, **kwargs)
        if self.saves:
            return result
        while isinstance(result, (tuple, list, dict)):
            result = next(iter(result.values() if isinstance(result, dict) else result))
        return result, tuple(arrays)

    def backward(self, by_hand: Callable) -> Callable:
        """by_hand as backward(dout, saved)."""

        @functools.wraps(by_hand)
        def backward(dout, saved):
            if self.saves:
                got = by_hand(dout, saved, **self.kwargs)
            else:
                args, kwargs = self.rebuilt(saved)
                got = by_hand(dout, *args, **kwargs)
            return tuple(g for g in flatten(got)[0] if g is not None)

        return backward


def _in_double_precision(x: Any) -> Any:
    if not isinstance(x, (float, complex, np.ndarray, np.generic)):
        return x
    x = np.asarray(x)
    return x.astype(np.result_type(x.dtype, np.float64)) if x.dtype.kind in "fc" else x


def _checks(call: FlatCall, backward: Callable | None) -> tuple[str, str]:
    """The title and HTML of the checks: the derived gradient beside differences, that by hand beside it."""
    checks = beside("check.check_grads")
    args, kwargs = call.rebuilt(call.arrays)

    def first(*args):
        return call.f(*args, **kwargs)[0] if call.saves else call.f(*args, **kwargs)

    by_differences = functools.partial(checks.check_grads, first, args, 1)
    tried = {"the derived gradient is that of central differences": by_differences}
    if backward is not None:
        by_hand = functools.partial(checks.check_backward, call.f, backward, [(args, kwargs)])
        tried["the backward by hand is the derived one"] = by_hand
    rows, hold = "", True
    for what, check in tried.items():
        result = "holds"
        try:
            check()
        except Exception as error:  # any, such as of a function that draws random numbers
            result, hold = f"{type(error).__name__}: {error}", False
        rows += f"<tr><td>{what}</td><td><pre>{escape(result)}</pre></td></tr>"
    return f"Checks: {'they hold' if hold else 'ONE DOES NOT HOLD'}", f"<table>{rows}</table>"
