"""The numeric tests on the arithmetic of other processors than this one.

python -m tests.long.kernels                 each kernel that this processor can run but would not pick itself
python -m tests.long.kernels Haswell         one of them

OpenBLAS takes its kernels from OPENBLAS_CORETYPE, and NumPy leaves out instructions that
NPY_DISABLE_CPU_FEATURES names. Haswell stands for every processor without AVX-512, NumPy's loops included.
The tests are those marked `numeric`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from gpt2.autodiff import blas_kernels

ROOT = Path(__file__).parents[2]
KERNELS = ("Haswell", "SkylakeX")


def features() -> list[str]:
    """What this processor can do, in Linux's words."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return []


def can_run(kernel: str) -> bool:
    return ("avx512f" if kernel == "SkylakeX" else "avx2") in features()


def environment(kernel: str) -> dict[str, str]:
    """The environment in which a process works like a processor with these kernels."""
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    if kernel == "Haswell" and "avx512f" in features():
        from numpy._core._multiarray_umath import __cpu_features__

        names = [n for n, here in __cpu_features__.items() if here and n in ("X86_V4", "AVX512_ICL")]
        env["NPY_DISABLE_CPU_FEATURES"] = " ".join(names)
    return env


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long.kernels", description=__doc__.split("\n")[0])
    parser.add_argument("kernel", nargs="?", choices=KERNELS)
    one = parser.parse_args(argv).kernel
    worst = 0
    for kernel in [one] if one else KERNELS:
        if not one and kernel in blas_kernels():
            print(f"{kernel}: the kernels of this machine, which the other tests use")
        elif not can_run(kernel):
            print(f"{kernel}: this processor cannot run these kernels")
        else:
            print(f"{kernel}:", flush=True)
            command = [sys.executable, "-m", "pytest", "-m", "numeric and not slow"]
            worst = max(worst, subprocess.run(command, cwd=ROOT, env=environment(kernel)).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
