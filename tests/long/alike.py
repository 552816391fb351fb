"""Random loops, of which repeated parts are called as one function, against the same written out.

python -m tests.long.alike                    100 seconds
python -m tests.long.alike --start 5000 --seconds 30

The value has to be NumPy's bit for bit; gradients may differ by the order in which they are added up.
"""

import sys

import numpy as np

import gpt2.autodiff as ad
from gpt2.autodiff.passes import alike
from tests.long.seeds import hunt

STATEMENTS = (
    "{t} = np.sin({a})",
    "{t} = {a} * {b}",
    "{t} = {a} * 0.5 + {b}",
    "{t} = np.tanh({a} + {b} * (0.1 * i))",
    "{t} = {a}[::-1]",
    "{t} = m @ {a}",
    "{t} = np.where({a} > {b}, {a}, 0.3 * {b})",
    "{t} = {a} - np.mean({b})",
    "{t} = {a}.copy(); {t}[1:3] = {b}[2:4]",
    "{t} = ws[i] * {a}",
    "{t} = np.concatenate([{a}[2:], {b}[:2]])",
    "{t} = np.exp(-{a} * {a})",
)


def program(seed):
    """(source, function, arguments) of a loop of a few random statements."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rng.integers(2, 8)):
        t, a, b = ("xyz"[k] for k in rng.integers(3, size=3))
        lines.append(STATEMENTS[rng.integers(len(STATEMENTS))].format(t=t, a=a, b=b))
        if rng.random() < 0.15:
            lines.append(f"kept = kept + {t}")
        if rng.random() < 0.1:
            lines.append(f"if i == {rng.integers(6)}: {t} = {t} * 1.5")
    n = int(rng.integers(4, 14))
    body = "".join(f"        {line}\n" for line in lines)
    source = (
        "def f(x, y, m, ws):\n    z = x * y\n    kept = x\n"
        f"    for i in range({n}):\n{body}    return np.sum(kept * x + y * z)\n"
    )
    made: dict = {"np": np}
    exec(source, made)
    sizes = ((5,), 1.0), ((5,), 1.0), ((5, 5), 0.4), ((n, 5), 1.0)
    return source, made["f"], tuple(scale * rng.normal(size=size) for size, scale in sizes)


def differs(f, args):
    """What is wrong with the derived function, or None."""
    with np.errstate(all="ignore"):
        value, grads = ad.value_and_grad(f, argnums=(0, 1, 2, 3))(*args)
        with ad.options(off={"alike"}):
            _, expected = ad.value_and_grad(f, argnums=(0, 1, 2, 3))(*args)
        plain = f(*args)
    if np.asarray(value).tobytes() != np.asarray(plain).tobytes():
        return f"the value is {value!r}, NumPy's {plain!r}"
    for k, (g, e) in enumerate(zip(grads, expected)):
        size = np.max(np.abs(e[np.isfinite(e)]), initial=1e-200)
        if not np.allclose(g, e, rtol=1e-9, atol=1e-12 * size, equal_nan=True):
            return f"gradient {k} differs by {np.max(np.abs(g - e))}"
    return None


def check(seed):
    text, f, given = program(seed)
    return text, differs(f, given)


def main(argv=None):
    calls = []
    with_calls = alike._with_calls
    alike._with_calls = lambda *given: calls.append(1) or with_calls(*given)
    count, wrong = hunt(__doc__.split("\n")[0], argv, check)
    print(f"{count} programs, of which {len(calls)} have calls: {wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
