"""Plant every small mistake of tests/support/mutants, one at a time; list those no gradient test sees.

    python tests/long/mutate.py                      all of them, two minutes of one core or more
    python tests/long/mutate.py layers model         the hand-written backwards only
    python tests/long/mutate.py table --every 10     each tenth of the table's

Survivors that compute the same gradient are explained in tests/support/mutants/survivors.txt, with their
number; any other one is an error (exit status 1), and asks for a better test.
"Hung" are mistakes with which a test does not end.
"""

import argparse
import collections
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: products are tiny
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.mutants import planting  # noqa: E402
from tests.support.mutants.checks import HUNG, caught, passes  # noqa: E402
from tests.support.mutants.planting import EXPLAINED, GROUPS, explanation  # noqa: E402


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=f"some of {', '.join(GROUPS)}")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="plant each N-th mistake only")
    parser.add_argument("--only", default="", metavar="TEXT", help="mistakes whose line contains TEXT")
    args = parser.parse_args(argv)
    unknown = set(args.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {unknown.pop()}, expected some of {', '.join(GROUPS)}")
    bad = sum(run(group, args.every, args.only) for group in args.groups)
    sys.exit(bool(bad))


def run(group, every, only):
    """Plant a group's mistakes; returns how many survived without an explanation, plus how many explanations
    are of another number of mistakes."""
    planted = [m for m in GROUPS[group]()[::every] if only in str(m)]
    begin = time.process_time()
    for m in {m.tests: m for m in planted}.values():
        passes(m)
    count, left, survived = collections.Counter(), [], collections.Counter()
    for m in planted:
        try:
            test = caught(m)
        except planting.Unplantable:
            count["not planted"] += 1
            continue
        if test is not None:
            count["hung" if test == HUNG else "caught"] += 1
        elif explanation(m) is not None:
            count["explained"] += 1
            survived[explanation(m)] += 1
        else:
            count["SURVIVED"] += 1
            left.append(m)
    seconds = time.process_time() - begin
    figures = ", ".join(f"{n} {what}" for what, n in count.items())
    print(f"{group}: {len(planted)} mistakes: {figures}; {seconds:.0f} s of one core", flush=True)
    why = collections.Counter()
    for key, n in survived.items():
        why[EXPLAINED[key][0]] += n
    for reason, n in why.most_common():
        print(f"    {n:4} survive rightly: {reason}")
    keys = {explanation(m) for m in planted} - {None} if every == 1 and not only else ()
    wrong = [key for key in keys if survived[key] != EXPLAINED[key][1]]
    for key in wrong:
        print(f"    {survived[key]} SURVIVED of {EXPLAINED[key][1]} explained: {key}", flush=True)
    for m in left:
        print(f"    SURVIVED  {m}", flush=True)
    return len(left) + len(wrong)


if __name__ == "__main__":
    main()
