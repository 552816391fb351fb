"""Turn text into token files."""

import sys
from pathlib import Path

from gpt2 import cli
from gpt2.data.corpora import prepare
from gpt2.errors import printable

EXAMPLES = (
    ("gpt2 data tinyshakespeare", "a named corpus"),
    ("gpt2 data my.txt --tokenizer bpe:1000 --out tokens", "a text, and a tokenizer trained on it"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 data`."""
    command = cli.Parser("data", "Turn text into token files.", EXAMPLES)
    command.add_argument("corpus", nargs="+", help="files, folders or patterns, as for --data of a run")
    command.add_argument("--val-data", nargs="+", default=[], metavar="CORPUS", help="what to validate on")
    command.add_argument(
        "--tokenizer", default="auto", help="gpt2, byte, char, bpe:N, a path or auto (default: auto)"
    )
    command.add_argument("--out", help="folder for the files (default: one in the cache folder)")
    return command


def _run(args):
    prepared = prepare(",".join(args.corpus), args.tokenizer, args.out, val_data=",".join(args.val_data))
    for note in prepared.notes:
        print(f"note: {printable(note)}")
    tokenizer = prepared.tokenizer
    print(f"{printable(prepared.corpus)}, tokenizer {tokenizer.name} ({tokenizer.vocab_size} tokens)")
    for part, paths in zip(prepared.read(), (prepared.train, prepared.val)):
        names = [paths] if isinstance(paths, Path) else [*paths]
        print(f"{len(part):>12,} tokens  {' '.join(map(printable, names))}")


main = cli.command(parser, _run)

if __name__ == "__main__":
    sys.exit(main())
