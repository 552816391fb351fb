"""A long run of a small model: memory, threads, files and speed stay what they were.

    python -m tests.long.endurance                               2,000 steps, under a minute
    python -m tests.long.endurance --steps 500 --parallel processes --workers 2

Flags that are not its own are those of train.py. Validations, samples and checkpoints come as in any run.
Exit status 1 where

    memory    grows by more than 1 MB, and by more than the fit's own uncertainty: a line through the resident
              memory of this process and its children in the second half of the run, drawn out to all of it.
              In the first half come the first checkpoint, validation and sample, which take some for good
    speed     the median step of the last tenth takes 3 % longer than that of the first (which has the steps
              that compile: a median does not mind). Wants a machine that does nothing else
    leftovers threads, open files, children or names in shared memory are there that were not before, or files
              in the folder of the run or the temporary folder that do not belong there
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of two, one waits for the other: no steady times

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import train
from gpt2 import flops, runs

SETTINGS = ["--tokenizer", "byte", "--n-layer", "2", "--n-head", "4", "--n-embd", "64", "--block-size", "64",
            "--batch-size", "8", "--backward", "auto", "--eval-every", "200", "--eval-batches", "2",
            "--sample-every", "500", "--sample-tokens", "16", "--save-every", "100", "--threads", "1"]
FILES = {runs.SETTINGS, runs.TOKENIZER, runs.METRICS, runs.LAST, runs.BEST}
GROWTH = 1 << 20  # bytes
SLOWER = 0.03


def children(parent=None):
    """Process ids of the children of this process, and of theirs."""
    parent = parent or os.getpid()
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def resident():
    """Bytes of memory in use by this process and its children."""
    pages = 0
    for process in (os.getpid(), *children()):
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError):
            pass  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE")


def possessions():
    """What a process could leave behind, kind by kind."""
    names = {"threads": {thread.name for thread in threading.enumerate()},
             "system threads": len(os.listdir("/proc/self/task")),
             "open files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                                  if os.path.exists(f"/proc/self/fd/{fd}")),
             "children": len(children()),
             "shared memory": {name for name in os.listdir("/dev/shm") if str(os.getpid()) in name},
             "temporary files": set(os.listdir(tempfile.gettempdir()))}
    return names


class Watch:
    """Notes time and memory of every step, in place of the line that shows them."""

    def __init__(self):
        self.seconds, self.memory = [], []
        self.children = 0

    def step(self, step, seconds, loss):
        self.seconds.append(seconds)
        if step % 10 == 0:
            self.memory.append((step, resident()))
            self.children = max(self.children, len(children()))
        return {}

    def line(self, text=""):
        pass

    def close(self):
        pass


def slope(points):
    """Bytes a step by which memory grows, and the standard error of it."""
    x, y = np.array(points, float).T
    (b, a), covariance = np.polyfit(x, y, 1, cov=True)
    return b, float(np.sqrt(covariance[0, 0]))


def run(folder, text, steps, more):
    """Train; returns the Watch."""
    argv = ["--data", str(text), *SETTINGS, "--steps", str(steps), *more]
    settings = train.new_settings(train.read_settings(argv)[0])
    train.share_out_threads(settings)
    made = train.Run(settings)
    watch = Watch()
    with train.closing(made), made.team, train.Interrupts() as interrupts:
        made.settings = train.dataclasses.replace(made.settings, out=str(folder))
        made.begin(made.take())
        if not train.loop(made, watch, interrupts):
            sys.exit("stopped")
    return watch


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.long.endurance", allow_abbrev=False,
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    args, more = parser.parse_known_args(argv)
    flops.matmul_peak = lambda dtype: 1e11
    os.environ["GPT2_OFFLINE"] = "1"
    failed = []
    with tempfile.TemporaryDirectory(prefix="gpt2-endurance-") as place:
        os.environ["GPT2_CACHE_DIR"] = place + "/cache"
        os.environ["TMPDIR"] = tempfile.tempdir = place + "/tmp"
        os.mkdir(tempfile.tempdir)
        text = Path(place, "text.txt")
        text.write_text("".join(f"{i} times {i + 1} is {i * (i + 1)}.\n" for i in range(4000)))
        # What there is once in a process: a pool of threads, imports, programs of the compiler
        often = ["--eval-every", "5", "--sample-every", "5", "--save-every", "5"]
        run(Path(place, "warm"), text, 20, [*more, *often])
        before = possessions()
        begin = time.monotonic()
        watch = run(Path(place, "run"), text, args.steps, more)
        took = time.monotonic() - begin
        after = possessions()
        files = {path.name for path in Path(place, "run").iterdir()}

    tenth = args.steps // 10
    points = [point for point in watch.memory if point[0] > args.steps // 2]
    growth, error = (n * args.steps for n in slope(points))
    print(f"{args.steps} steps in {took:.0f} s, {watch.children} child processes")
    print(f"memory    {points[0][1] / 1e6:.1f} MB after {points[0][0]} steps, {points[-1][1] / 1e6:.1f} MB "
          f"after {points[-1][0]}; a line through it: {growth / 1e3:+.0f} kB in {args.steps} "
          f"steps, standard error {error / 1e3:.0f} kB")
    if growth > GROWTH and growth > 2 * error:
        failed.append("memory grows")
    first, last = (statistics.median(part) for part in (watch.seconds[:tenth], watch.seconds[-tenth:]))
    print(f"speed     {1 / first:.1f} steps a second in the first tenth, {1 / last:.1f} in the last: "
          f"{100 * (first / last - 1):+.1f} %")
    if last > first * (1 + SLOWER):
        failed.append("steps become slower")
    left = {kind: (before[kind], now) for kind, now in after.items() if now != before[kind]}
    if files != FILES:
        left["files of the run"] = (FILES, files)
    print("leftovers " + ("none: the same " + ", ".join(after) if not left else ""))
    for kind, (was, now) in left.items():
        failed.append(f"{kind} were {was}, are {now}")
    print("\n".join(f"FAILED: {what}" for what in failed) or "all as it should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
