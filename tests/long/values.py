"""Compare random programs at the edges with NumPy, bit by bit (tests/support/random/values.py).

python tests/long/values.py                     100,000 programs, some twenty minutes of one core
python tests/long/values.py --start 50000 --count 10000
"""

import argparse
import collections
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS.parent))

from tests.support.random.values import Difference, check, shrink, write  # noqa: E402
from tests.support.small_sizes import set_sizes  # noqa: E402

BATCH = 500  # programs that run as they are, then as many in blocks and pieces, as large arrays do


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100_000, help="programs")
    args = parser.parse_args(argv)
    failed, statements = collections.Counter(), 0
    begin = time.process_time()
    for seed in range(args.start, args.start + args.count):
        set_sizes(small=seed // BATCH % 2 == 1)
        program = write(seed)
        statements += len(program.body)
        if (seed - args.start) % 10_000 == 9_999:
            print(f"{seed - args.start + 1} programs so far", flush=True)
        try:
            check(program)
        except Difference as error:
            failed[error.kind.split()[0]] += 1
            print(f"{error}\n{shrink(program, error).reproducer()}\n", flush=True)
        except Exception as error:  # an assertion of the compiler's own
            failed[type(error).__name__] += 1
            traceback.print_exc(limit=-3)
            print(f"{program.reproducer()}\n", flush=True)
    seconds = time.process_time() - begin
    print(
        f"{args.count} programs of {statements / args.count:.1f} statements: {sum(failed.values())} differ "
        f"{dict(failed) or ''}; {seconds:.0f} s of one core"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
