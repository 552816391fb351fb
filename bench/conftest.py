"""Settings of the microbenchmarks, and the data recorded with each.

pytest bench/ --benchmark-only --bench-threads 2 --bench-batch B4T256 -k "gelu or attention"
"""

from argparse import ArgumentTypeError

import pytest

from bench.harness import machine, program
from bench.harness.sizes import find_batch
from bench.harness.worker import pin
from gpt2 import autodiff as ad
from gpt2.autodiff import Options
from gpt2.errors import UserError
from gpt2.machine import cores


def batch(text):
    """The type of --bench-batch: a name that find_batch knows."""
    try:
        find_batch(text)
    except UserError as error:
        raise ArgumentTypeError(error.as_flag) from None
    return text


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info):
    """Name the processor in a saved run as in reports and docs/speed.md."""
    machine_info["cpu"]["brand_raw"] = machine.describe()["cpu"]


def pytest_addoption(parser):
    group = parser.getgroup("bench", "layers and steps of this engine")
    add, backends = group.addoption, "|".join(Options.BACKENDS)
    add("--bench-threads", type=int, default=1, metavar="N", help="threads of the engine (default 1)")
    words = "batch of the layers (default B4T64)"
    add("--bench-batch", default="B4T64", type=batch, metavar="BxTy", help=words)
    words = "what computes compiled elementwise operations (default numpy)"
    add("--bench-elementwise", default="numpy", type=program.elementwise, metavar=backends, help=words)


@pytest.fixture(scope="session", autouse=True)
def threads(pytestconfig):
    """Set the threads of BLAS and of compiled programs, for the whole session."""
    n = pytestconfig.getoption("--bench-threads")
    if not 1 <= n <= cores():
        raise pytest.UsageError(f"--bench-threads {n}: expected 1 to {cores()}")
    pin(n)
    ad.set_threads(n)
    ad.limit_blas_threads(n)  # for uncompiled layers; set_threads alone would keep BLAS on one thread
    return n


@pytest.fixture
def record(benchmark, threads):
    """record(group, **more): assign this benchmark to a group, and save the machine with it."""
    facts = machine.describe()
    shown = {"numpy": facts["packages"]["numpy"], "blas": facts["blas"], "cpu": facts["cpu"]}

    def record(group, **more):
        benchmark.group = group
        benchmark.extra_info.update(threads=threads, dtype="float32", **shown, **more)

    return record
