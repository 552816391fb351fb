"""What users write without thinking of the compiler: it works, or the error says what to write instead."""

import math

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import const

X = np.array([0.5, 1.5, 0.7, 1.1])
W = np.array([1.0, 2.0, 3.0, 4.0])


def written(x, key, value):
    y = x.copy()
    y[key] = value
    return y


LISTS = {
    "concatenate": lambda x: np.concatenate([x[:2], [x[3] * x[2]]]),
    "concatenate, axis None": lambda x: np.concatenate([x.reshape(2, 2), [[x[0]]]], axis=None),
    "vstack": lambda x: np.vstack([x[:2], [x[0], x[1] * x[2]]]),
    "where": lambda x: np.where(W > 2, [x[0], 1.0, x[0] * x[1], 2.0], x),
    "sum": lambda x: x[:2] + [x[3], x[2] * x[0]],
    "product": lambda x: [x[3], x[2] * x[0]] * x[:2],
    "maximum": lambda x: np.maximum(x[:2], [x[3], 1.0]),
    "ufunc with dtype": lambda x: np.add(x[:2], (x[3], 1.0), dtype=np.float64),
    "nested": lambda x: x.reshape(2, 2) * [[x[0], 1.0], [2.0, x[1]]],
    "product of matrices": lambda x: x.reshape(2, 2) @ [x[0], x[1] ** 2],
    "clip": lambda x: np.clip(x, 0.1, [x[1], 1.0, 1.0, x[2]]),
    "assignment": lambda x: written(x, slice(0, 2), [x[3], x[2] ** 2]),
    "insert": lambda x: np.insert(x, 2, [x[0] * 2, 3.0]),
    "append": lambda x: np.append(x, (x[0] * x[1], 3)),
}


@pytest.mark.parametrize("name", list(LISTS))
def test_lists_of_recorded_values(name):
    """A list stands for an array anywhere in NumPy, and its entries have a derivative."""

    def f(x):
        return np.sum(LISTS[name](x) ** 2)

    slopes = [(f(X + e) - f(X - e)) / 2e-6 for e in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(ad.grad(f)(X), slopes, rtol=1e-8, atol=1e-8)


def test_a_constant_is_an_array_of_numbers():
    with pytest.raises(TypeError, match="dtype object"):
        const(np.array([None, 1.0]))


def test_a_loss_made_a_plain_number():
    """Its derivative would silently be zero."""

    def loss(x):
        return float(np.sum(x**2))

    calls = (
        ad.grad(loss),
        ad.value_and_grad(loss),
        ad.hessian(loss),
        ad.jacobian(loss),
        lambda x: ad.vjp(loss, x),
        lambda x: ad.jvp(loss, (x,), (x,)),
        lambda x: ad.autodiff(loss, ad.Duplicated(x, x.copy())),
        ad.value_and_grad(lambda x: (loss(x), 1.0), has_aux=True),
        ad.compile(loss),
    )
    for call in calls:
        with pytest.raises(ad.AutodiffError, match=r"test_mistakes.py:\d+: .*derivative would be lost"):
            call(X)


def test_a_plain_number_beside_the_loss():
    """A plain number may be an undifferentiated result, or choose a branch."""
    (value, shown), slope = ad.value_and_grad(lambda x: (np.sum(x**2), x[0].item()), has_aux=True)(X)
    assert type(shown) is float and shown == X[0] and value == np.sum(X**2)
    np.testing.assert_allclose(slope, 2 * X)
    hinge = ad.grad(lambda x: x if float(x) > 0 else 0.0)
    assert hinge(2.0) == 1.0 and hinge(-2.0) == 0.0


@pytest.mark.parametrize("f, words", [
    (lambda x: x @ np.array([1, None, 2, 3], object), "dtype object.*astype"),
    (lambda x: math.fsum(x), "Use np.sum"),
    (lambda x: math.sin(x[0]), "Use np.sin"),
    (lambda x: math.gamma(x[0]), "Use a NumPy function"),
    (lambda x: np.sum(x + [x[0], np.interp]), "dtype object"),
])  # fmt: skip
def test_errors_say_what_to_write(f, words):
    with pytest.raises(TypeError, match=rf"test_mistakes.py:\d+: .*{words}"):
        ad.grad(f)(X)
