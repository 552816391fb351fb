"""The token files of Python's standard library: python data/stdlib.py [--tokenizer NAME] [--out FOLDER]."""

import sys

from gpt2.data.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["stdlib", *sys.argv[1:]]))
