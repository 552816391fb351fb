"""Runs a check on one seed after another for some seconds; used by alike.py and blocks.py."""

import argparse
import time
from collections.abc import Callable, Sequence

from gpt2.autodiff.passes import alike


def hunt(
    about: str, argv: Sequence[str] | None, check: Callable[[int], tuple[str, str | None]]
) -> tuple[int, int]:
    """(seeds, how many were wrong), each wrong one printed. Short programs take the paths of long ones.

    about   the first line of --help
    check   seed -> the text of its program, and what is wrong with it or None
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=100.0)
    args = parser.parse_args(argv)
    alike.LEAST, alike.GRAM, alike.SHORT = 12, 2, 3
    alike._Rolled.pays = lambda self, last: True
    until, seed, found = time.monotonic() + args.seconds, args.start, 0
    while time.monotonic() < until:
        text, wrong = check(seed)
        if wrong is not None:
            found += 1
            print(f"seed {seed}: {wrong}\n{text}", flush=True)
        seed += 1
    return seed - args.start, found
