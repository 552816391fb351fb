"""Change random worlds (tests/support/worlds/random_worlds.py) a hundred thousand times, and look for stale
answers.

python tests/long/worlds.py                       100,000 changes, some minutes
python tests/long/worlds.py --start 50000 --count 2000 --kind module
"""

import argparse
import collections
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.worlds.random_worlds import ACTING, KINDS, STEPS, Stale, check_acting, check_world  # noqa: E402


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, default=100_000 // STEPS, help=f"worlds, each changed {STEPS} times"
    )
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="things of this kind alone")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    failed, reused = collections.Counter(), 0
    begin = time.process_time()
    for name in ACTING:
        check_acting(name, calls=50)
    for seed in range(args.start, args.start + args.count):
        if (seed - args.start) % 1000 == 999:
            print(f"{(seed - args.start + 1) * STEPS} changes so far", flush=True)
        try:
            reused += check_world(seed, args.kind)
        except Stale as error:
            failed["stale"] += 1
            print(f"seed {seed}\n{error}\n", flush=True)
        except Exception as error:
            failed[type(error).__name__] += 1
            traceback.print_exc(limit=-3)
            print(f"seed {seed}\n", flush=True)
    changes = args.count * STEPS
    print(
        f"{changes} changes of {args.count} worlds: {sum(failed.values())} failed {dict(failed) or ''}; "
        f"after {reused} of them the function was understood, and would not be run again; "
        f"{time.process_time() - begin:.0f} s of one core"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
