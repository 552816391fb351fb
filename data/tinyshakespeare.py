"""The token files of tiny Shakespeare: python data/tinyshakespeare.py [--tokenizer NAME] [--out FOLDER]."""

import sys

from gpt2.data.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["tinyshakespeare", *sys.argv[1:]]))
