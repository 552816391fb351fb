"""Data classes, named tuples and registered classes as trees, in every transform; programs are not stale."""

import collections
import copy
import functools
import pickle
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.trees import assert_close


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@dataclass
class Linear:
    weight: np.ndarray
    bias: np.ndarray
    name: str = "linear"

    def __call__(self, x):
        return np.tanh(x @ self.weight + self.bias)


@dataclass(frozen=True, slots=True)
class Frozen:
    scale: float
    layers: tuple


class Pair(NamedTuple):
    a: Any
    b: Any


@ad.tree.register
class Bag:
    def __init__(self, **items):
        self.__dict__.update(items)


class Point:
    def __init__(self, x, y, label):
        if not isinstance(x, np.ndarray):
            raise TypeError("only arrays")  # __init__ does not run in unflatten
        self._x, self._y, self.label = x, y, label


def unflatten_point(label, xy):
    new = Point.__new__(Point)
    (new._x, new._y), new.label = xy, label
    return new


ad.tree.register(Point, lambda p: ((p._x, p._y), p.label), unflatten_point)


def parameters(rng):
    linear = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    return {
        "data class": linear,
        "frozen, with slots, nested": Frozen(0.5, (linear, linear)),
        "named tuple": Pair(rng.normal(size=3), {"b": 2.0}),
        "ordered dict": collections.OrderedDict(z=rng.normal(size=3), a=1.5),
        "namespace": types.SimpleNamespace(w=rng.normal(size=3), n=3),
        "registered class": Bag(w=rng.normal(size=3), inner=Bag(v=2.0)),
        "registered flatten": Point(rng.normal(size=2), rng.normal(size=2), "p"),
    }


def loss(p):
    return sum(float(k + 1) * np.sum(np.sin(leaf) * leaf) for k, leaf in enumerate(ad.tree.leaves(p)))


def slope(p):
    return [(k + 1) * (np.cos(x) * x + np.sin(x)) for k, x in enumerate(ad.tree.leaves(p))]


@pytest.fixture(params=parameters(np.random.default_rng(0)))
def tree(request, rng):
    return parameters(rng)[request.param]


def test_gradients_have_the_class_of_the_argument(tree):
    g = ad.grad(loss)
    for grads in (g(tree), g(tree), ad.value_and_grad(loss)(tree)[1], ad.vjp(loss, tree)[1](1.0)[0]):
        assert type(grads) is type(tree)
        assert_close(grads, slope(tree))
    tangent = ad.jvp(loss, (tree,), (tree,))[1]
    np.testing.assert_allclose(tangent, sum(np.sum(a * b) for a, b in zip(slope(tree), ad.tree.leaves(tree))))
    ad.check_grads(loss, (tree,))


def test_results_and_cotangents_of_a_class(tree):
    def doubled(p):
        return ad.tree.map(lambda x: 2.0 * x, p)

    out, pullback = ad.vjp(doubled, tree)
    (grads,) = pullback(tree)
    assert type(out) is type(grads) is type(ad.compile(doubled)(tree)) is type(tree)
    assert_close(grads, [2.0 * x for x in ad.tree.leaves(tree)])


def test_methods_settings_and_computed_fields(rng):
    @dataclass
    class Model:
        w: np.ndarray
        power: int = 2
        half: np.ndarray = field(init=False)

        def __post_init__(self):
            self.half = self.w / 2

        @functools.cached_property
        def norm(self):
            return np.sum(np.abs(self.w) ** self.power)

    p = Model(rng.normal(size=3))
    assert p.norm > 0  # caches it in the instance; the recording computes it again
    g = ad.grad(lambda p: p.norm + np.sum(p.half) * p.power)(p)
    np.testing.assert_allclose(g.w, 2 * p.w)
    np.testing.assert_allclose(g.half, 2.0)
    assert g.power is None


def test_buffers_in_a_data_class(rng):
    p = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    out = Linear(np.empty((3, 2)), None, None)
    g = ad.grad(loss)(p, out=out)
    assert g.weight is out.weight
    np.testing.assert_allclose(g.weight, slope(p)[0])
    with pytest.raises(ad.AutodiffError, match="expected a Linear, like the result"):
        ad.grad(loss)(p, out=Frozen(1.0, ()))


@dataclass(frozen=True)
class Settings:
    n: float = 3
    name: str = "a"


@ad.tree.static
@dataclass
class Whole:
    n: float


@dataclass
class DataError(Exception):
    """A subclass of a type in C cannot be rebuilt from its fields."""

    n: float


@pytest.mark.parametrize("kind", [Settings, Whole, DataError])
def test_class_without_leaves_or_declared_static_or_of_a_type_in_c(kind):
    """The function gets the object itself."""
    static, seen = kind(2 if kind is Settings else 2.0), []
    g = ad.grad(lambda x, s: seen.append(s) or x**s.n)
    assert g(3.0, static) == 6.0 and seen[0] is static
    assert g(3.0, kind(3 if kind is Settings else 3.0)) == 27.0
    with pytest.raises(ad.AutodiffError, match=f"p is .*{kind.__name__}"):
        ad.grad(lambda p: p.n)(static)


def test_fields_declared_static():
    @dataclass
    class Scaled:
        w: np.ndarray
        eps: float = field(default=0.5, metadata={"static": True})

    g = ad.grad(lambda p: np.sum(p.w) * (p.eps if p.eps > 0.1 else 3.0))
    for eps, slope in ((0.5, 0.5), (0.25, 0.25), (0.05, 3.0)):
        assert g(Scaled(np.ones(2), eps)).w.tolist() == [slope, slope]
    assert g(Scaled(np.ones(2))).eps is None


# ---- Errors ----------------------------------------------------------------------------------------------


def test_attribute_that_is_no_field_is_refused():
    """It may depend on the fields, and a derivative would treat it as constant."""

    @dataclass
    class Model:
        w: np.ndarray

        def __post_init__(self):
            self.norm = float(np.sum(self.w))

    with pytest.raises(ad.AutodiffError, match="'norm', which is no field"):
        ad.grad(lambda p: p.norm)(Model(np.ones(2)))


def test_reference_cycle_is_refused():
    p = types.SimpleNamespace(w=1.0)
    p.me = p
    with pytest.raises(ad.AutodiffError, match="refers to itself"):
        ad.grad(lambda p: p.w)(p)


def test_arrays_of_an_argument_may_be_written_to_but_not_its_fields():
    """The recording has a copy of the object."""

    def step(p):
        p.weight *= 2.0
        p.bias[0] = 1.0
        return np.sum(p.weight)

    p = Linear(np.ones((3, 2)), np.zeros(2))
    assert ad.compile(step)(p) == 12.0
    assert p.weight.tolist() == [[2.0, 2.0]] * 3 and p.bias.tolist() == [1.0, 0.0]
    with pytest.raises(ad.AutodiffError, match="and the caller would not see it"):
        ad.grad(lambda p: setattr(p, "weight", p.weight * 2.0) or np.sum(p.weight))(p)


def test_cotangent_or_tangent_of_another_class_is_refused(rng):
    p = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    _, pullback = ad.vjp(lambda p: p, p)
    with pytest.raises(ad.AutodiffError, match="expected a Linear, like the result"):
        pullback(Frozen(1.0, (2.0,)))
    with pytest.raises(ad.AutodiffError, match="expected a Linear, as the argument"):
        ad.jvp(loss, (p,), (Frozen(1.0, ()),))


def test_type_in_c_is_registered_with_a_flatten():
    with pytest.raises(ad.AutodiffError, match="needs a flatten"):
        ad.tree.register(np.random.Generator)


# ---- Reuse of programs: not after a change ---------------------------------------------------------------


def changeable():
    """name -> (f, a function that makes its argument), of new classes."""

    @dataclass
    class D:
        w: float
        rate = 2.0

        def value(self):
            return self.w * self.rate

    class N(NamedTuple):
        w: float

        @property
        def rate(self):
            return 2.0

        def value(self):
            return self.w * self.rate

    class L(list):
        rate = 2.0

    class M(dict):
        rate = 2.0

    @ad.tree.register
    class R:
        rate = 2.0

        def __init__(self, w):
            self.w = w

    return {
        "class attribute": (lambda p: p.w * p.rate, lambda: D(1.0)),
        "method": (lambda p: p.value(), lambda: D(1.0)),
        "named tuple, attribute": (lambda p: p.w * p.rate, lambda: N(1.0)),
        "named tuple, method": (lambda p: p.value(), lambda: N(1.0)),
        "list": (lambda p: p[0] * p.rate, lambda: L([1.0])),
        "dict": (lambda p: p["w"] * p.rate, lambda: M(w=1.0)),
        "registered": (lambda p: p.w * p.rate, lambda: R(1.0)),
    }


@pytest.mark.parametrize("kind", changeable())
def test_change_of_a_class_is_seen(kind):
    f, make = changeable()[kind]
    g = ad.grad(f)
    assert ad.tree.leaves(g(make())) == ad.tree.leaves(g(make())) == [2.0]
    if "method" in kind:
        type(make()).value = lambda self: 3.0 * self.w
    else:
        type(make()).rate = 3.0
    assert ad.tree.leaves(g(make())) == [3.0]


def test_change_of_an_instance_is_seen():
    g = ad.grad(lambda p: np.sum(p.weight) * len(p.name))
    p = Linear(np.ones((1, 2)), np.zeros(2))
    assert g(p).weight.tolist() == [[6.0, 6.0]]
    p.name = "abc"
    assert g(p).weight.tolist() == [[3.0, 3.0]]
    p.extra = 3
    assert g(p).weight.tolist() == [[3.0, 3.0]]
    h = ad.grad(lambda p: np.sum(p.weight) * getattr(p, "extra", 1))
    assert h(p).weight.tolist() == [[3.0, 3.0]]
    del p.extra
    assert h(p).weight.tolist() == [[1.0, 1.0]]


def test_program_is_reused_for_another_instance(rng):
    g = ad.grad(lambda p, x: np.sum(p(x)))
    p, x = Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), rng.normal(size=3)
    g(p, x), g(p, x)
    assert ad.why_recorded(g) is None
    assert g.__derived__.entry != g.__derived__.slow  # but the fast entry
    other = Linear(p.weight * 2, p.bias)
    np.testing.assert_allclose(g(other, x).bias, 1 - np.tanh(x @ other.weight + p.bias) ** 2)


# ---- ad.tree ---------------------------------------------------------------------------------------------


def test_map_updates_parameters(rng):
    p = Frozen(2.0, (Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), 7))
    g = ad.grad(loss)(p)
    new = ad.tree.map(lambda p, g: p - 0.1 * g, p, g)
    assert type(new.layers[0]) is Linear and new.layers[0].name == "linear" and new.layers[1] == 7
    for a, b, c in zip(*map(ad.tree.leaves, (new, p, g)), strict=True):
        np.testing.assert_array_equal(a, b - 0.1 * c)


def test_map_of_trees_that_differ():
    add = lambda a, b: a if b is None else a + b  # noqa: E731
    assert ad.tree.map(add, {"a": 1.0, "b": 2.0}, {"a": 3.0, "b": None}) == {"a": 4.0, "b": 2.0}
    with pytest.raises(ad.AutodiffError, match=r"where the first has a dict with keys \['a'\]"):
        ad.tree.map(add, {"a": 1.0}, {"a": 3.0, "c": 2.0})
    with pytest.raises(ad.AutodiffError, match=r"tree 1 has 'x' at \['a'\]"):
        ad.tree.map(add, {"a": 1.0}, {"a": "x"})


def test_ravel(rng):
    p = Frozen(2.0, (Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), 7))
    vector, unravel = ad.tree.ravel(p)
    assert vector.shape == (9,) and type(unravel(vector)) is Frozen
    slopes = ad.grad(lambda v: loss(unravel(v)))(vector)
    np.testing.assert_allclose(slopes, ad.tree.ravel(ad.grad(loss)(p))[0])
    np.testing.assert_allclose(ad.grad(lambda p: np.sum(ad.tree.ravel(p)[0] ** 2))(p).scale, 4.0)
    with pytest.raises(ad.AutodiffError, match=r"expected \(9,\)"):
        unravel(np.zeros(3))


def test_classes_of_attrs(rng):
    attrs = pytest.importorskip("attrs")

    @attrs.frozen
    class Model:
        w: np.ndarray
        n: int = 2
        eps: float = attrs.field(default=0.5, metadata={"static": True})

    g = ad.grad(lambda p: np.sum(p.w**p.n) * p.eps)
    p = Model(rng.normal(size=3))
    for slopes in (g(p), g(p)):
        assert type(slopes) is Model and slopes.n is None
        np.testing.assert_allclose(slopes.w, p.w)


def test_gradient_in_a_subclass_of_ordered_dict():
    class Parts(collections.OrderedDict):
        """Iterates over a separate list, which dict's methods do not fill."""

    slopes = ad.grad(lambda p: sum(v**2 for v in p.values()))(Parts(b=3.0, a=1.0))
    assert type(slopes) is Parts and list(slopes.items()) == [("b", 6.0), ("a", 2.0)]


def test_gradient_in_a_dict_subclass_leaves_the_argument_unchanged():
    class Mirrored(dict):
        """Has its items in a second dict too, like scipy.sparse.dok_matrix."""

        def __init__(self, items):
            super().__init__(items)
            self.mirror = dict(items)

        def clear(self):
            self.mirror.clear()
            super().clear()

    p = Mirrored({"a": 3.0})
    assert ad.grad(lambda p: p["a"] ** 2)(p)["a"] == 6.0
    assert p == p.mirror == {"a": 3.0}


def test_structure_can_be_copied_and_pickled(rng):
    tree = {"w": rng.normal(size=2), "n": 3, "parts": [1.5, (None, 2.5)]}
    leaves, structure = ad.tree.flatten(tree)
    for other in (copy.deepcopy(structure), pickle.loads(pickle.dumps(structure))):
        assert other == structure and hash(other) == hash(structure) and repr(other) == repr(structure)
        assert ad.tree.unflatten(other, leaves) == tree
