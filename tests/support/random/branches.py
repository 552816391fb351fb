"""Random programs of guarded branches: the gradient at each point is that of the branches taken there.

    check(write(seed))      "right", or "undecided", where a branch that is taken has no finite derivative

The functions work element by element. Many are infinite or nan in a branch that is not taken, and values are
shared by branches under other masks. The reference takes one element at a time, and a branch by `if`.
"""

import numpy as np

from gpt2 import autodiff as ad
from tests.support.tables import sections

POINTS = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
GRAMMAR = sections(__file__)
NUMBERS = ("-1.5", "-0.5", "0.0", "0.25", "0.75", "2.0")


def write(seed: int) -> str:
    """The source of a function f of x."""
    rng = np.random.default_rng([14, seed])
    names, lines = ["x"], []
    for k in range(rng.integers(3, 12)):
        forms = GRAMMAR["choices"] if rng.random() < 0.4 else GRAMMAR["forms"]
        picked = dict(zip("abc", rng.choice(names[-4:], 3)), k=rng.choice(NUMBERS), m=rng.choice(NUMBERS))
        lines.append(f"t{k} = {rng.choice(forms).format(**picked)}")
        names.append(f"t{k}")
    results = [f"where(x > {rng.choice(NUMBERS)}, {rng.choice(names[1:])}, 0.0)" for _ in range(2)]
    return "\n    ".join(["def f(x):", *lines, f"return {names[-1]} + {' + '.join(results)}"])


def _if(condition, a, b):
    return a if condition else b


def _first(conditions, values, default):
    return next((v for c, v in zip(conditions, values) if c), default)


@ad.custom_jvp
def _opaque(a):
    """So that the root of a square is no norm, and the logarithm of an exponential no log-sum-exp, which have
    derivatives at 0: `where` hides them from f.
    """
    return a * 1.0


_opaque.defjvp(lambda primals, tangents: (primals[0] * 1.0, tangents[0] * 1.0))


def _made(source: str, where, select, inner=lambda a: a):
    names = {"np": np, "where": where, "select": select, "inner": inner}
    exec(source, names)
    return names["f"]


def check(source: str) -> str:
    """How it went; raises AssertionError with the source where the gradient is wrong."""
    f, by_element = _made(source, np.where, np.select), _made(source, _if, _first, _opaque)
    with np.errstate(all="ignore"):
        wanted = np.array([ad.grad(by_element)(x) for x in POINTS])
        found = ad.grad(lambda x: np.sum(f(x)))(POINTS)
        finite = np.isfinite(wanted)
        close = np.isclose(found, wanted, rtol=1e-4, atol=1e-6)  # in part in float32
    assert np.all(close | ~finite), f"at {POINTS}: {found} for {wanted} of\n{source}"
    return "right" if finite.any() else "undecided"
