"""README's lines, the default tests and the table of constructs on each Python that this machine has.

python -m tests.long.pythons                        every Python from 3.11 on: of PATH, and of pyenv
python -m tests.long.pythons --only 3.13,3.14       some of them
python -m tests.long.pythons --steps wheels,constructs

wheels       does all that `.` and `.[test]` need have a wheel? pip asks for a compiler otherwise
train, test  README's two lines, word for word, in a fresh clone of the last commit (.ci/stranger)
constructs   tests/support/constructs.txt, in an environment with NumPy and pytest alone
threads      trains a step, and derives a function in four threads: for free-threaded builds above all
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASK = "import sys, sysconfig; print(*sys.version_info[:3], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
THREADS = """
import threading, numpy as np
from gpt2 import GPT2, GPT2Config, autodiff as ad
model = GPT2(GPT2Config(vocab_size=16, block_size=8, n_layer=1, n_head=1, n_embd=8), backward="whole")
model.loss_and_grads(*np.arange(32).reshape(2, 2, 8) % 16)
g, found = ad.grad(lambda x: np.sum(np.sin(x) * x)), []
threads = [threading.Thread(target=lambda: found.append(g(np.ones(1000)))) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
assert len(found) == 4 and all((f == found[0]).all() for f in found)
"""


@dataclass
class Python:
    path: str
    name: str  # its version, with a t if it is free-threaded

    def run(self, place: Path, *command: str) -> subprocess.CompletedProcess:
        """Run a command in the checkout, in which `python3` is this Python."""
        bin = place / "bin"
        bin.mkdir(exist_ok=True)
        (bin / "python3").write_text(f'#!/bin/sh\nexec {self.path} "$@"\n')
        (bin / "python3").chmod(0o755)
        env = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def pythons() -> list[Python]:
    """One Python of each version from 3.11 on, in order."""
    places = [*os.environ["PATH"].split(os.pathsep), *Path.home().glob(".pyenv/versions/*/bin")]
    found = {}
    for path in (path for place in places for path in Path(place).glob("python3.*")):
        if re.fullmatch(r"python3\.\d+t?", path.name):
            said = subprocess.run([path, "-c", ASK], capture_output=True, text=True).stdout.split()
            *version, free = map(int, said or "0000")  # of one that does not run
            name = ".".join(map(str, version)) + "t" * free
            if version >= [3, 11]:
                found[(*version, free)] = Python(str(path), name)
    return [found[version] for version in sorted(found)]


def environment(python: Python, place: Path, *packages: str) -> str:
    """The path of a Python in a new environment with these packages."""
    python.run(place, "python3", "-m", "venv", "--clear", str(place / "environment"))
    path = str(place / "environment" / "bin" / "python")
    done = python.run(place, path, "-m", "pip", "install", "--quiet", *packages) if packages else None
    return sys.exit(done.stderr) if done and done.returncode else path


def wheels(python: Python, place: Path):
    """All packages at once; if that fails each by itself, so that those without a wheel are named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pip = [environment(python, place), *"-m pip install --quiet --dry-run --only-binary=:all:".split()]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    if not python.run(place, *pip, *wanted).returncode:
        return True, f"{len(wanted)} packages"
    return False, "no wheel: " + ", ".join(x for x in wanted if python.run(place, *pip, x).returncode)


def outcome(done: subprocess.CompletedProcess):
    """(whether it went well, the last line that it printed; before it, the tests that failed)."""
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return done.returncode == 0, "\n".join([*failed, *lines[-1:]])


def constructs(python: Python, place: Path):
    path = environment(python, place, "numpy", "pytest")
    tests = ["tests/autodiff/reuse/test_constructs.py", "-p", "no:cacheprovider"]
    return outcome(python.run(place, path, "-m", "pytest", *tests))


def threads(python: Python, place: Path):
    return outcome(python.run(place, environment(python, place, "numpy", "threadpoolctl"), "-c", THREADS))


STEPS = {
    "wheels": wheels,
    "constructs": constructs,
    "threads": threads,
    "train": lambda python, place: outcome(python.run(place, ".ci/stranger", "train.py")),
    "test": lambda python, place: outcome(python.run(place, ".ci/stranger", "pytest")),
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.pythons", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="versions, as 3.13,3.14")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"some of {', '.join(STEPS)}")
    args = parser.parse_args(argv)
    if unknown := set(args.steps.split(",")) - set(STEPS):
        parser.error(f"--steps {args.steps}: no step {min(unknown)}, expected some of {', '.join(STEPS)}")
    wanted = tuple(one + "." for one in args.only.split(",") if one) or ("",)
    chosen = [python for python in pythons() if f"{python.name}.".startswith(wanted)]
    bad = not chosen
    for python in chosen:
        for step in args.steps.split(","):
            with tempfile.TemporaryDirectory(prefix="gpt2-pythons-") as place:
                begin = time.monotonic()
                good, text = STEPS[step](python, Path(place))
            bad |= not good
            took = f"{time.monotonic() - begin:5.0f} s"
            *failed, last = text.split("\n")
            line = f"{python.name:9} {step:10} {'good' if good else 'BAD '} {took}  {last}"
            print(line, *failed, sep="\n  ", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
