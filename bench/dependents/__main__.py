"""Run programs written for HIPS autograd with autograd and with gpt2.autodiff.compat.autograd, and compare.

The programs are not part of this project: --fetch puts each into a folder of --checkouts (see programs.toml).
--python is an interpreter with autograd, pytest and the programs' requirements. All times are CPU seconds.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

from bench.harness import program

from . import examples, suites
from .suites import SUITES


def main(argv: list[str]) -> None:
    parser = program.plain_parser("bench.dependents", __doc__.split("\n")[0])
    names = [suite.name for suite in SUITES]
    parser.add_argument("names", nargs="*", help=f"some of: examples, {', '.join(names)}")
    folder = "folder of the programs (default dependents)"
    program.text(parser, "--checkouts", "FOLDER", Path("dependents"), folder, Path)
    interpreter = "an interpreter with their requirements (default: that of --fetch, else this one)"
    program.text(parser, "--python", "FILE", None, interpreter)
    program.number(parser, "--seconds", 30.0, "limit for each example", float)
    program.number(parser, "--each", 30.0, "limit in seconds for each test", float)
    program.number(parser, "--limit", 600.0, "limit in seconds for a suite of tests", float)
    parser.add_argument("--fetch", action="store_true", help="download them and install their requirements")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - {*names, "examples"}:
        parser.error(f"{', '.join(sorted(unknown))}: expected some of examples, {', '.join(names)}")
    checkouts = args.checkouts.resolve()
    if args.fetch:
        fetch(checkouts)
        return
    fetched = checkouts / "venv" / "bin" / "python"
    python = args.python or (str(fetched) if fetched.exists() else sys.executable)
    chosen = [s for s in SUITES if not args.names or s.name in args.names]
    if missing := [s.folder for s in chosen if not (checkouts / s.folder).is_dir()]:
        parser.error(f"not in {checkouts}: {', '.join(missing)} (--fetch downloads them)")
    suites.report(chosen, checkouts, python, args.each, args.limit)
    if not args.names or "examples" in args.names:
        examples.report(checkouts, python, args.seconds)


def fetch(checkouts: Path) -> None:
    """Download the programs, and make a venv with their requirements on top of this one's packages."""
    checkouts.mkdir(parents=True, exist_ok=True)
    environment = checkouts / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "-q"]
    purelib = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
    )
    (Path(purelib.strip()) / "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run([*pip, "install", *itertools.chain.from_iterable(s.installed for s in SUITES)], check=True)
    for suite in SUITES:
        folder = checkouts / suite.folder
        if folder.exists():
            continue
        if "/" in suite.source:
            address = f"https://github.com/{suite.source}"
            subprocess.run(["git", "clone", "-q", "--depth=1", address, str(folder)], check=True)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            words = ["download", "--no-deps", "--no-binary", ":all:", "-d", scratch, suite.source]
            subprocess.run([*pip, *words], check=True)
            with tarfile.open(next(Path(scratch).iterdir())) as archive:
                archive.extractall(checkouts, filter="data")


if __name__ == "__main__":
    program.run(main)
