"""Forward, manual and derived backward of a layer side by side, with the compiler's stages.

gpt2 explain layernorm
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from gpt2 import cli
from gpt2.commands.certificate import BLOCK, names_of
from gpt2.commands.explain.page import page
from gpt2.commands.explain.parts import MODEL, explain, explain_model
from gpt2.commands.explain.text import text
from gpt2.errors import UserError
from gpt2.hints import typed
from gpt2.layers import LAYERS
from gpt2.storage.files import write_atomically

EXAMPLES = (
    ("gpt2 explain layernorm", "in this terminal, side by side where it is wide enough"),
    ("gpt2 explain gelu attention --out two.html", "as a page"),
    ("gpt2 explain all --out layers.html", "every layer of GPT-2"),
    ("gpt2 explain all --layers mine.py", "the layers and the block of a file of your own"),
    ("gpt2 explain model", "the whole loss: a block once, by hand and derived"),
    ("gpt2 explain model --layers mine.py", "the same of a model with the layers of a file"),
)
ABOUT = """Forward, manual and derived backward of a layer side by side, with the compiler's stages.

Without --out it is text. The page of --out is one file, opens from disk, and can be read on a phone and
printed."""


def parser() -> cli.Parser:
    """The flags of `gpt2 explain`."""
    made = cli.Parser("explain", ABOUT, EXAMPLES)
    add = made.add_argument
    add(
        "layers",
        nargs="+",
        metavar="LAYER",
        choices=[*LAYERS, BLOCK, "all", MODEL],
        help=f"{', '.join(LAYERS)}, all, or {MODEL}",
    )
    add("--layers", dest="file", metavar="FILE.py", help="of a file of own layers; block is its block")
    add("--out", metavar="FILE.html", help="write a page instead")
    add("--emitted", action="store_true", help="in the third column, the programs that run")
    return made


def _run(args):
    known = names_of(args.file)
    names = known if "all" in args.layers else list(dict.fromkeys(args.layers))
    if MODEL in args.layers:
        if args.out is not None or len(args.layers) > 1:
            raise UserError(f"{MODEL}: stands alone, as text: {typed(f'gpt2 explain {MODEL}')}")
        print(explain_model(args.file, cli.width(0)))
        return
    if unknown := [name for name in names if name not in known]:
        of = "GPT-2" if args.file is None else args.file
        raise UserError(f"{of} has no {unknown[0]} to explain; it has {', '.join(known)}")
    if args.out is None:
        print("\n\n".join(text(explain(name, args.file), cli.width(), args.emitted) for name in names))
        return
    out = Path(args.out)
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    write_atomically(out, page([explain(name, args.file) for name in names]).encode())
    print(f"wrote {args.out}")


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
