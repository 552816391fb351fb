"""Turn text into token files."""

import sys

from gpt2 import cli
from gpt2.data.corpora import prepare
from gpt2.data.tokens import read_tokens
from gpt2.errors import printable

EXAMPLES = (
    ("gpt2 data tinyshakespeare", "a named corpus"),
    ("gpt2 data my.txt --tokenizer bpe:1000 --out tokens", "a text, and a tokenizer trained on it"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 data`."""
    command = cli.Parser("data", "Turn text into token files.", EXAMPLES)
    command.add_argument("corpus", help="tinyshakespeare, stdlib, auto or a text file")
    command.add_argument(
        "--tokenizer", default="auto", help="gpt2, byte, char, bpe:N, a path or auto (default: auto)"
    )
    command.add_argument("--out", help="folder for the files (default: one in the cache folder)")
    return command


def _run(args):
    prepared = prepare(args.corpus, args.tokenizer, args.out)
    for note in prepared.notes:
        print(f"note: {printable(note)}")
    tokenizer = prepared.tokenizer
    print(f"{printable(prepared.corpus)}, tokenizer {tokenizer.name} ({tokenizer.vocab_size} tokens)")
    for path in (prepared.train, prepared.val):
        print(f"{len(read_tokens(path)):>12,} tokens  {printable(path)}")


main = cli.command(parser, _run)

if __name__ == "__main__":
    sys.exit(main())
