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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.backward import auto, compiled, options_for, whole
from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer
from gpt2.layers.cases import Sizes, at
from gpt2.model.backward import backward_pass, block_backward
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.forward import block_forward, forward_pass, loss_fn
from gpt2.model.gpt2 import GPT2, default_backward
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


@dataclass(frozen=True)
class Subject:
    """A layer to look at: GPT-2's, or one of a user's file. inputs(seed) draws what it takes."""

    layer: Layer
    static: dict[str, Any]
    inputs: Callable[..., Sequence]


def subject(name: str, sizes: Sizes, dtype: str, file: str | None = None) -> Subject:
    """The layer of this name; of a file of layers its own one, "block" for its block.

    Raises UserError where the file has none of this name.
    """
    if file is None:
        case = at(sizes)[name]
        return Subject(LAYERS[name], case.static, lambda seed=0: case.inputs(dtype, seed))
    d = described(sizes, file, dtype)
    if name not in own(d):
        raise UserError(f"--layers {file}: has no {name} of its own; it has {', '.join(own(d))}")
    place = name if name == BLOCK else d.places_of(name)[0]
    static = {} if name == BLOCK else d.calls[place].static

    def inputs(seed=0):
        return d.inputs_at(place, sizes.B, sizes.T, np.random.default_rng(seed))

    return Subject(d.written[name], static, inputs)


BLOCK = "block"


def described(sizes: Sizes, file: str, dtype: str = "float32") -> Description:
    """A small model with the layers of a file."""
    s = sizes
    return Description(GPT2Config(s.V, s.max_t, 1, s.NH, s.C, dtype), layers=file)


def own(d: Description) -> list[str]:
    """The names of the layers of a model that are a user's own, and "block"."""
    used = [name for name in d.own if d.places_of(name)]
    return used if d.block is None else [*used, BLOCK]


def names_of(file: str | None) -> list[str]:
    """The names that can be looked at: GPT-2's layers, or a file's own."""
    return list(LAYERS) if file is None else own(described(SIZES, file))


def check_layer(name: str, seed: int = 0, file: str | None = None) -> dict[str, tuple[float, float]]:
    """Scaled errors of one layer: a dict from comparison to (error, tolerance).

    file   of layers, from which it is taken. What has no backward by hand is not compared with one
    """
    rng = np.random.default_rng(seed)
    of = subject(name, SIZES, "float64", file)
    args, layer, static = of.inputs(rng), of.layer, of.static

    def forward(*inputs):
        return layer.forward(*inputs, **static)[0]

    out, saved = layer.forward(*args, **static)
    dout = rng.standard_normal(out.shape)
    grads, found = {}, {}
    if layer.backward is not None:
        grads["manual"] = layer.backward(dout, saved, **static)
    for title, other in (("compiled", compiled), ("auto", auto)):
        if title == "auto" or grads:
            result, kept = other(layer).forward(*args, **static)
            grads[title] = other(layer).backward(dout, kept, **static)
            if "manual" in grads:
                error = max(worst(grads[title], grads["manual"]), scaled_error(result, out))
                found[f"manual~{title}"] = error, EXACT
    derived = grads["auto"]
    tangents = [None if g is None else rng.standard_normal(g.shape) for g in derived]
    differences = float(np.sum(dout * slope(forward, args, tangents)))
    for title in ("manual", "auto"):
        if title in grads:
            error = scaled_error(_dot(grads[title], tangents), differences)
            found[f"{title}~differences"] = error, DIFFERENCES
    pushed = _pushforward(forward, args, tangents)
    found["auto~forward mode"] = scaled_error(_dot(derived, tangents), float(np.sum(dout * pushed))), EXACT
    return found


def check_own_model(file: str, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The same for the loss of a small model with the layers of a file, layer by layer and as one program."""
    config = GPT2Config(vocab_size=17, block_size=8, n_layer=2, n_head=3, n_embd=12, dtype="float64")
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, 17, (2, 2, 5))
    models = {b: GPT2(config, b, layers=file) for b in ("auto", "whole")}
    if default_backward(models["auto"].description) == "manual":  # every layer has one by hand
        models["manual"] = GPT2(config, "manual", layers=file)
    start = models["auto"].flat_params + 0.2 * rng.standard_normal(models["auto"].flat_params.shape)
    for model in models.values():
        model.flat_params[...] = start
        model.loss_and_grads(tokens, targets)
    params, d = models["whole"].params, models["whole"].description
    tangents = [rng.standard_normal(p.shape) for p in params.values()]

    def loss(*values):
        given = dict(zip(params, values))
        return loss_fn(given, tokens, targets, config=config, layers=d.written, description=d)

    values, grads = list(params.values()), {b: model.grads.values() for b, model in models.items()}
    differences = float(slope(loss, values, tangents))
    pushed = float(_pushforward(loss, values, tangents))
    by_hand = {"manual~auto": (worst(grads["manual"], grads["auto"]), EXACT)} if "manual" in grads else {}
    return {
        **by_hand,
        "auto~whole": (worst(grads["auto"], grads["whole"]), EXACT),
        "auto~differences": (scaled_error(_dot(grads["whole"], tangents), differences), DIFFERENCES),
        "auto~forward mode": (scaled_error(_dot(grads["whole"], tangents), pushed), EXACT),
    }


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

    floats = tuple(args[k].copy() for k in moving)  # of_floats reads the others
    return ad.jvp(of_floats, floats, tuple(tangents[k] for k in moving))[1]


COLUMNS = (
    "manual~compiled",
    "manual~auto",
    "manual~whole",
    "auto~whole",
    "manual~differences",
    "auto~differences",
    "auto~forward mode",
)
SHORT = {"differences": "difference", "forward mode": "forward"}  # as heads of columns


def _cell(found: tuple[float, float] | None) -> str:
    """An error beside its tolerance, as the table shows it."""
    if found is None:
        return f"{'-':>11s}"
    error, tolerance = found
    good = error <= tolerance  # false for nan
    mark = painted("ok", "green") if good else painted("BAD", "red")
    return f"{error:>{8 if good else 7}.0e} {mark}"


def certificate(names: Iterable[str] = (*LAYERS, "model"), file: str | None = None) -> bool:
    """Print the table of some layers and "model"; True if every error is within its tolerance.

    file   of layers: the names are of what is its own, "block" for a block
    """
    every = {}
    for name in names:
        if name == "model":
            every[name] = check_model() if file is None else check_own_model(file)
        else:
            every[name] = check_layer(name, file=file)
    columns = [column for column in COLUMNS if any(column in found for found in every.values())]
    print("largest scaled error |x-y| / max(1, |x|+|y|), float64\n")
    for heads in zip(*(column.split("~") for column in columns)):
        print((" " * 12 + "".join(f"{SHORT.get(head, head):>11s}" for head in heads)).rstrip())
    for name, found in every.items():
        print(f"{name:12s}{''.join(_cell(found.get(column)) for column in columns)}".rstrip())
    passed = all(error <= tolerance for found in every.values() for error, tolerance in found.values())
    verdict = painted("all hold", "green") if passed else painted("NOT ALL HOLD", "red")
    print(f"\ntolerances: {EXACT:.0e}, beside differences {DIFFERENCES:.0e}: {verdict}")
    return passed


SHOWN = Sizes(B=4, T=64, C=768, NH=12, V=1024, OC=3072, max_t=1024)


def pair_of(name: str, sizes: Sizes = SHOWN, file: str | None = None) -> Any:
    """The compiler's two graphs for a layer at a training size, and the programs made of them."""
    of = subject(name, sizes, "float32", file)
    pair = ad.FixedPair(of.layer.forward, options_for(), name=name)
    entry, _ = pair.entry(of.inputs(), of.static)
    return entry


def derived_source(name: str, emitted: bool = False, file: str | None = None) -> str:
    """A layer's derived forward and backward as source: as a person writes it, or the programs that run."""
    entry = pair_of(name, file=file)
    if emitted:
        return entry.forward.source + "\n\n" + entry.backward.program.source
    forward, backward = entry.graphs
    return (
        ad.readable_source(forward, f"{name}_forward")
        + "\n\n"
        + ad.readable_source(backward, f"{name}_backward").split("\n\n\n", 1)[1]
    )


WHOLE = GPT2Config(vocab_size=1024, block_size=64, n_layer=12, n_head=12, n_embd=768)


def whole_source(file: str | None = None) -> tuple[str, str, str]:
    """The loss of GPT-2, or of a model with the layers of a file, as it is written; its backward by hand, and
    forward and backward as derived. A block stands once in each: the compiler makes a function of what it
    finds alike.
    """
    d = Description(WHOLE, layers=file)
    names = [*(name for name, _ in d.shapes), "tokens", "targets"]

    def loss(*arrays):
        given = dict(zip(names, arrays))
        return loss_fn(given, *arrays[-2:], config=WHOLE, layers=d.written, description=d)

    # by which the inputs of the derived functions are named
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    vars(loss)["__signature__"] = inspect.Signature(parameters)
    tokens = np.zeros((SHOWN.B, SHOWN.T), np.int64)
    # not read: memory is not touched
    params = [np.zeros(shape, WHOLE.dtype) for _, shape in d.shapes]
    forwards: list[Callable] = [loss_fn, forward_pass]
    backwards: list[Callable] = [backward_pass]
    if d.block is None:
        forwards.append(block_forward)
        backwards.append(block_backward)
    sources = {name: written_source(d.written[name]) for name in own(d)}
    titled = [[f"# {name}\n{texts[k]}" for name, texts in sources.items()] for k in range(2)]
    return (
        "\n\n".join([_sources(*forwards), *titled[0]]),
        "\n\n".join([_sources(*backwards), *titled[1]]),
        whole(loss).source(*params, tokens, tokens),
    )


def _sources(*functions: Callable) -> str:
    return "\n\n".join([inspect.getsource(f) for f in functions])


def written_source(layer: Layer) -> tuple[str, str]:
    """Forward and backward by hand as source; of a layer without one, words that say so."""
    sources = []
    for function in (layer.forward, layer.backward):
        if function is None:
            sources.append("# There is none: this layer's backward is the derived one.")
            continue
        try:
            sources.append(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
        except (OSError, TypeError):
            sources.append(f"# {function.__name__}: its source cannot be found.")
    return sources[0], sources[1]


def side_by_side(name: str, emitted: bool = False, columns: int = cli.WIDE, file: str | None = None) -> str:
    """Forward, manual and derived backward as text, in three columns where `columns` characters allow."""
    forward, manual = written_source(subject(name, SHOWN, "float32", file).layer)
    texts = [
        ("forward", forward),
        ("backward, by hand", manual),
        ("derived by the compiler", derived_source(name, emitted, file)),
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
    add("layer", nargs="?", choices=[*LAYERS, BLOCK], metavar="LAYER", help=about)
    add("--layers", metavar="FILE.py", help="of a file of own layers; `block` is its block")
    add("--check", action="store_true", help="compare all gradients of all layers and of the model")
    add("--emitted", action="store_true", help="show the programs that run, buffers and blocks included")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all is well, 1 if a check failed, 2 for a wrong command line."""
    return cli.run(parser(), _run, argv)


def _run(options):
    names = names_of(options.layers)
    if options.check:
        return 0 if certificate((*names, "model"), options.layers) else 1
    if options.layer not in names:
        raise UserError(f"name a layer ({', '.join(names)}) or --check")
    print(side_by_side(options.layer, options.emitted, cli.width(), options.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
