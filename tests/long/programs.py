"""Check thousands of random NumPy programs (tests/support/random/programs.py), and shrink what fails.

python tests/long/programs.py                     10,000 programs, some minutes
python tests/long/programs.py --start 50000 --count 2000
"""

import argparse
import collections
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.random.programs import Difference, check, shrink, write  # noqa: E402
from tests.support.small_sizes import set_sizes  # noqa: E402


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="programs")
    args = parser.parse_args(argv)
    set_sizes(small=True)
    failed, undecided, statements = collections.Counter(), 0, 0
    begin = time.process_time()
    for seed in range(args.start, args.start + args.count):
        program = write(seed)
        statements += len(program.body)
        if (seed - args.start) % 1000 == 999:
            print(f"{seed - args.start + 1} programs so far", flush=True)
        try:
            undecided += check(program, api=seed % 4 == 0).undecided
        except Difference as error:
            failed[error.kind] += 1
            print(f"{error}\n{shrink(program, error).reproducer()}\n", flush=True)
        except Exception as error:  # an assertion of the compiler's own
            failed[type(error).__name__] += 1
            traceback.print_exc(limit=-3)
            print(f"{program.reproducer()}\n", flush=True)
    seconds = time.process_time() - begin
    print(
        f"{args.count} programs of {statements / args.count:.1f} statements: {sum(failed.values())} failed "
        f"{dict(failed) or ''}, {undecided} undecided (near a kink); {seconds:.0f} s of one core"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
