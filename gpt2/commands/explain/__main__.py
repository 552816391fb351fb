"""Forward, manual and derived backward of a layer side by side, with the compiler's stages."""

from pathlib import Path

from gpt2 import cli
from gpt2.commands.explain.page import page, text
from gpt2.commands.explain.parts import MODEL, explain, explain_model
from gpt2.commands.explain.subject import BLOCK, names_of
from gpt2.errors import UserError
from gpt2.hints import typed
from gpt2.layers import ALL_LAYERS
from gpt2.storage.files import write_atomically

EXAMPLES = (
    ("gpt2 explain layernorm", "in this terminal, side by side if it is wide enough"),
    ("gpt2 explain gelu attention --out two.html", "as a page"),
    ("gpt2 explain all --out layers.html", "every layer of GPT-2"),
    ("gpt2 explain all --layers mine.py", "the layers and the block of your file"),
    ("gpt2 explain model", "the whole loss, manual and derived"),
    ("gpt2 explain model --layers mine.py", "the same for a model with the layers of your file"),
)
ABOUT = """Forward, manual and derived backward of a layer side by side, with the compiler's stages.

Prints text, or writes a page with --out: one HTML file that needs nothing else, also on phones and paper."""


def parser() -> cli.Parser:
    command = cli.Parser("explain", ABOUT, EXAMPLES)
    add = command.add_argument
    known, about = [*ALL_LAYERS, BLOCK, "all", MODEL], f"{', '.join(ALL_LAYERS)}, all, or {MODEL}"
    add("layers", nargs="+", metavar="LAYER", choices=known, help=about)
    about = "explain the layers of your file; block is its block"
    add("--layers", dest="file", metavar="FILE.py", help=about)
    add("--out", metavar="FILE.html", help="write a page instead")
    add("--emitted", action="store_true", help="show the emitted programs in the third column")
    return command


def _run(args):
    known = names_of(args.file)
    names = known if "all" in args.layers else list(dict.fromkeys(args.layers))
    if MODEL in args.layers:
        if args.out is not None or len(args.layers) > 1:
            raise UserError(f"{MODEL}: only by itself and as text: {typed(f'gpt2 explain {MODEL}')}")
        print(explain_model(args.file, cli.width(0)))
        return
    if unknown := [name for name in names if name not in known]:
        source = "GPT-2" if args.file is None else args.file
        raise UserError(f"{source} has no layer {unknown[0]}; it has {', '.join(known)}")
    if args.out is None:
        print("\n\n".join(text(explain(name, args.file), cli.width(), args.emitted) for name in names))
        return
    out = Path(args.out)
    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: no such folder: {out.parent}")
    write_atomically(out, page([explain(name, args.file) for name in names]).encode())
    print(f"wrote {args.out}")


main = cli.command(parser, _run)
