"""Turn text into token files."""

import argparse
import sys
from collections.abc import Sequence

from gpt2.data.corpora import prepare
from gpt2.data.tokens import read_tokens
from gpt2.errors import exit_status


def main(argv: Sequence[str] | None = None, prog: str = "python -m gpt2.data") -> int:
    """Write the token files of the corpus that `argv` names, and say where they are. Returns the status."""
    parser = argparse.ArgumentParser(prog=prog, description="Turn text into token files.")
    parser.add_argument("corpus", help="tinyshakespeare, stdlib, auto or a text file")
    parser.add_argument("--tokenizer", default="auto", help="gpt2, byte, char, bpe:N or auto (default: auto)")
    parser.add_argument("--out", help="folder for the files (default: one in the cache folder)")
    return exit_status(_run, parser.parse_args(argv))


def _run(args):
    made = prepare(args.corpus, args.tokenizer, args.out)
    for note in made.notes:
        print(f"note: {note}")
    print(f"{made.corpus}, tokenizer {made.tokenizer.name} ({made.tokenizer.vocab_size} tokens)")
    for path in (made.train, made.val):
        print(f"{len(read_tokens(path)):>12,} tokens  {path}")


if __name__ == "__main__":
    sys.exit(main())
