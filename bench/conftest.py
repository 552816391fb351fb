"""Settings of the microbenchmarks, and the data recorded with each.

pytest bench/ --benchmark-only
pytest bench/ --benchmark-only --bench-threads 2 --bench-batch B4T256 -k "gelu or attention"
pytest bench/ --benchmark-only --benchmark-save=before
pytest bench/ --benchmark-only --benchmark-compare --benchmark-compare-fail=median:10%
"""

import pytest

from gpt2 import autodiff as ad


def pytest_addoption(parser):
    group = parser.getgroup("bench", "layers and steps of this engine")
    group.addoption(
        "--bench-threads", type=int, default=1, metavar="N", help="threads of the engine (default 1)"
    )
    group.addoption(
        "--bench-batch", default="B4T64", metavar="BxTy", help="batch of the layers (default B4T64)"
    )


@pytest.fixture(scope="session", autouse=True)
def threads(pytestconfig):
    """Threads of BLAS and of compiled programs, from here on."""
    from bench.harness.machine import available_cores

    n = pytestconfig.getoption("--bench-threads")
    if not 1 <= n <= available_cores():
        raise pytest.UsageError(f"--bench-threads {n}: expected 1 to {available_cores()}")
    ad.set_threads(n)
    ad.limit_blas_threads(n)  # for layers as written; set_threads alone leaves the products to its pool
    return n


@pytest.fixture(scope="session")
def facts():
    from bench.harness import machine

    return machine.describe()


@pytest.fixture
def record(benchmark, threads, facts):
    """record(group, **more): put this benchmark into a group, and note the machine."""

    def record(group, **more):
        benchmark.group = group
        benchmark.extra_info.update(
            threads=threads,
            dtype="float32",
            numpy=facts["packages"]["numpy"],
            blas=facts["blas"],
            cpu=facts["cpu"],
            **more,
        )

    return record
