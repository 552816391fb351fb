"""Train a model, or go on with a run."""

import sys

from gpt2.train.program import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m gpt2.train"))
