"""Random checks, one seed after another; what fails is printed with its seed, or shrunk to a small program.

python -m tests.long.seeds programs                          10,000 programs, some minutes
python -m tests.long.seeds values --start 50000 --count 1000
python -m tests.long.seeds worlds --start 42 --count 1       that world again

programs   derivatives of random NumPy programs, in several ways (tests/support/random/programs.py)
fills      programs that make plain arrays and write into them (tests/support/random/fills.py)
writes     writes of every kind into arrays of every dtype (tests/support/random/writes.py)
values     programs at the edges have NumPy's bits (tests/support/random/values.py)
escapes    plain numbers that are taken out of recorded values (tests/support/random/escapes.py)
questions  what may be asked of values and functions (tests/support/random/questions.py)
branches   gradients of guarded branches (tests/support/random/branches.py)
blocks     stacks of nearly equal blocks, with passes and without (tests/support/random/blocks.py)
worlds     functions of which the world changes, each 20 times (tests/support/worlds/random_worlds.py)
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import collections
import contextlib
import io
import sys
import time
import traceback
import warnings
from functools import partial

from tests.support.random import blocks, branches, escapes, fills, programs, questions, values, writes
from tests.support.small_sizes import set_sizes
from tests.support.worlds import random_worlds


def check_with(module, seed: int) -> str:
    """A program of `programs` or `fills`."""
    set_sizes(small=True)
    program = module.write(seed)
    with shrinking(module, program):
        return "undecided" if module.check(program, api=seed % 4 == 0).undecided else "right"


def check_values(seed: int) -> str:
    set_sizes(small=seed // 500 % 2 == 1)  # in blocks and pieces, as large arrays are
    program = values.write(seed)
    with shrinking(values, program):
        values.check(program)
    return "right"


@contextlib.contextmanager
def shrinking(module, program):
    """A failure of the program's check gets a note: the smallest program found that still has it."""
    try:
        yield
    except programs.Difference as error:
        error.add_note(module.shrink(program, error).reproducer())
        raise
    except Exception as error:  # an assertion of the compiler's own
        error.add_note(program.reproducer())
        raise


def written(module, seed: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()):  # some of what they write prints
        return module.check(module.write(seed))


def check_world(seed: int) -> str:
    return "reused" if random_worlds.check_world(seed) else "recorded at each call"


# name -> (check of a seed, which says how it went or raises; seeds by default)
KINDS = {
    "programs": (partial(check_with, programs), 10_000),
    "fills": (partial(check_with, fills), 20_000),
    "writes": (partial(written, writes), 20_000),
    "values": (check_values, 100_000),
    "escapes": (partial(written, escapes), 10_000),
    "branches": (partial(written, branches), 10_000),
    "questions": (partial(written, questions), 20_000),
    "blocks": (blocks.check, 1000),
    "worlds": (check_world, 5000),
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.seeds", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="seeds")
    args = parser.parse_args(argv)
    check, count = KINDS[args.kind]
    count = count if args.count is None else args.count
    warnings.simplefilter("ignore")
    found, failed, begin = collections.Counter(), 0, time.process_time()
    for seed in range(args.start, args.start + count):
        try:
            found[check(seed)] += 1
        except Exception as error:
            failed += 1
            limit = 0 if isinstance(error, AssertionError) else -3
            print(f"seed {seed}:", *traceback.format_exception(error, limit=limit), flush=True)
    seconds = time.process_time() - begin
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in found.most_common())
    print(f"{args.kind}: {count} seeds: {failed} failed, {outcomes}; {seconds:.0f} s of one core")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
