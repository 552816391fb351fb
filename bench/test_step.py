"""Microbenchmarks (pytest-benchmark): the training step of nanoGPT's recipe for a CPU, for each backward."""

import pytest

from bench.harness.engine import training
from bench.harness.sizes import SIZES, batches
from gpt2.errors import counted

SIZE = SIZES["4x128-B12T64"]


@pytest.mark.parametrize("backward", ["written", "manual", "auto", "whole"])
def test_step(benchmark, record, threads, backward):
    record(f"step {SIZE.name}, {counted(threads, 'thread')}", batch=SIZE.name)
    trainer = training(SIZE, backward, threads)
    stream = batches(SIZE)
    first = trainer.step(*next(stream))
    benchmark.pedantic(lambda: trainer.step(*next(stream)), rounds=20, warmup_rounds=2)
    assert trainer.step(*next(stream)) < first + 0.5  # training has not diverged
