"""A run that takes a second, in this process or in a new one; used by several test files."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FLAGS = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --steps 6 --warmup 2 "
    "--eval-every 0 --eval-batches 1 --sample-tokens 0 --save-every 2 --log-every 1 --compile off"
).split()


def flags(data, out, *more):
    """The command line of a run on the text file `data` into `out`; of a flag the last one counts."""
    return ["--data", str(data), *FLAGS, "--out", str(out), *map(str, more)]


def command(*arguments):
    """train.py in a new process."""
    return [sys.executable, str(ROOT / "train.py"), *map(str, arguments)]


def environment(**more):
    """Environment variables of a new process, which uses one thread."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def python(script, *arguments, **options):
    """A script run by itself."""
    return run([sys.executable, "-c", script, *map(str, arguments)], **options)


def run(words, **options):
    """A command, what it writes kept as text unless it is sent elsewhere: CompletedProcess."""
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
    return subprocess.run(words, **{**kept, "env": environment(), "cwd": ROOT, **options})
