"""A layer's manual and derived backward, side by side; --check compares all gradients.

    gpt2 check                         every layer and the model: by hand, derived, by differences, forwards
    gpt2 certificate layernorm         forward, manual backward and derived backward side by side

The largest scaled error |x - y| / max(1, |x| + |y|) is printed for each pair, in float64, on random inputs
and random output gradients. Three independent roads lead to a gradient: the formulas written by hand, reverse
mode, and forward mode; central differences need no derivative at all.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.backward import auto, compiled, options_for
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2, GPT2Config, loss_fn
from gpt2.output import painted

EXACT = 1e-10  # different orders of summation in float64
DIFFERENCES = 1e-7  # second-order central differences with a step of 1e-5
STEP = 1e-5
SIZES = Sizes(B=2, T=5, C=12, NH=3, V=17, OC=7, max_t=8)  # all different: no swapped axis passes


def scaled_error(x: ArrayLike, y: ArrayLike) -> float:
    """Largest |x - y| / max(1, |x| + |y|) over the entries."""
    x, y = np.asarray(x), np.asarray(y)
    return float(np.max(np.abs(x - y) / np.maximum(1.0, np.abs(x) + np.abs(y)), initial=0.0))


def worst(xs: Iterable[ArrayLike], ys: Iterable[ArrayLike | None]) -> float:
    errors = [scaled_error(x, y) for x, y in zip(xs, ys) if y is not None]
    return float("nan") if any(np.isnan(errors)) else max(errors)


def slope(f: Callable[..., Any], args: Sequence, tangents: Sequence) -> Any:
    """Central difference of f(*args) along the tangents (None: held)."""

    def at(h):
        return f(*(a if t is None else a + h * t for a, t in zip(args, tangents)))

    return (at(STEP) - at(-STEP)) / (2 * STEP)


def check_layer(name: str, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Scaled errors of one layer: a dict from comparison to (error, tolerance)."""
    rng = np.random.default_rng(seed)
    case = at(SIZES)[name]
    args, static = case.inputs("float64", rng), case.static
    layer = LAYERS[name]

    def forward(*inputs):
        return layer.forward(*inputs, **static)[0]

    out, saved = layer.forward(*args, **static)
    dout = rng.standard_normal(out.shape)
    manual = layer.backward(dout, saved, **static)
    found = {}
    for title, other in (("compiled", compiled(layer)), ("auto", auto(layer))):
        result, kept = other.forward(*args, **static)
        grads = other.backward(dout, kept, **static)
        found[f"manual~{title}"] = max(worst(grads, manual), scaled_error(result, out)), EXACT
    derived = grads
    tangents = [None if g is None else rng.standard_normal(g.shape) for g in manual]
    differences = float(np.sum(dout * slope(forward, args, tangents)))
    for title, grads in (("manual", manual), ("auto", derived)):
        found[f"{title}~differences"] = scaled_error(_dot(grads, tangents), differences), DIFFERENCES
    pushed = _pushforward(forward, args, tangents)
    found["auto~forward mode"] = scaled_error(_dot(derived, tangents), float(np.sum(dout * pushed))), EXACT
    return found


def check_model(seed: int = 0) -> dict[str, tuple[float, float]]:
    """The same for the loss of a small GPT-2: by hand, derived layer by layer, and as one program."""
    config = GPT2Config(vocab_size=17, block_size=8, n_layer=2, n_head=3, n_embd=12, dtype="float64")
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, 17, (2, 2, 5))
    written = GPT2(config, compile=False)
    written.flat_params += 0.2 * rng.standard_normal(written.flat_params.shape)
    grads = {}
    for title, model in (("written", written), *((b, GPT2(config, b)) for b in ("manual", "auto", "whole"))):
        model.flat_params[...] = written.flat_params
        model.loss_and_grads(tokens, targets)
        grads[title] = model.flat_grads
    tangents = [rng.standard_normal(p.shape) for p in written.params.values()]

    def loss(*params):
        return loss_fn(dict(zip(written.params, params)), tokens, targets, config=config, layers=LAYERS)

    params = list(written.params.values())
    differences = float(slope(loss, params, tangents))
    pushed = float(_pushforward(loss, params, tangents))
    flat = np.concatenate([t.ravel() for t in tangents])
    found = {
        f"manual~{'compiled' if b == 'manual' else b}": (scaled_error(grads[b], grads["written"]), EXACT)
        for b in ("manual", "auto", "whole")
    }
    found["manual~differences"] = scaled_error(grads["written"] @ flat, differences), DIFFERENCES
    found["auto~differences"] = scaled_error(grads["whole"] @ flat, differences), DIFFERENCES
    found["auto~forward mode"] = scaled_error(grads["whole"] @ flat, pushed), EXACT
    return found


def _dot(grads, tangents):
    return float(sum(np.sum(g * t) for g, t in zip(grads, tangents) if g is not None))


def _pushforward(f, args, tangents):
    """Tangent of f's result by forward mode, integer arguments held."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def of_floats(*floats):
        full = list(args)
        for k, x in zip(moving, floats):
            full[k] = x
        return f(*full)

    return ad.jvp(of_floats, tuple(args[k] for k in moving), tuple(tangents[k] for k in moving))[1]


COLUMNS = (
    "manual~compiled",
    "manual~auto",
    "manual~whole",
    "manual~differences",
    "auto~differences",
    "auto~forward mode",
)
SHORT = {"differences": "difference", "forward mode": "forward"}  # as heads of columns


def certificate(names: Iterable[str] = (*LAYERS, "model")) -> bool:
    """Print the table of some layers and "model"; True if every error is within its tolerance."""
    print("largest scaled error |x-y| / max(1, |x|+|y|), float64\n")
    for heads in zip(*(column.split("~") for column in COLUMNS)):
        print((" " * 12 + "".join(f"{SHORT.get(head, head):>11s}" for head in heads)).rstrip())
    passed = True
    for name in names:
        found = check_model() if name == "model" else check_layer(name)
        cells = ""
        for column in COLUMNS:
            if column not in found:
                cells += f"{'-':>11s}"
                continue
            error, tolerance = found[column]
            good = error <= tolerance  # false for nan
            passed = passed and good
            mark = painted("ok", "green") if good else painted("BAD", "red")
            cells += f"{error:>{8 if good else 7}.0e} {mark}"
        print(f"{name:12s}{cells}".rstrip())
    verdict = painted("all hold", "green") if passed else painted("NOT ALL HOLD", "red")
    print(f"\ntolerances: {EXACT:.0e}, beside differences {DIFFERENCES:.0e}: {verdict}")
    return passed


SHOWN = Sizes(B=4, T=64, C=768, NH=12, V=1024, OC=3072, max_t=1024)


def pair_of(name: str, sizes: Sizes = SHOWN) -> Any:
    """The compiler's two graphs for a layer at a training size, and the programs made of them."""
    case = at(sizes)[name]
    pair = ad.FixedPair(LAYERS[name].forward, options_for(), name=name)
    entry, _ = pair.entry(case.inputs("float32"), case.static)
    return entry


def derived_source(name: str, emitted: bool = False) -> str:
    """A layer's derived forward and backward as source: as a person writes it, or the programs that run."""
    entry = pair_of(name)
    if emitted:
        return entry.forward.source + "\n\n" + entry.backward.program.source
    forward, backward = entry.graphs
    return (
        ad.readable_source(forward, f"{name}_forward")
        + "\n\n"
        + ad.readable_source(backward, f"{name}_backward").split("\n\n\n", 1)[1]
    )


def side_by_side(name: str, emitted: bool = False, columns: int = cli.WIDE) -> str:
    """Forward, manual and derived backward as text, in three columns where `columns` characters allow."""
    layer = LAYERS[name]
    texts = [
        ("forward", textwrap.dedent(inspect.getsource(layer.forward))),
        ("backward, by hand", textwrap.dedent(inspect.getsource(layer.backward))),
        ("derived by the compiler", derived_source(name, emitted)),
    ]
    return "\n".join(cli.beside(texts, columns))


EXAMPLES = (
    ("gpt2 certificate layernorm", "forward, manual and derived backward side by side"),
    ("gpt2 certificate gelu --emitted", "the programs that run, with buffers and blocks of rows"),
    ("gpt2 certificate --check", "compare all gradients; `gpt2 check` is the same"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 certificate`."""
    made = cli.Parser("certificate", "Look at, and check, both backwards.", EXAMPLES)
    add = made.add_argument
    about = "show its forward, manual and derived source: " + ", ".join(LAYERS)
    add("layer", nargs="?", choices=list(LAYERS), metavar="LAYER", help=about)
    add("--check", action="store_true", help="compare all gradients of all layers and of the model")
    add("--emitted", action="store_true", help="show the programs that run, buffers and blocks included")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all is well, 1 if a check failed, 2 for a wrong command line."""
    return cli.run(parser(), _run, argv)


def _run(options):
    if options.layer is None and not options.check:
        raise UserError(f"name a layer ({', '.join(LAYERS)}) or --check")
    if options.check:
        return 0 if certificate() else 1
    print(side_by_side(options.layer, options.emitted, cli.width()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
