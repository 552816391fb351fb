"""Microbenchmarks (pytest-benchmark): each layer's forward, manual backward and derived backward, grouped.

A derived backward chooses what its forward saves, and may move work into it, so that forward is timed as
well. Derived gradients are compared with the manual ones before they are timed.
"""

import pytest

from bench.harness.cases import cases, find_batch
from bench.harness.engine import LayerRun, check_results, variant_layer
from bench.harness.ratios import plural


@pytest.fixture(scope="module", params=cases(1, 1))
def case(request, pytestconfig):
    batch = find_batch(pytestconfig.getoption("--bench-batch"))
    return cases(*batch)[request.param]


@pytest.fixture(scope="module")
def manual(case, threads):
    return LayerRun(case, variant_layer(case.layer, "manual"))


@pytest.fixture(scope="module")
def derived(case, threads):
    return LayerRun(case, variant_layer(case.layer, "auto"))


@pytest.fixture
def group(case, record, pytestconfig, threads):
    batch = pytestconfig.getoption("--bench-batch")
    shapes = [None if shape is None else list(getattr(shape, "shape", shape)) for shape in case.shapes]
    record(f"{case.name} {batch}, {plural(threads, 'thread')}", shapes=shapes, batch=batch)


def test_forward(benchmark, group, manual):
    benchmark(manual.forward)


def test_manual(benchmark, group, manual):
    manual.forward()
    benchmark(manual.backward)


def test_forward_of_derived(benchmark, group, derived):
    benchmark(derived.forward)


def test_derived(benchmark, group, manual, derived):
    manual.both()
    derived.both()
    check_results("derived", derived.results(), manual.results())
    benchmark(derived.backward)
