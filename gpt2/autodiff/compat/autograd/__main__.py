"""Runs an unchanged program for HIPS autograd: `python -m gpt2.autodiff.compat.autograd program.py`.

Or a module: `python -m gpt2.autodiff.compat.autograd -m pytest tests`.
"""

from __future__ import annotations

import os
import runpy
import sys

from .install import installed

USAGE = "usage: python -m gpt2.autodiff.compat.autograd (program.py | -m module) [arguments]"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    module = arguments[:1] == ["-m"]
    rest = arguments[1:] if module else arguments
    if not rest or not module and rest[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    sys.argv = rest
    with installed():
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(rest[0])))
            runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
