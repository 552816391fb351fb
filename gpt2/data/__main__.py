"""Turn text into token files."""

import sys
from collections.abc import Sequence

from gpt2 import cli
from gpt2.data.corpora import prepare
from gpt2.data.tokens import read_tokens
from gpt2.errors import printable

EXAMPLES = (
    ("gpt2 data tinyshakespeare", "tokens of a corpus that has a name"),
    ("gpt2 data my.txt --tokenizer bpe:1000 --out tokens", "of a text, with a tokenizer learnt from it"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 data`."""
    made = cli.Parser("data", "Turn text into token files.", EXAMPLES)
    made.add_argument("corpus", help="tinyshakespeare, stdlib, auto or a text file")
    made.add_argument("--tokenizer", default="auto", help="gpt2, byte, char, bpe:N or auto (default: auto)")
    made.add_argument("--out", help="folder for the files (default: one in the cache folder)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write the token files of the corpus that `argv` names, and say where they are. Returns the status."""
    return cli.run(parser(), _run, argv)


def _run(args):
    made = prepare(args.corpus, args.tokenizer, args.out)
    for note in made.notes:
        print(f"note: {printable(note)}")
    print(f"{printable(made.corpus)}, tokenizer {made.tokenizer.name} ({made.tokenizer.vocab_size} tokens)")
    for path in (made.train, made.val):
        print(f"{len(read_tokens(path)):>12,} tokens  {printable(path)}")


if __name__ == "__main__":
    sys.exit(main())
