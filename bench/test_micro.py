"""Microbenchmarks (pytest-benchmark): each layer of this engine, a group for each part of a layer; and the
training step of nanoGPT's recipe for a CPU, for each backward.

To be compared with a run saved before a change: see docs/benchmarks.md. `python -m bench.layers` times the
layers beside those of other libraries, which takes processes that alternate.
"""

import pytest

from bench.harness import contenders, engine
from bench.harness.sizes import SIZES, batches, cases, find_batch
from gpt2.errors import counted

SIZE = SIZES["4x128-B12T64"]


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


@pytest.mark.parametrize("backward", ["written", "manual", "auto", "whole"])
def test_step(benchmark, record, threads, backward):
    record(f"step {SIZE.name}, {counted(threads, 'thread')}", batch=SIZE.name)
    trainer = engine.training(SIZE, backward, threads)
    stream = batches(SIZE)
    first = trainer.step(*next(stream))
    benchmark.pedantic(lambda: trainer.step(*next(stream)), rounds=20, warmup_rounds=2)
    assert trainer.step(*next(stream)) < first + 0.5  # training has not diverged
