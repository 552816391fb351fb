"""The tests with the oldest versions that pyproject.toml allows, or with the newest that there are.

python -m tests.long.versions oldest         in a new virtual environment, a few minutes
python -m tests.long.versions newest
python -m tests.long.versions audit          known vulnerabilities in the newest; pip-audit has to reach
                                             its data, and what it could not look up counts as a failure
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "checkpoint layers model optimizer tokenizer check train training tokens corpora flags crashes llmc"
).split()


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.long.versions", description=__doc__.split("\n")[0])
    parser.add_argument("which", choices=["oldest", "newest", "audit"])
    which = parser.parse_args(argv).which
    # What the program needs, and what its tests do
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.sub(">=", "==", one) if which == "oldest" else one for one in project["dependencies"]]
    with tempfile.TemporaryDirectory(prefix="gpt2-versions-") as place:
        venv.create(place, with_pip=True)
        python = str(Path(place, "Scripts" if sys.platform == "win32" else "bin", "python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "--upgrade-strategy", "eager"]
        subprocess.run([*install, *needed, "pytest", "hypothesis"], check=True)
        subprocess.run([*pip, "list"], check=True)
        if which == "audit":
            subprocess.run([*pip, "install", "--quiet", "pip-audit"], check=True)
            return subprocess.run([python, "-m", "pip_audit", "--strict"]).returncode
        files = [str(path) for name in TESTS for path in (ROOT / "tests").rglob(f"test_{name}.py")]
        tests = [*files, str(ROOT / "tests" / "autodiff"), "-p", "no:cacheprovider"]
        return subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
