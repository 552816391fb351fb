"""A layer's manual and derived backward, side by side; --check compares all gradients.

    python -m gpt2.certificate --check        every layer and the model, by hand, derived, by differences and
                                              in forward mode
    python -m gpt2.certificate layernorm      forward, manual backward and derived backward side by side
    python -m gpt2.certificate layernorm --emitted    the programs that run, with buffers and blocks of rows

The largest scaled error |x - y| / max(1, |x| + |y|) is printed for each pair, in float64, on random inputs
and random output gradients. Three independent roads lead to a gradient: the formulas written by hand, reverse
mode, and forward mode; central differences need no derivative at all.
"""

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import autodiff as ad
from gpt2.backward import auto, compiled, options_for
from gpt2.errors import exit_status
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2, GPT2Config, loss_fn

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


def certificate() -> bool:
    """Print the table; True if every error is within its tolerance."""
    columns = (
        "manual~compiled",
        "manual~auto",
        "manual~whole",
        "manual~differences",
        "auto~differences",
        "auto~forward mode",
    )
    print("largest scaled error |x-y| / max(1, |x|+|y|), float64\n")
    print(f"{'':14s}" + "".join(f"{c:>20s}" for c in columns))
    passed = True
    for name in (*LAYERS, "model"):
        found = check_model() if name == "model" else check_layer(name)
        cells = ""
        for column in columns:
            if column not in found:
                cells += f"{'-':>20s}"
                continue
            error, tolerance = found[column]
            good = error <= tolerance  # false for nan
            passed = passed and good
            cells += f"{error:>16.1e} {'ok' if good else 'BAD'}".rjust(20)
        print(f"{name:14s}{cells}")
    verdict = "all hold" if passed else "NOT ALL HOLD"
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


def side_by_side(name: str, emitted: bool = False, width: int = 58) -> str:
    """forward | manual | derived, as text in three columns."""
    layer = LAYERS[name]
    texts = [
        inspect.getsource(layer.forward),
        inspect.getsource(layer.backward),
        derived_source(name, emitted),
    ]
    columns = [
        [
            line
            for raw in textwrap.dedent(t).rstrip().split("\n")
            for line in (
                textwrap.wrap(raw, width, subsequent_indent="        ", drop_whitespace=False) or [""]
            )
        ]
        for t in texts
    ]
    rows = [
        f"{'forward':{width}s} | {'backward, by hand':{width}s} | derived by the compiler",
        "-" * (3 * width + 6),
    ]
    for i in range(max(map(len, columns))):
        cells = [c[i] if i < len(c) else "" for c in columns]
        rows.append(f"{cells[0]:{width}s} | {cells[1]:{width}s} | {cells[2]}".rstrip())
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all is well, 1 if a check failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gpt2.certificate", description="Look at, and check, both backwards."
    )
    parser.add_argument(
        "layer", nargs="?", choices=list(LAYERS), help="show its forward, manual and derived source"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare all gradients of all layers and of the model"
    )
    parser.add_argument(
        "--emitted", action="store_true", help="show the programs that run, buffers and blocks included"
    )
    options = parser.parse_args(argv)
    if options.layer is None and not options.check:
        parser.error(f"name a layer ({', '.join(LAYERS)}) or --check")
    return exit_status(_run, options)


def _run(options):
    if options.check:
        return 0 if certificate() else 1
    print(side_by_side(options.layer, options.emitted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
