"""Random stacks of blocks that are alike but for a constant, a dtype, a shared weight or one block left out,
derived in several ways, against the same with nearly all passes switched off: check(seed).

The value has to be the same bit for bit; gradients may differ by the order in which they are added up.
"""

import numpy as np

import gpt2.autodiff as ad
from gpt2.autodiff.emit import buffers, emitter, layout
from gpt2.autodiff.passes import alike
from tests.support.small_sizes import set_sizes
from tests.support.tables import sections

GRAMMAR = sections(__file__)
WEIGHTS = ("w[i]", "u[:, i]", "m", "w[0]", "w[n - 1 - i]", "w[i].T", "ws[i]")
VECTORS = ("b[i]", "b[0]", "d[:, i]", "e[4 * i : 4 * i + 4]", "e[i : i + 4]", "-b[i]", "f32[i]")
NUMBERS = ("0.7", "(0.7 if i < 5 else 0.9)", "(0.1 * i)", "(1.0 if i % 2 else 0.5)", "np.float32(0.5)", "0")
RESULTS = ("np.sum(x * x) + np.sum(y) * 0.5", "np.sum(x @ y.T) + np.sum(w[0])", "np.sum(np.cos(x)) + b.sum()")
ARGUMENTS = ("x", "y", "m", "w", "u", "b", "d", "e", "f32", "c", "ws")


def program(seed):
    """(source, function, arguments, random generator) of a stack of 0 to 12 random blocks."""
    rng = np.random.default_rng(seed)
    n, lines = int(rng.integers(0, 13)), []
    k, weights, vectors = rng.choice(NUMBERS), rng.choice(WEIGHTS, 2), rng.choice(VECTORS, 2)
    for _ in range(rng.integers(2, 9)):
        a, b = rng.permutation(["x", "y"])
        statement = rng.choice(GRAMMAR["statements"])
        line = statement.format(a=a, b=b, k=k, w=rng.choice(weights), v=rng.choice(vectors))
        lines.append(f"if i != {rng.integers(6)}: {line}" if rng.random() < 0.07 else line)
    head = (
        f"def f({', '.join(ARGUMENTS)}):\n    n, kept, s = {n}, [], np.sum(x) * 0.1\n    for i in range(n):\n"
    )
    body = "".join(f"        {line}\n" for line in [*lines, "pass"])
    end = f"    return {rng.choice(RESULTS)} + s * 0.1 + sum((np.sum(np.sin(k)) for k in kept), 0.0)\n"
    made: dict = {"np": np, "ad": ad}
    exec(head + body + end, made)
    shapes = (4, 4), (4, 4), (4, 4), (13, 4, 4), (4, 13, 4), (13, 4), (4, 13), (56,), (13, 4), ()
    args = [0.5 * rng.normal(size=s) for s in shapes]
    args.append([0.5 * rng.normal(size=(4, 4)) for _ in range(13)])
    args[8] = args[8].astype(np.float32)
    if rng.random() < 0.2:
        args[2] = args[3][0]  # shares its memory
    if rng.random() < 0.2:
        args[3] = args[3][::-1]
    return head + body + end, made["f"], args, rng


def derived(f, args, way, wrt, direction):
    """(value, gradients) in one of several ways."""
    whole = tuple(wrt)
    if way == "again":
        g = ad.value_and_grad(f, whole)
        g(*args)
        return g(*args)
    if way == "vjp":
        out, pull = ad.vjp(f, *args)
        back = pull(np.ones_like(out))
        return out, [back[k] for k in whole]
    one = lambda x: f(x, *args[1:])  # noqa: E731
    if way == "second":
        return f(*args), ad.hvp(one, args[0], direction)
    return f(*args), ad.vmap(ad.grad(one))(np.stack([args[0], direction]))


def differs(f, args, rng):
    """What is wrong with the derived function, or None."""
    way = rng.choice(["again", "vjp", "second", "vmap"])
    wrt = sorted(rng.choice(len(args), size=rng.integers(1, len(args)), replace=False).tolist())
    direction = rng.normal(size=(4, 4))
    with np.errstate(all="ignore"):
        value, grads = derived(f, args, way, wrt, direction)
        with ad.options(off=set(ad.Options.PASSES) - {"cse", "dce"}, before=False):
            expected, wanted = derived(f, args, way, wrt, direction)
    if not np.isfinite(expected):
        return None
    if np.asarray(value).tobytes() != np.asarray(expected).tobytes():
        return f"{way}: the value is {value!r}, without passes {expected!r}"
    for g, e in zip(ad.tree.leaves(grads), ad.tree.leaves(wanted), strict=True):
        size = np.max(np.abs(e[np.isfinite(e)]), initial=1e-200)
        if g.dtype != e.dtype or g.shape != e.shape:
            return f"{way}: a gradient is {g.dtype}{g.shape}, without passes {e.dtype}{e.shape}"
        close = 3e-3 if e.dtype == np.float32 else 1e-6
        if not np.allclose(g, e, rtol=close, atol=close * size + 1e-13, equal_nan=True):
            return f"{way}: a gradient of size {size} differs by {np.max(np.abs(g - e))}"
    return None


def other_sizes(seed):
    """Sizes from which programs are written otherwise, small for some seeds and as they are for others."""
    rng = np.random.default_rng((seed, 1))
    emitter.MOST_SPELLED = int(rng.choice([0, 50]))
    buffers.LEND_FROM = int(rng.choice([1, 1 << 16]))
    layout.LARGE = int(rng.choice([1, 1 << 18]))
    set_sizes(small=bool(rng.random() < 0.4))


def check(seed):
    """How it went; raises AssertionError with the program where something is wrong."""
    alike.LEAST, alike.GRAM, alike.SHORT = 12, 2, 3  # short programs take the paths of long ones
    alike.pays = lambda rolled: True
    other_sizes(seed)
    text, f, given, rng = program(seed)
    try:
        wrong = differs(f, given, rng)
    except ad.AutodiffError as error:  # a write into an array that is not recorded is refused
        assert "plain NumPy array" in str(error), f"{error!r}\n{text}"
        return "refused"
    assert wrong is None, f"{wrong}\n{text}"
    return "right"
