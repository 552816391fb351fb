"""Microbenchmarks (pytest-benchmark): each layer of this engine and of its peers, a group for each part.

A derived backward chooses what its forward saves, and may move work into it: compare `both`, which is the two
together. Results and gradients are compared with those of the layer as written before they are timed.
"""

import importlib

import pytest

from bench.harness import contenders
from bench.harness.cases import cases, find_batch
from bench.harness.engine import LayerRun, check_results
from gpt2.errors import counted
from gpt2.layers import LAYERS


@pytest.fixture(scope="module", params=cases(1, 1))
def case(request, pytestconfig):
    batch = find_batch(pytestconfig.getoption("--bench-batch"))
    return cases(*batch)[request.param]


@pytest.fixture(scope="module")
def written(case):
    run = LayerRun(case, LAYERS[case.layer])
    run.backward()
    return run.results()


@pytest.fixture(scope="module", params=contenders.LAYERS)
def run(request, case, written, threads, pytestconfig):
    name = request.param
    contender = contenders.CONTENDERS[name]
    if reason := contenders.reason_missing(contender):
        pytest.skip(reason)
    settings = contenders.settings(name, pytestconfig.getoption("--bench-elementwise"))
    run = importlib.import_module(contender.module).layer(case, contender.variant, threads, **settings)
    run.backward()
    check_results(name, run.results(), written)
    return run


@pytest.mark.parametrize("part", ["forward", "backward", "both"])
def test_layer(benchmark, record, case, run, part, threads, pytestconfig):
    batch = pytestconfig.getoption("--bench-batch")
    shapes = [None if shape is None else list(getattr(shape, "shape", shape)) for shape in case.shapes]
    record(f"{case.name} {part}, {batch}, {counted(threads, 'thread')}", shapes=shapes, batch=batch)
    parts = {
        "forward": run.forward,
        "backward": run.backward,
        "both": lambda: (run.forward(), run.backward()),
    }
    benchmark(parts[part])
