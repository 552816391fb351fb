"""The conditions of a measurement: processor, versions, threads, and the load of other programs."""

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import numpy as np
from numpy._core._multiarray_umath import __cpu_dispatch__ as DISPATCHED
from numpy._core._multiarray_umath import __cpu_features__ as FEATURES

from gpt2.autodiff.run.remembered import processor
from gpt2.errors import UserError
from gpt2.machine import busy_seconds, cores, own_seconds

PROCESSORS = {"own": "", "avx2": "without AVX-512"}
PACKAGES = ("numpy", "numexpr", "torch", "jax", "jaxlib", "autograd")


def describe():
    """Processor, memory, and versions of the software, as a dict for reports and for extra_info."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # the system does not say
        memory = 0
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "cpu": (processor() or platform.machine()) + generation(),
        "cores": cores(),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def generation(path="/proc/cpuinfo"):
    """ ", Zen 4" for an AMD processor of a known generation, whose name may be only "AMD EPYC"; else "".

    A virtual machine may hide the model, so that what the processor can do says more than its number.
    """
    try:
        lines = Path(path).read_text("utf-8", "replace").partition("\n\n")[0].splitlines()  # one core
    except OSError:
        return ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if facts.get("vendor_id") != "AuthenticAMD" or "Zen" in facts.get("model name", ""):
        return ""
    later = "4" if "avx512f" in facts.get("flags", "").split() else "3"
    number = {"25": later, "26": "5"}.get(facts.get("cpu family"))
    return f", Zen {number}" if number else ""


def peak_memory(pid="self", shared=True):
    """Peak resident memory of a process in bytes (VmHWM), libraries included.

    shared=False leaves out the shared memory that it has mapped now.
    """
    try:
        with open(f"/proc/{pid}/status") as status:
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status if " kB" in line}
    except OSError:
        import resource  # not on Windows

        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if pid == "self" else 0
    return sizes["VmHWM"] - (0 if shared else sizes.get("RssShmem", 0))


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def instructions(name):
    """The environment variables that restrict libraries to an instruction set, read when they are loaded.

    own     all instructions of this machine's processor
    avx2    without AVX-512, as on older and on desktop processors: OpenBLAS uses its Haswell kernels, NumPy
            disables its AVX-512 loops, PyTorch (MKL, oneDNN) and JAX are limited to AVX2. Frequencies, caches
            and memory remain those of this machine

    Raises UserError if the machine lacks it.
    """
    if name == "own":
        return {}
    if name != "avx2":
        raise UserError(f"--processor {name}: expected one of {', '.join(PROCESSORS)}")
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


# ---- Load of other programs --------------------------------------------------------------------------------


class Load:
    """The share of the machine that other programs used during a measurement.

    load = Load(); ...; load.report(pids)
    """

    def __init__(self, pids=()):
        self.begin = time.perf_counter()
        self.busy, self.ours = busy_seconds(), own_seconds() + _seconds_of(pids)

    def report(self, pids=()):
        """`others` and `idle` as shares (0 to 1) of all cores' time since the start, and the load averages.

        The shares are None on a system without /proc. Time stolen by the hypervisor counts as others'.
        """
        busy, seconds = busy_seconds(), time.perf_counter() - self.begin
        others = idle = None
        if busy is not None and self.busy is not None:
            used, span = busy - self.busy, seconds * (os.cpu_count() or 1)
            others = round(max(0.0, used - (own_seconds() + _seconds_of(pids) - self.ours)) / span, 3)
            idle = round(1.0 - used / span, 3)
        average = [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None
        return {"others": others, "idle": idle, "load_average": average, "seconds": round(seconds, 2)}


def _seconds_of(pids):
    """CPU seconds of these processes, their finished children included."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                ticks += sum(int(x) for x in stat.read().rpartition(")")[2].split()[11:15])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def is_running(pid):
    """Whether any thread of the process is runnable or waits for a disk. False if that is unknown."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] in ("R", "D"):
                    return True
    except OSError:
        pass
    return False
