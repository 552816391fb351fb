"""The compile-time benchmark: its programs grow linearly with the depth of the model."""

import itertools

from bench.compile_time import STAGES, compiled, model_rows


def test_programs_grow_with_the_number_of_blocks():
    """A further block adds no more ops than the one before it; every stage takes time."""
    runs = [compiled(*case) for _, case in itertools.islice(model_rows(real=False), 3)]
    one, two, four = (ops for _, ops in runs)
    assert 100 < two - one and four - two <= 2 * (two - one)
    assert all(set(times) == set(STAGES) and min(times.values()) > 0 for times, _ in runs)
