"""Restrict libraries to older instruction sets, by environment variables that they read when loaded.

    own     all instructions of this machine's processor
    avx2    without AVX-512, as on older and on desktop processors

With avx2, OpenBLAS uses its Haswell kernels, NumPy disables its AVX-512 loops, and PyTorch (MKL, oneDNN) and
JAX are limited to AVX2. Frequencies, caches and memory remain those of this machine.
"""

from collections.abc import Mapping

from numpy._core._multiarray_umath import __cpu_dispatch__ as DISPATCHED
from numpy._core._multiarray_umath import __cpu_features__ as FEATURES

from gpt2.errors import UserError

TITLES = {"own": "", "avx2": "without AVX-512"}


def environment(name: str) -> Mapping[str, str]:
    """The environment variables for this instruction set. Raises UserError if the machine lacks it."""
    if name == "own":
        return {}
    if name != "avx2":
        raise UserError(f"--processor {name}: expected one of {', '.join(TITLES)}")
    if not FEATURES.get("AVX2"):
        raise UserError("--processor avx2: this processor has no AVX2")
    wider = [name for name in DISPATCHED if name.startswith(("X86_V4", "AVX512")) and FEATURES.get(name)]
    return {
        "OPENBLAS_CORETYPE": "Haswell",
        **({"NPY_DISABLE_CPU_FEATURES": " ".join(wider)} if wider else {}),
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
