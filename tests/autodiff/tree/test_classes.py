"""Parameters as people keep them: classes as trees, in every transform, and never a stale program."""

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
            raise TypeError("only arrays")  # __init__ is not run where it is put together again
        self._x, self._y, self.label = x, y, label


ad.tree.register(Point, lambda p: ((p._x, p._y), p.label), lambda label, xy: _point(label, *xy))


def _point(label, x, y):
    new = Point.__new__(Point)
    new._x, new._y, new.label = x, y, label
    return new


def parameters(rng):
    linear = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    return {
        "data class": linear,
        "frozen, with slots, nested": Frozen(0.5, (linear, linear)),
        "named tuple": Pair(rng.normal(size=3), {"b": 2.0}),
        "ordered dict": collections.OrderedDict(z=rng.normal(size=3), a=1.5),
        "namespace": types.SimpleNamespace(w=rng.normal(size=3), n=3),
        "all attributes of a class": Bag(w=rng.normal(size=3), inner=Bag(v=2.0)),
        "functions of its own": Point(rng.normal(size=2), rng.normal(size=2), "p"),
    }


def loss(p):
    return sum(float(k + 1) * np.sum(np.sin(leaf) * leaf) for k, leaf in enumerate(ad.tree.leaves(p)))


def slope(p):
    return [(k + 1) * (np.cos(x) * x + np.sin(x)) for k, x in enumerate(ad.tree.leaves(p))]


@pytest.mark.parametrize("kind", parameters(np.random.default_rng(0)))
def test_gradients_come_back_in_the_same_class(kind, rng):
    p = parameters(rng)[kind]
    g = ad.grad(loss)
    for found in (g(p), g(p), ad.value_and_grad(loss)(p)[1], ad.vjp(loss, p)[1](1.0)[0]):
        assert type(found) is type(p)
        for a, b in zip(ad.tree.leaves(found), slope(p), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    along = ad.jvp(loss, (p,), (p,))[1]
    np.testing.assert_allclose(along, sum(np.sum(a * b) for a, b in zip(slope(p), ad.tree.leaves(p))))
    ad.check_grads(loss, (p,))


@pytest.mark.parametrize("kind", parameters(np.random.default_rng(0)))
def test_results_and_cotangents(kind, rng):
    """A function that returns such an object, the cotangent given as one, and a buffer too."""
    p = parameters(rng)[kind]

    def doubled(p):
        return ad.tree.map(lambda x: 2.0 * x, p)

    out, back = ad.vjp(doubled, p)
    assert type(out) is type(p)
    (grads,) = back(p)
    for g, x in zip(ad.tree.leaves(grads), ad.tree.leaves(p)):
        np.testing.assert_allclose(g, 2.0 * x)
    assert type(ad.compile(doubled)(p)) is type(p)


def test_all_that_an_instance_holds_is_there(rng):
    """Methods, settings, and fields that __post_init__ makes."""

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
    assert p.norm > 0  # cached in the instance, and computed again in the recording
    g = ad.grad(lambda p: p.norm + np.sum(p.half) * p.power)(p)
    np.testing.assert_allclose(g.w, 2 * p.w)
    np.testing.assert_allclose(g.half, 2.0)
    assert g.power is None


def test_buffers_in_the_same_class(rng):
    p = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    out = Linear(np.empty((3, 2)), None, None)
    g = ad.grad(loss)(p, out=out)
    assert g.weight is out.weight
    np.testing.assert_allclose(g.weight, slope(p)[0])
    with pytest.raises(ad.AutodiffError, match="expected a Linear, like the result"):
        ad.grad(loss)(p, out=Frozen(1.0, ()))


def test_a_class_of_settings_is_static():
    """Without a leaf in it the object itself is what the function is given."""

    @dataclass(frozen=True)
    class Settings:
        n: int = 3
        name: str = "a"

    settings, seen = Settings(), []
    ad.grad(lambda x, s: seen.append(s) or x**s.n)(2.0, settings)
    assert seen[0] is settings
    assert ad.grad(lambda x, s: x**s.n)(2.0, Settings(n=2)) == 4.0


def test_settings_by_declaration(rng):
    @dataclass
    class Scaled:
        w: np.ndarray
        eps: float = field(default=0.5, metadata={"static": True})

    g = ad.grad(lambda p: np.sum(p.w) * (p.eps if p.eps > 0.1 else 3.0))
    assert g(Scaled(np.ones(2))).w.tolist() == [0.5, 0.5]
    assert g(Scaled(np.ones(2), 0.25)).w.tolist() == [0.25, 0.25]
    assert g(Scaled(np.ones(2), 0.05)).w.tolist() == [3.0, 3.0]
    assert g(Scaled(np.ones(2))).eps is None


def test_a_class_taken_as_it_is():
    @ad.tree.static
    @dataclass
    class Whole:
        w: float

    whole, seen = Whole(2.0), []
    assert ad.grad(lambda x, p: seen.append(p) or x * p.w)(3.0, whole) == 2.0
    assert seen[0] is whole
    with pytest.raises(ad.AutodiffError, match="p is .*Whole"):
        ad.grad(lambda p: p.w)(whole)


# ---- What must be refused --------------------------------------------------------------------------------


def test_an_attribute_that_may_depend_on_the_fields():
    """A derivative would treat it as an independent number."""

    @dataclass
    class Model:
        w: np.ndarray

        def __post_init__(self):
            self.norm = float(np.sum(self.w))

    with pytest.raises(ad.AutodiffError, match="'norm', which is no field"):
        ad.grad(lambda p: p.norm)(Model(np.ones(2)))


def test_an_instance_that_refers_to_itself():
    p = types.SimpleNamespace(w=1.0)
    p.me = p
    with pytest.raises(ad.AutodiffError, match="refers to itself"):
        ad.grad(lambda p: p.w)(p)


def test_changing_an_argument(rng):
    """The recording has a copy, and the caller would not see it."""

    def change(p):
        p.weight = p.weight * 2.0
        return np.sum(p.weight)

    with pytest.raises(ad.AutodiffError, match="and the caller would not see it"):
        ad.grad(change)(Linear(rng.normal(size=(3, 2)), rng.normal(size=2)))


def test_writing_into_its_arrays(rng):
    def step(p):
        p.weight *= 2.0
        p.bias[0] = 1.0
        return np.sum(p.weight)

    p = Linear(np.ones((3, 2)), np.zeros(2))
    assert ad.compile(step)(p) == 12.0
    assert p.weight.tolist() == [[2.0, 2.0]] * 3 and p.bias.tolist() == [1.0, 0.0]


def test_a_cotangent_of_another_class(rng):
    p = Linear(rng.normal(size=(3, 2)), rng.normal(size=2))
    _, back = ad.vjp(lambda p: p, p)
    with pytest.raises(ad.AutodiffError, match="expected a Linear, like the result"):
        back(Frozen(1.0, (2.0,)))
    with pytest.raises(ad.AutodiffError, match="expected a Linear, as the argument"):
        ad.jvp(loss, (p,), (Frozen(1.0, ()),))


def test_a_base_written_in_c():
    """Its memory cannot be filled from outside: it stays what it is."""

    @dataclass
    class Odd(Exception):
        w: float

    odd, seen = Odd(1.0), []
    assert ad.grad(lambda x, e: seen.append(e) or x * 2.0)(1.0, odd) == 2.0 and seen[0] is odd
    with pytest.raises(ad.AutodiffError, match="needs a flatten"):
        ad.tree.register(np.random.Generator)


# ---- A program is used again only where nothing changed --------------------------------------------------


def worlds():
    """Functions of an object, and what is changed between two calls: name -> (f, make argument, change)."""

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

    def change(c):
        c.rate = 3.0

    def method(c):
        c.value = lambda self: 3.0 * self.w

    return {
        "class attribute": (lambda p: p.w * p.rate, lambda: D(1.0), lambda: change(D)),
        "method": (lambda p: p.value(), lambda: D(1.0), lambda: method(D)),
        "named tuple, attribute": (lambda p: p.w * p.rate, lambda: N(1.0), lambda: change(N)),
        "named tuple, method": (lambda p: p.value(), lambda: N(1.0), lambda: method(N)),
        "list": (lambda p: p[0] * p.rate, lambda: L([1.0]), lambda: change(L)),
        "dict": (lambda p: p["w"] * p.rate, lambda: M(w=1.0), lambda: change(M)),
        "registered": (lambda p: p.w * p.rate, lambda: R(1.0), lambda: change(R)),
    }


@pytest.mark.parametrize("which", worlds())
def test_a_class_that_changes(which):
    f, make, change = worlds()[which]
    g = ad.grad(f)
    assert ad.tree.leaves(g(make())) == ad.tree.leaves(g(make())) == [2.0]
    change()
    assert ad.tree.leaves(g(make())) == [3.0]


def test_settings_of_an_instance_that_change(rng):
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


def test_a_program_is_used_again(rng):
    g = ad.grad(lambda p, x: np.sum(p(x)))
    p, x = Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), rng.normal(size=3)
    g(p, x), g(p, x)
    assert ad.why_recorded(g) is None
    assert g.__derived__.entry != g.__derived__.slow  # the short way in
    other = Linear(p.weight * 2, p.bias)
    np.testing.assert_allclose(g(other, x).bias, 1 - np.tanh(x @ other.weight + p.bias) ** 2)


# ---- ad.tree ---------------------------------------------------------------------------------------------


def test_an_optimizer_of_trees(rng):
    p = Frozen(2.0, (Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), 7))
    g = ad.grad(loss)(p)
    new = ad.tree.map(lambda p, g: p - 0.1 * g, p, g)
    assert type(new.layers[0]) is Linear and new.layers[0].name == "linear" and new.layers[1] == 7
    for a, b, c in zip(*map(ad.tree.leaves, (new, p, g))):
        np.testing.assert_array_equal(a, b - 0.1 * c)


def test_map_of_trees_that_differ():
    add = lambda a, b: a if b is None else a + b  # noqa: E731
    assert ad.tree.map(add, {"a": 1.0, "b": 2.0}, {"a": 3.0, "b": None}) == {"a": 4.0, "b": 2.0}
    with pytest.raises(ad.AutodiffError, match=r"tree 1 has a leaf at \['c'\]"):
        ad.tree.map(add, {"a": 1.0}, {"a": 3.0, "c": 2.0})
    with pytest.raises(ad.AutodiffError, match=r"tree 1 has 'x' at \['a'\]"):
        ad.tree.map(add, {"a": 1.0}, {"a": "x"})


def test_ravel(rng):
    p = Frozen(2.0, (Linear(rng.normal(size=(3, 2)), rng.normal(size=2)), 7))
    vector, back = ad.tree.ravel(p)
    assert vector.shape == (9,) and type(back(vector)) is Frozen
    along = ad.grad(lambda v: loss(back(v)))(vector)
    np.testing.assert_allclose(along, ad.tree.ravel(ad.grad(loss)(p))[0])
    np.testing.assert_allclose(ad.grad(lambda p: np.sum(ad.tree.ravel(p)[0] ** 2))(p).scale, 4.0)
    with pytest.raises(ad.AutodiffError, match=r"expected \(9,\)"):
        back(np.zeros(3))


def test_attrs(rng):
    attrs = pytest.importorskip("attrs")

    @attrs.frozen
    class Model:
        w: np.ndarray
        n: int = 2
        eps: float = attrs.field(default=0.5, metadata={"static": True})

    g = ad.grad(lambda p: np.sum(p.w**p.n) * p.eps)
    p = Model(rng.normal(size=3))
    for found in (g(p), g(p)):
        assert type(found) is Model and found.n is None
        np.testing.assert_allclose(found.w, p.w)


def test_a_subclass_of_ordered_dict_comes_back_whole():
    class Parts(collections.OrderedDict):
        """Iterates over a separate list, which dict's methods would not fill."""

    found = ad.grad(lambda p: sum(v**2 for v in p.values()))(Parts(b=3.0, a=1.0))
    assert type(found) is Parts and list(found.items()) == [("b", 6.0), ("a", 2.0)]


def test_a_copy_with_other_items_leaves_the_argument_alone():
    class Beside(dict):
        """Its items are in a separate dict too, as those of scipy.sparse.dok_matrix are."""

        def __init__(self, items):
            super().__init__(items)
            self.beside = dict(items)

        def clear(self):
            self.beside.clear()
            super().clear()

    given = Beside({"a": 3.0})
    assert ad.grad(lambda p: p["a"] ** 2)(given)["a"] == 6.0
    assert given == {"a": 3.0} and given.beside == {"a": 3.0}


def test_a_structure_can_be_copied_and_pickled(rng):
    given = {"w": rng.normal(size=2), "n": 3, "parts": [1.5, (None, 2.5)]}
    leaves, structure = ad.tree.flatten(given)
    for other in (copy.deepcopy(structure), pickle.loads(pickle.dumps(structure))):
        assert other == structure and hash(other) == hash(structure) and repr(other) == repr(structure)
        assert ad.tree.unflatten(other, leaves) == given
