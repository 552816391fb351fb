"""Shares of a batch on threads: bit for bit as with worker processes, for any number of threads."""

import threading

import numpy as np
import pytest

from gpt2.autodiff import get_threads, run_apart, set_threads
from gpt2.errors import UserError
from gpt2.parallel.group import Group
from gpt2.parallel.shares import Shares
from tests.support import parallel_jobs as jobs

WHOLE = {"backward": "whole"}


def trained(threads, size=2, dtype="float32", options=jobs.AS_WRITTEN):
    set_threads(threads)
    return jobs.train("shares", Group(), size, dtype, options=options)


def same(one, other):
    """Whether arrays, losses and norms are equal bit for bit."""
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
    """So a run may be resumed with the other kind."""
    processes = jobs.train("processes", Group(), 3, "float32", options=options)
    assert same(trained(2, 3, options=options), processes)


def test_two_threads_compute_shares_at_the_same_time(monkeypatch):
    set_threads(2)
    model, optimizer = jobs.model_and_optimizer("float32")
    team = Shares(model, optimizer, 2)
    (batch,) = jobs.batches(0, 1)
    team.step([batch])  # the first batch of its shapes is computed by one thread
    barrier, names = threading.Barrier(2, timeout=20), set()

    def meeting(original):
        def loss_and_grads(*args):
            names.add(threading.current_thread().name)
            barrier.wait()  # returns once both threads are here
            return original(*args)

        return loss_and_grads

    for each in team.models:
        monkeypatch.setattr(each, "loss_and_grads", meeting(each.loss_and_grads))
    team.step([batch])
    assert len(names) == 2


def test_run_apart_gives_each_job_one_thread():
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


# ---- Threads and processes alike ---------------------------------------------------------------------------

both_kinds = pytest.mark.parametrize("kind", ["shares", "processes"])


@both_kinds
def test_loss_that_is_not_finite_changes_nothing(kind):
    set_threads(2)
    model, optimizer = jobs.model_and_optimizer("float64")
    model.params["lnfb"][0] = np.nan
    before = model.flat_params.copy()
    with jobs.team_of(kind, model, optimizer, Group(), 2) as team:
        loss, _ = team.step(jobs.batches(0, 1))
    assert np.isnan(loss) and optimizer.t == 0 and not optimizer.m.any()
    assert np.array_equal(model.flat_params, before, equal_nan=True)


@both_kinds
def test_batch_that_cannot_be_split_evenly_is_refused(kind):
    model, optimizer = jobs.model_and_optimizer("float64")
    with pytest.raises(UserError, match="workers 7: a batch has only 6 sequences"):
        jobs.team_of(kind, model, optimizer, Group(), 7)
    with jobs.team_of(kind, model, optimizer, Group(), 2) as team:
        inputs, targets = jobs.batches(0, 1)[0]
        with pytest.raises(UserError, match="workers 2: a batch of 5 sequences"):
            team.step([(inputs[:5], targets[:5])])
