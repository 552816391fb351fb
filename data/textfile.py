"""The token files of a text of your own: python data/textfile.py FILE [--tokenizer NAME] [--out FOLDER]."""

import sys

from gpt2.data.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
