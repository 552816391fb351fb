"""The numeric tests as other machines run them.

python -m tests.long.machines              each machine below that this one can pass for
python -m tests.long.machines small        one of them

    small   no instructions above AVX2, one core, and 1 MiB of cache
    large   AVX-512 where the processor has it, eight cores, as far as a program can ask, and 64 MiB of cache

OpenBLAS, NumPy and the other libraries read variables of the environment (`instructions`, in
bench/harness/machine.py); the number of cores is what `os` answers in every process. The tests are those
marked `numeric`, and those of the code that asks for cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import machine
from gpt2.errors import UserError

ROOT = Path(__file__).parents[2]
# name -> (processor of bench/harness/machine.py, cores, bytes of cache)
MACHINES = {"small": ("avx2", 1, 1 << 20), "large": ("own", 8, 64 << 20)}
TESTS = (["-m", "numeric and not slow"], ["tests/train"])
# Run by Python before anything else, in child processes too
CORES = """
import os
os.cpu_count = lambda: {cores}
os.sched_getaffinity = lambda pid: set(range({cores}))
os.sched_setaffinity = lambda pid, cores: None
"""


def environment(name: str, folder: Path) -> dict[str, str]:
    """The variables under which processes run as on the machine `name`; writes a module into `folder`.

    Raises UserError where this machine cannot pass for it.
    """
    processor, cores, cache = MACHINES[name]
    (folder / "sitecustomize.py").write_text(CORES.format(cores=cores))
    return {
        **os.environ,
        **machine.instructions(processor),
        "GPT2_AD_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.machines", description=__doc__.split("\n")[0])
    parser.add_argument("machine", nargs="?", choices=MACHINES)
    one = parser.parse_args(argv).machine
    worst = 0
    for name in [one] if one else MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                env = environment(name, Path(folder))
            except UserError as error:
                print(f"{name}: {error}")
                continue
            print(f"{name}:", flush=True)
            for tests in TESTS:
                command = [sys.executable, "-m", "pytest", *tests]
                worst = max(worst, subprocess.run(command, cwd=ROOT, env=env).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
