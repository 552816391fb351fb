"""Microbenchmarks (pytest-benchmark): each layer of this engine, a group for each part of a layer.

To be compared with a run saved before a change: see docs/benchmarks.md. `python -m bench.layers` times the
layers beside those of other libraries, which takes processes that alternate.
"""

import pytest

from bench.harness import contenders, engine
from bench.harness.cases import cases, find_batch
from gpt2.errors import counted


@pytest.fixture(scope="module", params=cases(1, 1))
def case(request, pytestconfig):
    batch = find_batch(pytestconfig.getoption("--bench-batch"))
    return cases(*batch)[request.param]


@pytest.fixture(scope="module", params=["written", "manual", "auto"])
def run(request, case, threads, pytestconfig):
    settings = contenders.settings(request.param, pytestconfig.getoption("--bench-elementwise"))
    run = engine.layer(case, request.param, threads, **settings)
    run.backward()
    return run


@pytest.mark.parametrize("part", ["forward", "backward", "both"])
def test_layer(benchmark, record, case, run, part, threads, pytestconfig):
    batch = pytestconfig.getoption("--bench-batch")
    shapes = [None if shape is None else list(getattr(shape, "shape", shape)) for shape in case.shapes]
    record(f"{case.name} {part}, {batch}, {counted(threads, 'thread')}", shapes=shapes, batch=batch)
    benchmark(getattr(run, part))
