"""A process that makes derived functions without end does not leak.

tests/long/requests.py makes 100,000 of each kind."""

import gc
import linecache
import math
import traceback

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit.program import Program
from gpt2.autodiff.programs import derived, fixed
from gpt2.autodiff.record.bytecode import cached_by_code
from gpt2.autodiff.record.record import record
from gpt2.autodiff.reuse.cache import Cache, Store
from gpt2.autodiff.reuse.guard import Guard
from tests.long.requests import check
from tests.support.slow import rest_slow


@pytest.mark.parametrize("kind", rest_slow(["code", "numbers", "service"]))
def test_requests(kind):
    assert not check(kind, 300, megabytes=math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shapes", "programs"])
def test_requests_that_fill_the_stores(kind):
    """19 MB come while the stores fill up, 6 over 4,000 requests; a program that stays takes 30 kB."""
    assert not check(kind, 1000, megabytes=30.0)


def test_the_source_of_a_program_goes_with_it():
    graph = record(lambda x: x[0] + np.linalg.inv(x), (np.eye(2),)).graph
    program = Program(graph)
    with pytest.raises(np.linalg.LinAlgError) as caught:
        program(np.zeros((2, 2)))
    file = next(f for f, *_ in traceback.extract_tb(caught.tb) if f.startswith("<autodiff "))
    assert "inv(x)" in "".join(traceback.format_tb(caught.tb)) and file in linecache.cache
    del program, caught
    gc.collect()  # perhaps while linecache.checkcache goes through the files, which Python 3.11 cannot bear
    assert file in linecache.cache
    Program(graph)
    assert file not in linecache.cache


def test_what_is_known_of_code_goes_with_it():
    size = cached_by_code(lambda code: len(code.co_consts))
    for k in range(5):
        names: dict = {}
        exec(f"def f(): return {k}", names)
        assert size(names["f"].__code__) == size(names["f"].__code__) and len(size.known) == 1
        del names
        gc.collect()
        assert not size.known


def test_stores_are_bounded_by_bytes():
    store = Store(size=4, most=100)
    for k in range(10):
        store.add(k, str(k), 30)
    assert [k for k in range(10) if store.find(k)] == [7, 8, 9] and store.nbytes == 90
    store.add("large", "L", 1000)
    assert store.find("large") == "L" and store.find(9) is None and store.nbytes == 1000


def test_programs_of_one_function_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(Cache, "BYTES", 100)
    cache = Cache()
    for k in range(10):
        cache.add(k, Guard(None, lambda: True), k, 30)
    assert [k for k in range(10) if k in cache] == [7, 8, 9]


def test_results_count(monkeypatch):
    """A program of few operations on large arrays keeps their memory."""
    g = ad.compile(lambda x: x * 2.0)
    g(np.ones(100_000))
    assert g.__derived__.cache.nbytes > 800_000


def halved(x, _):
    return 0.5 * x, x


def test_loops_of_any_number_of_lengths_leave_few_programs_on_their_body(monkeypatch):
    monkeypatch.setattr(derived, "MOST_STATES", 3)

    def local(x, _):
        return halved(x, _)

    for body in (halved, local):
        for n in (1, 2, 3, 4, 5, 4, 4, 1):
            assert ad.scan(body, 1.0, length=n)[0] == 0.5**n
            assert len(vars(body)[derived._STATES]) <= 3


def test_fixed_functions_keep_programs_for_a_bounded_number_of_shapes(monkeypatch):
    monkeypatch.setattr(fixed, "SIGNATURES", 3)
    f = ad.Fixed(lambda x: np.sum(x * x))
    pair = ad.FixedPair(lambda x: np.tanh(x))
    for n in (1, 2, 3, 4, 5, 4, 1):
        assert f(np.ones(n)) == n
        out, saved = pair.forward(np.ones(n))
        np.testing.assert_allclose(pair.backward(np.ones(n), saved)[0], 1.0 - np.tanh(1.0) ** 2)
        assert len(f.entries) <= 3 and len(pair.entries) <= 3
    assert len(f.entries) == 3
