"""Spoilt files of every kind that is read, by the thousand.

    python -m tests.long.damage                       20,000 files, about four minutes
    python -m tests.long.damage --files 2000 --seed 5 --only tokenizer

Prints a line a kind: how many could still be read, how many were refused in one line, how many were a
surprise (tests/support/damage.py says what is one). Surprises are kept, so that they can be looked at.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.damage import fuzz, subjects

ROOM = 2 << 30  # bytes of addresses that this process may take beyond what it has: tracemalloc sees not all


def limit_memory():
    """Let anything that asks for much more than there is in the files fail."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, resource.RLIM_INFINITY))
    except (ImportError, OSError):
        print("memory is not limited: this system cannot")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.long.damage", description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of a kind's name")
    args = parser.parse_args(argv)
    os.environ["GPT2_OFFLINE"] = "1"
    chosen = [subject for subject in subjects() if args.only in subject.name]
    each = -(-args.files // len(chosen))
    limit_memory()
    keep = Path(tempfile.mkdtemp(prefix="gpt2-damage-"))
    total, begin, highest = Counter(), time.monotonic(), 0
    print(f"{'kind':24} {'files':>6} {'read':>6} {'refused':>8} {'surprises':>10} {'most memory':>12}")
    for i, subject in enumerate(chosen):
        counts, messages, most = Counter(), Counter(), 0
        with tempfile.TemporaryDirectory() as place:
            for number, content, came in fuzz(subject, Path(place), each, args.seed):
                counts[came.kind] += 1
                most = max(most, came.peak)
                if came.kind == "surprise":
                    messages[came.text.replace(place, "")[:160]] += 1
                    (keep / f"{i}-{number}-{subject.file}").write_bytes(content)
        total += counts
        highest = max(most, highest)
        print(
            f"{subject.name:24} {each:6} {counts['read']:6} {counts['refused']:8} {counts['surprise']:10} "
            f"{most / 1e6:9.1f} MB",
            flush=True,
        )
        for text, count in messages.most_common(8):
            print(f"    {count} times: {text}")
    print(
        f"{sum(total.values()):,} spoilt files in {time.monotonic() - begin:.0f} s: {total['read']:,} "
        f"read, {total['refused']:,} refused in one line, {total['surprise']} surprises"
    )
    if total["surprise"]:
        print(f"the files are kept in {keep}")
        return 1
    keep.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
