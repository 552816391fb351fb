"""Runs programs written for HIPS autograd under gpt2.autodiff.compat.autograd, beside autograd itself.

    python -m bench.dependents --fetch               downloads them, and installs what they need
    python -m bench.dependents                       all of them
    python -m bench.dependents pymanopt examples     some

All seconds are those of the processor. Nothing of the programs is part of this project. They lie in
--checkouts (GPT2_DEPENDENTS), each in a folder of the name that programs.py has; --python is an interpreter
with autograd, pytest and their requirements.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

from gpt2.hints import typed

from . import examples, suites
from .programs import EXAMPLES, NOT_EXAMPLES, SUITES


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog=typed("python -m bench.dependents"), description=__doc__.split("\n")[0]
    )
    names = [suite.name for suite in SUITES]
    parser.add_argument("names", nargs="*", help=f"some of: examples, {', '.join(names)}")
    place = os.environ.get("GPT2_DEPENDENTS", "dependents")
    parser.add_argument(
        "--checkouts",
        type=Path,
        metavar="FOLDER",
        default=Path(place),
        help="where the programs lie (default: the variable GPT2_DEPENDENTS, else dependents)",
    )
    parser.add_argument(
        "--python",
        metavar="FILE",
        help="an interpreter with what they need (default: the one that --fetch made, else this one)",
    )
    parser.add_argument("--seconds", type=float, default=30, help="for each run of an example (default 30)")
    parser.add_argument("--each", type=float, default=30, help="seconds for each test (default 30)")
    parser.add_argument("--limit", type=float, default=600, help="for each run of tests (default 600)")
    parser.add_argument("--fetch", action="store_true", help="download them and install what they need")
    parser.add_argument(
        "--clone",
        default="https://github.com/{}",
        metavar="ADDRESS",
        help="address of a GitHub repository, {} in it for OWNER/NAME (default %(default)s)",
    )
    args = parser.parse_args(argv)
    if unknown := set(args.names) - {*names, "examples"}:
        parser.error(f"{', '.join(sorted(unknown))}: expected some of examples, {', '.join(names)}")
    args.checkouts = args.checkouts.resolve()
    if args.fetch:
        return fetch(args.checkouts, args.clone)
    own_python = args.checkouts / "venv" / "bin" / "python"
    python = args.python or (str(own_python) if own_python.exists() else sys.executable)
    chosen = [s for s in SUITES if (not args.names or s.name in args.names)]
    missing = [s.folder for s in chosen if not (args.checkouts / s.folder).is_dir()]
    if missing:
        parser.error(f"not in {args.checkouts}: {', '.join(missing)} (--fetch downloads them)")
    if chosen:
        suites.report(chosen, args.checkouts, python, suites.Limits(args.each, args.limit))
    if not args.names or "examples" in args.names:
        run_examples(args.checkouts, python, args.seconds)
    return None


def run_examples(checkouts: Path, python: str, seconds: float) -> None:
    """In a copy, since they write pictures beside themselves."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(checkouts / EXAMPLES[1] / EXAMPLES[2], folder)
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.py") if p.name not in NOT_EXAMPLES)
        examples.report(folder, names, python, seconds)


def fetch(checkouts: Path, clone: str) -> None:
    """The programs, and an environment: this interpreter's packages and what the programs need besides."""
    checkouts.mkdir(parents=True, exist_ok=True)
    environment = checkouts / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "-q"]
    purelib = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
    )
    (Path(purelib.strip()) / "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run([*pip, "install", *sum((s.installed for s in SUITES), ())], check=True)
    for suite in SUITES:
        folder = checkouts / suite.folder
        if folder.exists():
            continue
        if "/" in suite.source:
            address = clone.format(suite.source)
            subprocess.run(["git", "clone", "-q", "--depth=1", address, str(folder)], check=True)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            words = ["download", "--no-deps", "--no-binary", ":all:", "-d", scratch, suite.source]
            subprocess.run([*pip, *words], check=True)
            with tarfile.open(next(Path(scratch).iterdir())) as archive:
                archive.extractall(checkouts, filter="data")


if __name__ == "__main__":
    main()
