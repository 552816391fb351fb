"""python -m data CORPUS [--tokenizer NAME] [--out FOLDER]: write a corpus' token files and say where."""

import sys

from gpt2.data.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
