"""Forward, manual and derived backward of a layer side by side, with the compiler's stages.

    python -m gpt2.explain layernorm
    python -m gpt2.explain gelu attention --out two.html
    python -m gpt2.explain all --out layers.html

Without --out it is text. The page of --out is one file, opens from disk, and can be read on a phone and
printed.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpt2.errors import UserError, exit_status
from gpt2.explain.page import page
from gpt2.explain.parts import explain
from gpt2.explain.text import text
from gpt2.layers import LAYERS
from gpt2.storage.files import write_atomically

WIDTH = 180  # characters, where the output is no terminal


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m gpt2.explain",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("layers", nargs="+", metavar="LAYER", choices=[*LAYERS, "all"], help=", ".join(LAYERS) + ", or all")
    add("--out", metavar="FILE.html", help="write a page instead")
    add("--emitted", action="store_true", help="in the third column, the programs that run")
    return parser


def _run(args):
    names = list(LAYERS) if "all" in args.layers else list(dict.fromkeys(args.layers))
    if args.out is None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
        print("\n\n".join(text(explain(name), width, args.emitted) for name in names))
        return
    out = Path(args.out)
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    write_atomically(out, page([explain(name) for name in names]).encode())
    print(f"wrote {args.out}")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return exit_status(_run, args)


if __name__ == "__main__":
    sys.exit(main())
