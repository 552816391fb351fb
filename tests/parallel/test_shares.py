"""Shares of a batch on threads: the numbers of one process, and the bits of worker processes."""

import threading

import numpy as np
import pytest

from gpt2 import parallel
from gpt2.autodiff import get_threads, run_apart, set_threads
from gpt2.errors import UserError
from gpt2.parallel.one import One
from gpt2.parallel.shares import Shares
from tests.support import parallel_jobs as jobs

WHOLE = {"backward": "whole"}


@pytest.fixture(autouse=True)
def threads():
    yield
    set_threads(1)


def trained(threads, size=2, dtype="float32", options=jobs.AS_WRITTEN):
    set_threads(threads)
    return jobs.train("shares", One(), size, dtype, options=options)


def same(one, other):
    """Whether arrays, losses and norms have the same bits."""
    arrays = all(np.array_equal(one[0][name], other[0][name]) for name in one[0])
    return arrays and one[0].keys() == other[0].keys() and np.array_equal(one[1], other[1])


@pytest.mark.numeric
@pytest.mark.parametrize("options", [jobs.AS_WRITTEN, WHOLE], ids=["as written", "whole"])
@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(size, options):
    one = trained(1, size, options=options)
    assert same(one, trained(2, size, options=options)) and same(one, trained(4, size, options=options))


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("options", [jobs.AS_WRITTEN, WHOLE], ids=["as written", "whole"])
def test_worker_processes_give_the_same_bits(options):
    """So a run may go on with the other kind."""
    processes = jobs.train("processes", One(), 3, "float32", options=options)
    assert same(trained(2, 3, options=options), processes)


@pytest.mark.numeric
def test_shares_agree_with_one_process():
    alone = jobs.train("none", One())
    result = trained(2, 3, "float64")
    for name, array in alone[0].items():
        np.testing.assert_allclose(result[0][name], array, rtol=1e-6, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(result[1], alone[1], rtol=1e-10)


def test_two_threads_do_take_shares(monkeypatch):
    set_threads(2)
    model, optimizer = jobs.model_and_optimizer("float32")
    team = Shares(model, optimizer, 2)
    (batch,) = jobs.batches(0, 1)
    team.step([batch])  # of new shapes the first thread takes all
    met, who = threading.Barrier(2, timeout=20), set()

    def meeting(original):
        def loss_and_grads(*args):
            who.add(threading.current_thread().name)
            met.wait()  # each is there before the other has gone
            return original(*args)

        return loss_and_grads

    for each in team.batch.models:
        monkeypatch.setattr(each, "loss_and_grads", meeting(each.loss_and_grads))
    team.step([batch])
    assert len(who) == 2


def test_what_a_job_computes_apart_stays_on_its_thread():
    set_threads(3)
    seen = []
    run_apart(lambda index: seen.append((index, get_threads())))
    assert sorted(seen) == [(0, 1), (1, 1), (2, 1)] and get_threads() == 3

    def fails(index):
        if index == 2:
            raise ValueError("a pear")

    with pytest.raises(ValueError, match="a pear"):
        run_apart(fails)
    assert get_threads() == 3


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was():
    set_threads(2)
    model, optimizer = jobs.model_and_optimizer("float64")
    model.params["lnfb"][0] = np.nan
    before = model.flat_params.copy()
    loss, _ = Shares(model, optimizer, 2).step(jobs.batches(0, 1))
    assert not np.isfinite(loss) and optimizer.t == 0
    assert np.array_equal(model.flat_params, before, equal_nan=True)


def test_a_batch_that_cannot_be_cut_is_refused():
    model, optimizer = jobs.model_and_optimizer("float64")
    with pytest.raises(UserError, match="--workers 7: a batch has only 6 sequences"):
        parallel.start("shares", model, optimizer, One(), workers=7, batch_size=6)
    inputs, targets = jobs.batches(0, 1)[0]
    with pytest.raises(UserError, match="--workers 2: a batch of 5 sequences"):
        Shares(model, optimizer, 2).step([(inputs[:5], targets[:5])])
