"""Check gradients: of every layer and the model, or of a backward that you wrote.

Manual, derived, central differences and forward mode are compared with each other, in float64, on random
inputs and random output gradients. The largest scaled error |x - y| / max(1, |x| + |y|) is printed for each
pair. Central differences need no derivative rules at all.
"""

import inspect
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.backward import auto, compiled, default_for
from gpt2.commands.explain.subject import SIZES, names_of, subject
from gpt2.errors import UserError, printable, reason, suggestion
from gpt2.hints import quoted, typed
from gpt2.layers import ALL_LAYERS as LAYERS
from gpt2.model.config import GPT2Config
from gpt2.model.forward import loss_fn
from gpt2.model.gpt2 import GPT2
from gpt2.output import painted

EXACT = 1e-10  # different orders of summation in float64
DIFFERENCES = 1e-7  # second-order central differences with a step of 1e-5
STEP = 1e-5


def scaled_error(x: ArrayLike, y: ArrayLike) -> float:
    """Largest |x - y| / max(1, |x| + |y|) over the entries."""
    x, y = np.asarray(x), np.asarray(y)
    return float(np.max(np.abs(x - y) / np.maximum(1.0, np.abs(x) + np.abs(y)), initial=0.0))


def slope(f: Callable[..., Any], args: Sequence, tangents: Sequence) -> Any:
    """Central difference of f(*args) along the tangents (None: constant)."""

    def at(h):
        return f(*(a if t is None else a + h * t for a, t in zip(args, tangents)))

    return (at(STEP) - at(-STEP)) / (2 * STEP)


def check_layer(name: str, seed: int = 0, file: str | None = None) -> dict[str, tuple[float, float]]:
    """Scaled errors of one layer, GPT-2's or of a user's file: a dict from comparison to (error, tolerance).
    A layer without a manual backward is not compared with one."""
    rng = np.random.default_rng(seed)
    case = subject(name, SIZES, "float64", file)
    args, layer, static = case.inputs(rng), case.layer, case.static

    def forward(*inputs):
        return layer.forward(*inputs, **static)[0]

    out, saved = layer.forward(*args, **static)
    dout = rng.standard_normal(out.shape)
    grads, errors = {}, {}
    if layer.backward is not None:
        grads["manual"] = layer.backward(dout, saved, **static)
    for title, other in (("compiled", compiled), ("auto", auto)):
        if title == "auto" or grads:
            result, saved_by_other = other(layer).forward(*args, **static)
            grads[title] = other(layer).backward(dout, saved_by_other, **static)
            if "manual" in grads:
                pairs = [(x, y) for x, y in zip(grads[title], grads["manual"]) if y is not None]
                error = np.max([scaled_error(x, y) for x, y in [*pairs, (result, out)]])
                errors[f"manual~{title}"] = float(error), EXACT
    derived = grads["auto"]
    tangents = [None if g is None else rng.standard_normal(g.shape) for g in derived]
    differences = float(np.sum(dout * slope(forward, args, tangents)))
    for title in ("manual", "auto"):
        if title in grads:
            error = scaled_error(_dot(grads[title], tangents), differences)
            errors[f"{title}~differences"] = error, DIFFERENCES
    pushed = _pushforward(forward, args, tangents)
    errors["auto~forward mode"] = scaled_error(_dot(derived, tangents), float(np.sum(dout * pushed))), EXACT
    return errors


# The row "variant": a model with every setting that differs from GPT-2 as it was released
VARIANT = {
    "n_inner": 20,
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-3,
    "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True,
    "tie_word_embeddings": False,
    "bias": False,
}


def check_model(
    file: str | None = None, seed: int = 0, settings: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, tuple[float, float]]:
    """Scaled errors of the loss of a small model: by hand, if the user's file of layers has a manual backward
    for each, derived layer by layer, and as one program. settings: of GPT2Config, besides its sizes."""
    config = GPT2Config(17, 8, n_layer=2, n_head=3, n_embd=12, dtype="float64", **settings)
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, 17, (2, 2, 5))
    models = {b: GPT2(config, b, layers=file) for b in ("auto", "whole")}
    reference = "auto"
    if default_for(models["auto"].description.written) == "manual":
        models["compiled"] = GPT2(config, layers=file)
        models["manual"] = GPT2(config, compile=False, layers=file)
        reference = "manual"
    start = models["auto"].flat_params
    start = start + 0.2 * rng.standard_normal(start.shape)
    for model in models.values():
        model.flat_params[...] = start
        model.loss_and_grads(tokens, targets)
    params, d = models["whole"].params, models["whole"].description
    tangents = [rng.standard_normal(p.shape) for p in params.values()]

    def loss(*values):
        named = dict(zip(params, values))
        return loss_fn(named, tokens, targets, config=config, layers=d.written, description=d)

    values, grads = list(params.values()), {title: model.flat_grads for title, model in models.items()}
    differences = float(slope(loss, values, tangents))
    pushed = float(_pushforward(loss, values, tangents))
    along = {title: _dot(model.grads.values(), tangents) for title, model in models.items()}
    errors = {
        f"{reference}~{title}": (scaled_error(grads[title], grads[reference]), EXACT)
        for title in ("compiled", "auto", "whole")
        if title in grads and title != reference
    }
    if "manual" in along:
        errors["manual~differences"] = scaled_error(along["manual"], differences), DIFFERENCES
    errors["auto~differences"] = scaled_error(along["whole"], differences), DIFFERENCES
    errors["auto~forward mode"] = scaled_error(along["whole"], pushed), EXACT
    return errors


def _dot(grads, tangents):
    return float(sum(np.sum(g * t) for g, t in zip(grads, tangents) if g is not None))


def _pushforward(f, args, tangents):
    """Tangent of f's result by forward mode, with integer arguments constant."""
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


def _cell(result: tuple[float, float] | None) -> str:
    if result is None:
        return f"{'-':>11s}"
    error, tolerance = result
    good = error <= tolerance  # false for nan
    mark = painted("ok", "green") if good else painted("BAD", "red")
    return f"{error:>{8 if good else 7}.0e} {mark}"


def check_gradients(names: Iterable[str] = (*LAYERS, "model", "variant"), file: str | None = None) -> bool:
    """Print the table of errors of layers and models, GPT-2's or of a user's file, and what is wrong with
    manual backwards that are. True if all errors are within their tolerances."""
    every = {}
    for name in names:
        if name in ("model", "variant"):
            every[name] = check_model(file, settings=VARIANT if name == "variant" else {})
        else:
            every[name] = check_layer(name, file=file)
    columns = [column for column in COLUMNS if any(column in errors for errors in every.values())]
    print("largest scaled error |x-y| / max(1, |x|+|y|), float64\n")
    titles = [column.replace("differences", "difference").replace("~", " ").split() for column in columns]
    for heads in zip_longest(*titles, fillvalue=""):  # a word a line
        print((" " * 12 + "".join(f"{head:>11s}" for head in heads)).rstrip())
    for name, errors in every.items():
        print(f"{name:12s}{''.join(_cell(errors.get(column)) for column in columns)}".rstrip())
    good = {name: {k: error <= most for k, (error, most) in errors.items()} for name, errors in every.items()}
    passed = all(all(of.values()) for of in good.values())
    verdict = painted("all hold", "green") if passed else painted("NOT ALL HOLD", "red")
    print(f"\ntolerances: {EXACT:.0e}, beside differences {DIFFERENCES:.0e}: {verdict}")
    blamed = [
        name
        for name, of in good.items()
        if of.get("manual~differences", False) and not of.get("auto~differences", True)
    ]
    if blamed:
        print(
            f"{', '.join(blamed)}: the backward by hand agrees with differences, the derived one does not; "
            "a rule of the compiler is wrong: pytest -x tests/autodiff/ops"
        )
    for name, of in good.items():
        if name not in ("model", "variant", *blamed) and not all(of.values()):
            layer = subject(name, SIZES, "float64", file).layer
            if layer.backward is not None:
                _report(f"{name}_backward", layer.forward, layer.backward, cases_of(name, file))
    return passed


# ---- Backwards of a file ---------------------------------------------------------------------------------


def run_file(path: str | Path) -> dict[str, Any]:
    """The names that a Python file defines. Raises UserError if it cannot be run."""
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: it cannot be run: {type(error).__name__}: {reason(error)}") from None


def raised(error: BaseException, path: str | Path) -> str:
    """An error that a function of a file raised, with the line that it comes from: "X at f.py:3: why"."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f" at {Path(path).name}:{lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}: {reason(error)}"


def pairs(path: str | Path) -> Iterator[tuple[str, Any, Any, list]]:
    """(name, forward, backward, cases) of every backward in a Python file. Runs the file.

    Raises UserError if it cannot be run, has no backward, or a forward or cases are missing.
    """
    names = run_file(path)
    backwards = [name.removesuffix("_backward") for name in names if name.endswith("_backward")]
    if not backwards:
        layers = typed(f"gpt2 check --layers {quoted(path)}")
        own = f"; its layers are checked with: {layers}" if {"LAYERS", "BLOCK"} & names.keys() else ""
        raise UserError(
            f"{path}: no function NAME_backward to compare with NAME_forward on NAME_cases, or with GPT-2's "
            f"layer NAME ({', '.join(LAYERS)}){own}"
        )
    for name in backwards:
        forward = names.get(f"{name}_forward") or (LAYERS[name].forward if name in LAYERS else None)
        if forward is None:
            raise UserError(f"{path}: {name}_backward has no {name}_forward{suggestion(name, LAYERS)}")
        cases = names.get(f"{name}_cases") or (cases_of(name) if name in LAYERS else None)
        if not cases:
            raise UserError(f"{path}: {name}_cases is missing: a list of tuples of inputs for {name}_forward")
        yield name, forward, names[f"{name}_backward"], cases


def cases_of(name: str, file: str | None = None) -> list:
    """Three cases of a layer of GPT-2, or of a file of own layers, in float64, with sizes that all differ."""
    case = subject(name, SIZES, "float64", file)
    return [(case.inputs(seed), case.static) for seed in range(3)]


def mistakes(forward: Callable, backward: Callable, cases: list) -> list[str]:
    """What is wrong with a backward, and the likely cause, as lines; [] if it is right."""
    try:
        ad.check_backward(forward, backward, cases)
        return []
    except ad.BackwardMismatch as mismatch:
        first, *rest = str(mismatch).split("\n")
        details = [line for line in rest if line.startswith(("  case 0", "      "))]
        return [first, *dict.fromkeys(details or rest)]


def _report(name: str, forward: Callable, backward: Callable, cases: list) -> bool:
    """Print whether a backward is the derivative of its forward, and what is wrong with it."""
    path, where = "", name
    with suppress(OSError, TypeError):  # without a source: a functools.partial, or no function at all
        path = inspect.getsourcefile(backward) or ""
        where = f"{name} ({Path(path).name}:{inspect.getsourcelines(backward)[1]})"
    try:
        wrong = mistakes(forward, backward, cases)
    except (Exception, SystemExit) as error:
        wrong = [f": {printable(raised(error, path))}"]
    if not wrong:
        print(f"{painted('ok ', 'green')} {where}")
        return True
    first, *details = wrong
    what = first.removeprefix(getattr(backward, "__name__", "backward"))
    print(f"{painted('BAD', 'red')} {where}{what}")
    for line in details:
        print("\n".join(cli.wrapped(line, min(cli.width(), 110) - 1)))
    return False


EXAMPLES = (
    ("gpt2 check", "every layer and the whole model"),
    ("gpt2 check layernorm attention", "two layers"),
    ("gpt2 check mine.py", "every NAME_backward of a file, with what is probably wrong with it"),
)
ABOUT = """Check gradients: of every layer and the model, or of a backward that you wrote.

A file has functions NAME_forward and NAME_backward, as gpt2/layers has. Where NAME is a layer of GPT-2 its
forward may be left out. Other layers need a list NAME_cases: tuples of inputs, or (inputs, settings)
pairs."""


def parser() -> cli.Parser:
    command = cli.Parser("check", ABOUT, EXAMPLES)
    command.add_argument("--layers", metavar="FILE.py", help="a file of own layers instead of GPT-2's")
    models = "model, variant (a model with each setting changed)"
    about = f"{', '.join(LAYERS)}, {models}, or a file (default: all layers and both models)"
    command.add_argument("what", nargs="*", metavar="LAYER|FILE.py", help=about)
    return command


def _run(args):
    names = [*names_of(args.layers), "model", *(() if args.layers else ("variant",))]
    for target in args.what:
        if target not in names and not target.endswith(".py"):
            raise UserError(
                f"{target}: expected a file X.py or one of {', '.join(names)}{suggestion(target, names)}"
            )
    files = [target for target in args.what if target not in names]
    layers = [target for target in args.what if target in names] or ([] if files else names)
    results = [_report(f"{name}_backward", *pair) for file in files for name, *pair in pairs(file)]
    if layers:
        results.append(check_gradients(layers, args.layers))
    return 0 if all(results) else 1


# Exit status 0 if all gradients agree, 1 if some do not, 2 for a wrong command line.
main = cli.command(parser, _run)
