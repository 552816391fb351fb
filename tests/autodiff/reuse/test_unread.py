"""An object that is held but not read does not cause a recording at each call."""

import collections
import datetime
import functools
import logging
import pathlib
import threading

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.reuse import X, is_reused, stays_current


class Model:
    def __init__(self, **held):
        self.rate = 2.0
        self.__dict__.update(held)

    @functools.cached_property
    def table(self):
        return np.ones(3)

    def loss(self, x):
        return np.sum(x * self.rate)


@pytest.mark.parametrize(
    "held",
    [
        np.random.default_rng(0),
        threading.Lock(),
        logging.getLogger(__name__),
        pathlib.Path("."),
        datetime.date(2020, 1, 1),
        collections.deque(),
        iter([1]),
        open,
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_is_held_and_not_read(held):
    model = Model(held=held)
    assert is_reused(model.loss, X)
    stays_current(model.loss, lambda: setattr(model, "rate", 3.0))
    assert is_reused(lambda x: np.sum(x * model.rate), X)


def test_a_branch_that_is_not_taken():
    verbose = False
    model = Model(log=logging.getLogger(__name__))

    def f(x):
        if verbose:
            print("here")
            open("file")
            np.load("file")
            np.save("file", X)
        return model.loss(x)

    assert is_reused(f, X)


def test_a_branch_that_is_taken_later(capsys):
    verbose = [False]

    def f(x):
        if verbose[0]:
            print("here")
        return np.sum(x)

    g = ad.grad(f)
    g(X), g(X)
    verbose[0] = True
    g(X), g(X)
    assert capsys.readouterr().out == "here\nhere\n"
