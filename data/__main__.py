"""python -m data CORPUS [--tokenizer NAME] [--out FOLDER]: write a corpus' token files and say where."""

import argparse
import sys

from data import prepare
from gpt2.dataset import read_tokens
from gpt2.errors import UserError


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m data", description="Turn text into token files.")
    parser.add_argument("corpus", help="tinyshakespeare, stdlib, auto or a text file")
    parser.add_argument("--tokenizer", default="auto", help="gpt2, byte, char, bpe:N or auto (default: auto)")
    parser.add_argument("--out", help="folder for the files (default: one in the cache folder)")
    args = parser.parse_args(argv)
    try:
        made = prepare(args.corpus, args.tokenizer, args.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for note in made.notes:
        print(f"note: {note}")
    print(f"{made.corpus}, tokenizer {made.tokenizer.name} ({made.tokenizer.vocab_size} tokens)")
    for path in (made.train, made.val):
        print(f"{len(read_tokens(path)):>12,} tokens  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
