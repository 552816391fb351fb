"""Check gradients: of every layer and the model, or of a backward that you wrote.

    gpt2 check                      by hand, derived, by differences and in forward mode
    gpt2 check mine.py              every NAME_backward of a file against its forward

A file has functions NAME_forward and NAME_backward, as gpt2/layers has. Where NAME is a layer of GPT-2 its
forward may be left out. Other layers need a list NAME_cases: tuples of inputs, or (inputs, settings) pairs.
"""

import inspect
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.commands import certificate
from gpt2.errors import UserError, printable, reason, suggestion
from gpt2.hints import quoted, typed
from gpt2.layers import LAYERS
from gpt2.layers.cases import at
from gpt2.output import painted

SIZES = certificate.SIZES


def run_file(path: str | Path) -> dict[str, Any]:
    """The names that a file of Python defines. Raises UserError where it cannot be run."""
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
    """(name, forward, backward, cases) of every backward in a file of Python. Runs the file.

    Raises UserError where it cannot be run, has no backward, or one whose forward or cases are missing.
    """
    names = run_file(path)
    found = [name.removesuffix("_backward") for name in names if name.endswith("_backward")]
    if not found:
        layers = typed(f"gpt2 certificate --check --layers {quoted(path)}")
        own = f"; its layers are checked with: {layers}" if {"LAYERS", "BLOCK"} & names.keys() else ""
        raise UserError(
            f"{path}: no function is called NAME_backward, which would be compared with NAME_forward on "
            f"NAME_cases, or with a layer of GPT-2's of that name ({', '.join(LAYERS)}){own}"
        )
    for name in found:
        forward = names.get(f"{name}_forward") or (LAYERS[name].forward if name in LAYERS else None)
        if forward is None:
            raise UserError(f"{path}: {name}_backward has no {name}_forward{suggestion(name, LAYERS)}")
        cases = names.get(f"{name}_cases") or (known_cases(name) if name in LAYERS else None)
        if not cases:
            raise UserError(f"{path}: {name}_cases is missing: a list of tuples of inputs for {name}_forward")
        yield name, forward, names[f"{name}_backward"], cases


def known_cases(name: str) -> list:
    """Three cases of a layer of GPT-2, of float64 and of sizes that all differ."""
    case = at(SIZES)[name]
    return [(case.inputs(np.float64, seed), case.static) for seed in range(3)]


def check_file(path: str | Path) -> bool:
    """Compare every backward of a file with the derivative of its forward, a line each. True: all right."""
    right = True
    for name, forward, backward, cases in pairs(path):
        where = f"{Path(path).name}:{inspect.getsourcelines(backward)[1]}"
        try:
            ad.check_backward(forward, backward, cases)
            print(f"{painted('ok ', 'green')} {name}_backward ({where})")
        except ad.BackwardMismatch as wrong:
            right = False
            first, *rest = str(wrong).split("\n")
            later = next((i for i, line in enumerate(rest) if line.startswith("  case 1")), len(rest))
            kept = [line for line in rest[:later] if line.startswith(("  case 0", "      "))]
            print(f"{painted('BAD', 'red')} {first.replace('_backward ', f'_backward ({where}) ', 1)}")
            for line in kept or rest:
                print("\n".join(cli.wrapped(line, min(cli.width(), 110) - 1)))
        except (Exception, SystemExit) as error:
            right = False
            print(f"{painted('BAD', 'red')} {name}_backward ({where}): {printable(raised(error, path))}")
    return right


EXAMPLES = (
    ("gpt2 check", "every layer and the whole model"),
    ("gpt2 check layernorm attention", "two layers"),
    ("gpt2 check mine.py", "every NAME_backward of a file, with what is probably wrong with it"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 check`."""
    made = cli.Parser("check", __doc__.partition("\n\n")[0] + "\n\n" + __doc__.split("\n\n")[2], EXAMPLES)
    made.add_argument("--layers", metavar="FILE.py", help="a file of own layers instead of GPT-2's")
    made.add_argument(
        "what",
        nargs="*",
        metavar="LAYER|FILE.py",
        help=f"{', '.join(LAYERS)}, model, or a file (default: all)",
    )
    return made


def _run(args):
    names = [*certificate.names_of(args.layers), "model"]
    for what in args.what:
        if what not in names and not what.endswith(".py"):
            raise UserError(
                f"{what}: expected a file X.py or one of {', '.join(names)}{suggestion(what, names)}"
            )
    files = [what for what in args.what if what not in names]
    layers = [what for what in args.what if what in names] or ([] if files else names)
    right = [check_file(file) for file in files]
    if layers:
        right.append(certificate.certificate(layers, args.layers))
        if not right[-1] and args.layers is None:  # of backwards by hand it can be said what is wrong
            sources = {inspect.getsourcefile(LAYERS[name].forward) for name in layers if name in LAYERS}
            right += [check_file(file) for file in sorted(filter(None, sources))]
    return 0 if all(right) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all gradients agree, 1 if some do not, 2 for a wrong command line."""
    return cli.run(parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
