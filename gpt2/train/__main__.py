"""Train a model, or resume a run."""

import sys

from gpt2.train.program import main
from gpt2.train.settings import parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
