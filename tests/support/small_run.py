"""A training run that takes a second, and commands run in new processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and files")

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


def module(name, *arguments, **options):
    """python -m name, in a new process."""
    return run([sys.executable, "-m", name, *map(str, arguments)], **options)


def assert_one_error_line(done, *texts):
    """The process ended with status 2 and wrote nothing but one line of error, which has these texts."""
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert all(text in done.stderr for text in texts), done.stderr


def status(pid):
    """The state and the parent's id of a process, as /proc has them; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else (state, int(parent))


def alive(pid):
    return status(pid) is not None


def run(words, **options):
    """A command that is run to its end, its output captured as text: CompletedProcess."""
    return subprocess.run(words, **{"timeout": 120, **_defaults(), **options})


def start(words, **options):
    """A command that runs in the background, its output in pipes, as text: Popen."""
    return subprocess.Popen(words, **{**_defaults(), **options})


def _defaults():
    pipe = subprocess.PIPE
    return {"stdout": pipe, "stderr": pipe, "text": True, "env": environment(), "cwd": ROOT}
