"""Containers of many arrays, all of which the fast entry checks: any change is noticed."""

import numpy as np
import pytest

import gpt2.autodiff as ad

N = 35
MAKE = {
    "list": list,
    "tuple": tuple,
    "dict": lambda values: {f"p{k}": v for k, v in enumerate(values)},
    "numbered": lambda values: dict(enumerate(values)),
}


def total(p):
    """Depends on the order, the shapes and the dtypes of the arrays."""
    values = p.values() if isinstance(p, dict) else p
    return sum((k + 1) * np.sum(np.cumsum(np.sin(v))) * v.shape[0] for k, v in enumerate(values))


def total_of_any(p):
    values = p.values() if isinstance(p, dict) else p
    return sum((k + 1) * np.sum(np.sin(v)) for k, v in enumerate(values))


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, 4)) for _ in range(N)]


# An array in another form, or something else than an array
FORMS = {
    "shape": lambda x: np.ascontiguousarray(x.T),
    "dtype": lambda x: x.astype(np.float32),
    "strides": np.asfortranarray,
    "class": np.ma.masked_array,
    "number": lambda x: np.float64(x[0, 0]),
}


def same(found, expected):
    items = zip(found.values(), expected.values()) if isinstance(found, dict) else zip(found, expected)
    return type(found) is type(expected) and all(
        np.array_equal(a, b) and a.dtype == b.dtype and a.shape == b.shape for a, b in items
    )


@pytest.mark.parametrize("kind", MAKE)
def test_the_fast_entry_gives_the_same_result(kind):
    make = MAKE[kind]
    g = ad.grad(total)
    g(make(arrays()))
    for seed in range(3):
        values = make(arrays(seed))
        assert same(g(values), ad.grad(total)(values))
    assert ad.why_recorded(g) is None


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("what", FORMS)
def test_another_form_is_noticed(kind, what):
    make, f = MAKE[kind], total if what != "number" else total_of_any
    g = ad.grad(f)
    g(make(arrays()))
    changed = arrays(1)
    changed[5] = FORMS[what](changed[5])
    values = make(changed)
    try:
        expected = ad.grad(f)(values)
    except Exception as error:
        with pytest.raises(type(error)):
            g(values)
    else:
        assert same(g(values), expected)


def test_the_order_and_the_kind_of_keys_are_noticed():
    def f(p):
        return sum(
            (k + 1) * np.sum(v) * (2 if type(key) is bool else 1) for k, (key, v) in enumerate(p.items())
        )

    values = arrays()
    p = dict(enumerate(values))
    g = ad.grad(f)
    g(p)
    turned = dict(reversed(list(p.items())))
    assert same(g(turned), ad.grad(f)(turned))
    truth = {True if k == 1 else k: v for k, v in p.items()}
    assert same(g(truth), ad.grad(f)(truth)) and not same(g(truth), g(p))


def test_one_more_and_one_less():
    g = ad.grad(total)
    g(arrays())
    for values in (arrays()[:-1], [*arrays(), np.ones((3, 4))]):
        assert same(g(values), ad.grad(total)(values))
