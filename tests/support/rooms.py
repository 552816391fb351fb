"""Which rooms of a package a call enters: counted by the interpreter's trace hook.

    python -m tests.support.rooms       the rooms of the first call of ad.grad(f)(x), and the calls in each

A room is a folder directly under the package, or a file there. What runs while modules are loaded does not
count.
"""

import inspect
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from gpt2 import autodiff as ad

AUTODIFF = Path(ad.__file__).parent


def rooms_entered(call, package=AUTODIFF):
    """Room -> Python calls of functions in it, while call() runs in this thread."""
    found = Counter()
    home = str(package) + "/"

    def hook(frame, event, _):
        code = frame.f_code
        loading = code.co_name == "<module>" or not code.co_flags & inspect.CO_OPTIMIZED  # or a class's body
        if event == "call" and not loading and code.co_filename.startswith(home):
            found[Path(code.co_filename).relative_to(package).parts[0].removesuffix(".py")] += 1

    before = sys.gettrace()  # sys.setprofile belongs to the compiler while it watches a function
    sys.settrace(hook)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


def first_call():
    """The rooms that the first call of a new gradient enters."""

    def f(x):
        return np.sum(np.tanh(x) * x)

    return rooms_entered(lambda: ad.grad(f)(np.linspace(0.0, 1.0, 100)))


def main():
    """Print the rooms of a first call."""
    found = first_call()
    for room, calls in found.most_common():
        print(f"{room:<10} {calls:>6}")
    print(f"{len(found)} rooms, {found.total()} calls")


if __name__ == "__main__":
    main()
