"""A long run of a small model: memory, threads, files and speed stay what they were.

    python -m tests.long.endurance                               2,000 steps, under a minute
    python -m tests.long.endurance --steps 500 --parallel processes --workers 2

Flags that are not its own are those of train.py. Validations, samples and checkpoints come as in any run.
Exit status 1 where

    memory    grows by more than 1 MB, and by more than the fit's own uncertainty: a line through the resident
              memory of this process and its children in the second half of the run, drawn out to all of it.
              In the first half come the first checkpoint, validation and sample, which take some for good
    speed     the median step of the last tenth takes 3 % longer than that of the first (which has the steps
              that compile: a median does not mind), both in units of the reference's step
    leftovers threads, open files, children or names in shared memory are there that were not before, or files
              in the folder of the run or the temporary folder that do not belong there

The reference is a process that repeats one step of training, on the same weights, in turns with the run: two
steps here, two there, the second of each is timed. For the machine changes too: with nothing else running,
steps of this run and of the reference beside it took 3 to 30 % longer for seconds or half a minute, where the
host of a virtual machine lent its caches and clock to others. Their ratio stayed within 2 %. (A ratio to
matrix products and exponentials alone moved by 10 %: such times slow them half as much as a step.) Cores
differ in this, so both keep to one; a run of several threads or processes cannot, and its speed is told but
not judged. The reference is a process of its own because what ages with that of the run, its heap or garbage
collector, must not age the reference.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of two, one waits for the other: no steady times

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from gpt2.storage import runs
from gpt2.train import flops
from gpt2.train.loop import Interrupts, loop
from gpt2.train.recipe import new_settings
from gpt2.train.reporters import Reporter
from gpt2.train.resolve import resolve
from gpt2.train.session import set_engine_threads
from gpt2.train.settings import read_settings

SETTINGS = (
    "--tokenizer byte --n-layer 2 --n-head 4 --n-embd 64 --block-size 64 --batch-size 8 "
    "--backward auto --eval-every 200 --eval-batches 2 --sample-every 500 --sample-tokens 16 "
    "--save-every 100 --threads 1"
).split()
FILES = {runs.SETTINGS, runs.TOKENIZER, runs.METRICS, runs.LAST, runs.BEST}
TEXT = "".join(f"{i} times {i + 1} is {i * (i + 1)}.\n" for i in range(4000))
GROWTH = 1 << 20  # bytes
SLOWER = 0.03


class Reference:
    """Another process that repeats one step of training.

    seconds()  have it make two, and say what the second took: the first finds caches full of the run's arrays

    The weights are those after 30 steps: none of the first, which compile, and no zeros in the moments.
    """

    def __init__(self, text):
        command = [sys.executable, "-m", "tests.long.endurance", "--reference", str(text)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds()  # it is ready

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return float(line) if line else sys.exit("the reference has ended, for the reason above")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def repeat_a_step(text):
    """What the reference does: for each line of input, print the seconds that a step took."""
    made = new_run(text, [])
    for _ in range(30):
        made.train_step()
    optimizer, batch = made.optimizer, made.loader.next_batch()
    arrays = optimizer.params, optimizer.m, optimizer.v
    kept, t = [array.copy() for array in arrays], optimizer.t
    for _ in sys.stdin:
        for _ in range(2):
            for array, values in zip(arrays, kept):
                array[...] = values
            optimizer.t = t
            begin = time.perf_counter()
            made.team.step([batch], made.settings.lr, clip=made.settings.clip)
        print(time.perf_counter() - begin, flush=True)


def children(parent=None):
    """Process ids of the children of a process, here this one's without the reference, and of theirs."""
    found = []
    for task in Path(f"/proc/{parent or os.getpid()}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"--reference" not in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found += [child, *children(child)]
    return found


def resident():
    """Bytes of memory in use by this process and its children."""
    pages = 0
    for process in (os.getpid(), *children()):
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError):
            pass  # the process has just ended
    return pages * os.sysconf("SC_PAGE_SIZE")


def possessions():
    """Counts of what a process could leak, by kind."""
    return {
        "threads": {thread.name for thread in threading.enumerate()},
        "system threads": len(os.listdir("/proc/self/task")),
        "open files": sorted(
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ),
        "children": len(children()),
        "shared memory": {name for name in os.listdir("/dev/shm") if str(os.getpid()) in name},
        "temporary files": set(os.listdir(tempfile.gettempdir())),
    }


class Watch(Reporter):
    """Records time and memory, in place of the status line.

    pairs   (seconds of a step, seconds of the reference's right after it), of every other step
    memory  (step, bytes), of every tenth

    Both have their memory from the beginning: lists of the numbers would grow by 80 kB in 2,000 steps.
    """

    def __init__(self, reference, steps):
        self.reference = reference
        self.pairs, self.memory = np.full((steps // 2, 2), np.nan), np.full((steps // 10, 2), np.nan)
        self.children = 0

    def step(self, step):
        number = step.number
        if number % 2 == 0:
            self.pairs[number // 2 - 1] = step.seconds, self.reference.seconds()
        if number % 10 == 0:
            self.memory[number // 10 - 1] = number, resident()
            self.children = max(self.children, len(children()))


def settings_of(more):
    return new_settings(read_settings([*SETTINGS, *more])[0])


def new_run(text, more):
    settings = settings_of(["--data", str(text), *more])
    set_engine_threads(settings)
    return resolve(settings)


def run(folder, text, steps, more, reference):
    """Train; returns the Watch."""
    made = new_run(text, ["--steps", str(steps), *more])
    watch = Watch(reference, steps)
    with closing(made), made.team, Interrupts() as interrupts:
        made.settings = dataclasses.replace(made.settings, out=str(folder))
        made.begin(made.take())
        watch.begin(made)
        for _ in loop(made, watch, interrupts):
            pass
        if made.step < steps:
            sys.exit("stopped")
    return watch


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.endurance", allow_abbrev=False, description=__doc__.split("\n")[0]
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--reference", metavar="TEXT", help=argparse.SUPPRESS)
    args, more = parser.parse_known_args(argv)
    if args.reference:
        return repeat_a_step(args.reference)
    flops.matmul_peak = lambda dtype: flops.Peak(1e11)
    os.environ["GPT2_OFFLINE"] = "1"
    alone = settings_of(more).parallel == "none" and settings_of(more).threads == 1
    if alone:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the reference inherits it
    failed = []
    with tempfile.TemporaryDirectory(prefix="gpt2-endurance-") as place:
        os.environ["GPT2_CACHE_DIR"] = place + "/cache"
        os.environ["TMPDIR"] = tempfile.tempdir = place + "/tmp"
        os.mkdir(tempfile.tempdir)
        text = Path(place, "text.txt")
        text.write_text(TEXT)
        with Reference(text) as reference:
            # What exists once per process: the thread pool, imports, the compiler's programs
            often = ["--eval-every", "5", "--sample-every", "5", "--save-every", "5"]
            run(Path(place, "warm"), text, 20, [*more, *often], reference)
            before = possessions()
            begin = time.monotonic()
            watch = run(Path(place, "run"), text, args.steps, more, reference)
            took = time.monotonic() - begin
            after = possessions()
        files = {path.name for path in Path(place, "run").iterdir()}

    points = watch.memory[watch.memory[:, 0] > args.steps // 2]
    (rate, _), covariance = np.polyfit(*points.T, 1, cov=True)
    growth, error = rate * args.steps, float(np.sqrt(covariance[0, 0])) * args.steps
    print(f"{args.steps} steps in {took:.0f} s, {watch.children} child processes")
    (start, low), (stop, high) = points[[0, -1]]
    print(
        f"memory    {low / 1e6:.1f} MB after {start:.0f} steps, {high / 1e6:.1f} MB after {stop:.0f}; "
        f"a line through it: {growth / 1e3:+.0f} kB in {args.steps} steps, standard error "
        f"{error / 1e3:.0f} kB"
    )
    if growth > GROWTH and growth > 2 * error:
        failed.append("memory grows")
    # of the first and the last tenth: the median step and the reference's, in ms, and the median ratio
    tenth = len(watch.pairs) // 10
    first, last = (
        (*(1e3 * np.median(part, axis=0)), np.median(part[:, 0] / part[:, 1]))
        for part in (watch.pairs[:tenth], watch.pairs[-tenth:])
    )
    longer = last[2] / first[2] - 1
    print(
        "speed     median steps of the first tenth: {:.2f} ms, the reference's {:.2f}, ratio {:.3f};\n"
        "          of the last: {:.2f} ms and {:.2f}, ratio {:.3f},".format(*first, *last),
        f"{100 * longer:+.1f} %" + ("" if alone else ", not judged"),
    )
    if alone and longer > SLOWER:
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
