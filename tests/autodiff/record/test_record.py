"""Recording: structure of arguments and results, names, places; what is captured, lifted, read, refused."""

import copy
import enum
import functools
import gc
import itertools
import math
import pickle
import textwrap
import typing
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.errors import AutodiffError, ConversionError, DtypeError, EscapedError, UnsupportedError
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.record.record import apply_op, inline, record
from gpt2.autodiff.record.value import Recorded
from gpt2.autodiff.reuse.conditions import path_of_pure
from gpt2.autodiff.tree import Tree, flatten, tree_map, unflatten

X = np.arange(6.0).reshape(2, 3)
Pair = namedtuple("Pair", "first second")


# trees
def test_flatten_and_back():
    nested = {"w": (X, [1.5, None, "text"]), "n": 3, "p": Pair(X, True), "empty": ()}
    leaves, tree = flatten(nested)
    assert [type(x) for x in leaves] == [np.ndarray, float, np.ndarray]
    back = unflatten(tree, leaves)
    assert back["w"][1] == [1.5, None, "text"] and back["n"] == 3 and isinstance(back["p"], Pair)
    assert tree.paths() == [("w", 0), ("w", 1, 0), ("p", "first")]
    assert tree_map(lambda x: 0, nested)["w"] == (0, [0, None, "text"])
    with pytest.raises(ValueError, match="2 leaves, expected 3"):
        unflatten(tree, leaves[:2])


def test_trees_compare_by_structure_and_static_values():
    def tree(x) -> Tree:
        return flatten(x)[1]

    assert tree((X, 1)) == tree((X + 1, 1)) and hash(tree((X, 1))) == hash(tree((X, 1)))
    for other in ((X, 2), (X, True), (X, 1.0), [X, 1], (X,), (1, X), {"a": X}):
        assert tree((X, 1)) != tree(other)
    assert tree({"a": X}) != tree({"b": X})


# structure
def test_arguments_and_results():
    def f(params, pair, n, *rest, scale=2.0, flag=True):
        total = params["w"] * scale + params["b"][0]
        return {"total": total, "rest": rest[0] * n, "n": n, "none": None}, pair[1] if flag else pair[0]

    rec = record(f, ({"w": X, "b": [X, 1.0]}, (X, X), 3, X), {"scale": 4.0})
    names = [n.name for n in rec.graph.inputs]
    assert names == ["params_w", "params_b_0", "params_b_1", "pair_0", "pair_1", "rest_0", "scale"]
    results, second = rec.results
    assert results["n"] == 3 and results["none"] is None and rec.n_results == 3
    np.testing.assert_array_equal(results["total"], X * 4.0 + X)
    np.testing.assert_array_equal(second, X)
    assert rec.graph.outputs[2] is rec.graph.inputs[4]
    assert rec.graph.name == "f" and record(lambda x: x, (X,)).graph.name == "f"


def test_integer_arrays_are_inputs_and_python_integers_static():
    rec = record(lambda x, i, n: x[i] * n, (X, np.array([1, 0]), 2))
    assert [n.dtype.kind for n in rec.graph.inputs] == ["f", "i"] and not rec.value_dependent


def test_python_floats_are_weak():
    x32 = X.astype(np.float32)
    rec = record(lambda x, a: x * a, (x32, 0.1))
    assert rec.graph.outputs[0].dtype == np.float32 and rec.graph.inputs[1].dtype == np.float64
    np.testing.assert_array_equal(rec.results, x32 * 0.1)
    np.testing.assert_array_equal(evaluate_graph(rec.graph, [x32, 0.1])[0], x32 * 0.1)
    assert type(record(lambda a: a * 2 + a**2, (1.5,)).results) is float
    assert type(record(lambda a: np.exp(a), (1.5,)).results) is np.float64
    with np.errstate(divide="ignore"):
        assert record(lambda a: 1 / (a - a), (1.5,)).results == np.inf  # as NumPy, not as Python


def test_strong_scalars_widen():
    x32 = X.astype(np.float32)
    rec = record(lambda x: x * np.float64(0.1), (x32,))
    assert [n.op for n in rec.graph.nodes] == ["input", "const", "cast", "multiply"]
    assert rec.results.dtype == np.float64


def test_outputs_that_are_not_recorded():
    rec = record(lambda x: (x, 2.0, np.ones(3), np.float32(1), 7), (X,))
    assert [n.op for n in rec.graph.outputs] == ["input", "const", "const", "const"]
    assert rec.results[4] == 7


# names and places
def named(x, y):
    norm = (x - y) * 2.0
    a, b = norm + 1, np.exp(norm)
    a *= b
    total: float = np.sum(
        a,
        axis=0,
    )
    out = helper(total)
    return out[None].T


def helper(v):
    squared = v * v
    return squared + 1


def test_names_come_from_the_source():
    rec = record(named, (X, X + 1))
    # a *= b is a write into a: its content has the name, and the sum that made it as well
    assert [n.name for n in rec.graph.nodes if n.op not in ("const",)] == [
        "x", "y", None, "norm", "a", "b", "a", "total", "squared", None, None, None,
    ]  # fmt: skip


def test_places_are_those_of_the_users_statements():
    rec = record(named, (X, X + 1))
    first = named.__code__.co_firstlineno
    places = {n.op: (n.loc[1] - first, n.loc[2]) for n in rec.graph.nodes if n.loc}
    assert places["exp"] == (2, "named") and places["sum"] == (4, "named")
    assert places["transpose"] == (9, "named")
    assert all(n.loc[0] == __file__ for n in rec.graph.nodes if n.op not in ("input", "const"))


# captures
TABLE = np.arange(3.0)
HELD = {"array": np.array, "table": TABLE}  # of other modules, as it were: no name leads to them


def test_captured_arrays_are_inputs():
    own = np.ones(3)
    rec = record(lambda x: x * own + TABLE + own[:2].sum(), (X,))
    assert [n.name for n, _ in rec.captures] == ["own", "TABLE"]
    assert rec.captures[0][1] is own and rec.captures[1][1] is TABLE
    assert len(rec.graph.inputs) == 3
    np.testing.assert_array_equal(evaluate_graph(rec.graph, [X, own * 0, TABLE])[0], [TABLE + 2] * 2)


def test_private_temporaries_are_constants():
    def f(x):
        mask = np.tril(np.ones((3, 3)))
        return x @ mask + np.arange(3.0) + mask[0]

    rec = record(f, (X,))
    assert rec.captures == [] and sum(n.op == "const" for n in rec.graph.nodes) == 3
    kept = []

    def g(x):
        mask = np.ones(3)
        kept.append(mask)
        return x * mask + mask[1:2]

    assert len(record(g, (X,)).captures) == 2  # a view of an array that is kept is captured too


def test_content_is_that_of_the_moment():
    own = np.ones(3)

    def f(x):
        buffer = np.zeros(3)
        total = x * own
        for i in range(3):
            buffer[:] = i
            total = total + x * buffer
        return total

    rec = record(f, (X,))
    assert len(rec.captures) == 1 and not rec.unstable
    np.testing.assert_array_equal(evaluate_graph(rec.graph, rec.operands([X]))[0], X * 4)

    def g(x):
        out = x * own
        own[0] += 1
        return out + x * own

    rec = record(g, (X,))
    assert rec.unstable == ["it writes to an array from outside (own)"]
    np.testing.assert_array_equal(evaluate_graph(rec.graph, rec.operands([X]))[0], rec.results)


def test_nan_and_signed_zero_are_contents():
    own = np.array([np.nan, 0.0])

    def f(x):
        y = x * own
        own[1] = -0.0
        return y + x * own

    x = np.ones(2)
    assert record(f, (x,)).unstable
    own = np.array([np.nan, 0.0])
    assert not record(lambda x: x * own + own, (x,)).unstable


# values that are read
def test_reads():
    def f(x, i):
        if x.sum() > 0:
            x = x * 2
        while float(x[0, 1]) < 10:
            x = x * 3
        for _ in range(i[0]):
            x = x + 1
        return x[i[1] :]

    i = np.array([2, 1])
    rec = record(f, (X, i))
    assert [r.kind for r in rec.reads] == ["bool", "float", "float", "float", "int", "int"]
    assert [r.value for r in rec.reads[-2:]] == [2, 1] and rec.value_dependent
    np.testing.assert_array_equal(rec.results, f(X, i))
    assert rec.reads[0].loc[1] == f.__code__.co_firstlineno + 1
    assert all(r.node.shape == () for r in rec.reads)


def test_same_path():
    def f(x, i):
        y = x * 3 if x[0, 0] > 0 else x
        return y[i.max() :] * round(x[0, 1]) + np.nonzero(x > 2)[0].sum()

    x = X + 0.5
    path = path_of_pure(record(f, (x, np.array([0, 1]))))
    assert path.taken([x, np.array([1, 0])], [])
    assert path.taken([x + [[0.1, 0.0, 0.1], [0.1, 0.1, 0.1]], np.array([1, 0])], [])
    for other, i in ((x - 1, [0, 1]), (x, [0, 0]), (x + [0, 0.6, 0], [0, 1]), (x + [0, 0, -1.0], [0, 1])):
        assert not path.taken([other, np.array(i)], [])
    assert path_of_pure(record(lambda x: x * 2, (X,))).taken([X], [])


@pytest.mark.parametrize("f", [
    lambda x, y: max(x, y) * y,
    lambda x, y: min(x * y, 0.0, 2),
    lambda x, y: max([x, y]) - min(v for v in (x, y)),
    lambda x, y: max(np.array([x, y])) * x,
])  # fmt: skip
def test_min_and_max_of_numbers_are_not_branches(f):
    """The value is Python's, also of nan and of signed zeros; of equal numbers the first counts."""
    plain, g = ad.compile(f), ad.grad(f, (0, 1))
    for at in itertools.product((0.5, -1.5, 0.0, -0.0, math.nan, 3.0), repeat=2):
        assert repr(float(plain(*at))) == repr(float(f(*at)))
        if at[0] != at[1] and 0.0 not in at and math.nan not in at:
            ad.check_grads(f, at, order=2)
            g(*at)
    assert ad.why_recorded(plain) is None and ad.why_recorded(g) is None
    assert ad.grad(lambda x, y: max(x, y), (0, 1))(2.0, 2.0) == (1.0, 0.0)
    assert ad.grad(lambda x, function=max: function(x, 1.0) if function is max else 0.0 * x)(2.0) == 1.0
    assert record(f, (0.5, 2.0)).reads == [] and ad.grad(lambda x: max(1e-3, np.sqrt(x)))(0.0) == 0.0


@pytest.mark.parametrize("f, kind", [
    (lambda x: f"{x[0, 0]:.2f}", "text"),
    (lambda x: str(x), "text"),
    (lambda x: bool(x[0, 0]), "bool"),
    (lambda x: list(range(int(x[0, 1]))), "int"),
    (lambda x: math.floor(x[0, 1]), "float"),
    (lambda x: max(x[0], key=abs), "bool"),
    (lambda x: x[x > 1].size, "array"),
    (lambda x: 3.0 in x, "bool"),
    (lambda x: np.nonzero(x)[0].sum(), "array"),
    (lambda x: x.argsort().tolist(), "array"),
    (lambda x: np.bincount(x[0].astype(int)), "array"),
    (lambda x: np.allclose(x, x), "bool"),
    (lambda x: np.ones(9)[np.argmax(x)], "int"),
    (lambda x: complex(x[0, 1]) == 2.0, "float"),
])  # fmt: skip
def test_kinds_of_reads(f, kind):
    rec = record(f, (X,))
    assert {r.kind for r in rec.reads} == {kind}
    plain = f(X)
    assert np.array_equal(rec.results, plain) if not isinstance(plain, str) else rec.results == plain


def test_shapes_and_items_are_not_reads():
    rec = record(lambda x: (len(x), x.shape, x.dtype, x.ndim, np.shape(x), [r * 2 for r in x]), (X,))
    assert not rec.value_dependent
    rec = record(lambda x: x[0, 1].item() * 2, (X,))
    assert not rec.value_dependent and rec.graph.outputs[0].op == "multiply"


# nesting
def test_inner_recordings_lift_outer_values():
    seen = {}

    def outer(x, y):
        z = x * 2

        def inner(v):
            return v * z + y + TABLE

        seen["inner"] = rec = record(inner, (x[0],))
        out = inline(rec.graph, rec.operands([x[0]]))
        return out[0] + z

    rec = record(outer, (X, X))
    inner = seen["inner"]
    assert len(inner.lifted) == 2 and [n.name for n in inner.graph.inputs] == ["v", "TABLE", "z", "y"]
    np.testing.assert_array_equal(rec.results, X[0] * (X * 2) + X + TABLE + X * 2)
    np.testing.assert_array_equal(evaluate_graph(check(rec.graph), rec.operands([X, X]))[0], rec.results)
    assert [a is TABLE for _, a in rec.captures] == [True]


def test_lifted_values_are_those_of_the_moment():
    def outer(x):
        z = x * 1
        rec = record(lambda v: v + z, (x,))
        z[...] = 100.0
        return inline(rec.graph, rec.operands([x]))[0], z

    out, z = record(outer, (X,)).results
    np.testing.assert_array_equal(out, X + X)


def test_reads_are_passed_on():
    def outer(x, y):
        def inner(v):
            return v * 2 if v.sum() > y[0, 0] else v

        rec = record(inner, (x * 2,))
        return inline(rec.graph, rec.operands([x * 2]))[0]

    rec = record(outer, (X, X))
    assert [r.kind for r in rec.reads] == ["bool"] and rec.reads[0].node.op == "greater"
    assert not record(lambda x: record(outer, (X, X)).results * x, (X,)).reads


def test_writing_an_inner_value_outside_is_an_error():
    def outer(x):
        out = np.zeros_like(x)

        def inner(v):
            out[0] = v[0]
            return v

        record(inner, (x,))

    with pytest.raises(AutodiffError, match="inner is written into one of outer"):
        record(outer, (X,))


def test_results_of_inline_may_be_written_to():
    inner = record(lambda x: (x.T, x), (X,))
    assert [type(plain) for plain in inline(inner.graph, [X])] == [np.ndarray] * 2

    def f(x):
        t, same = inline(inner.graph, [x])
        t[0] = 5.0
        same += 1
        return t, same, x * 1

    rec = record(f, (X,))
    np.testing.assert_array_equal(rec.results[2], X)
    for r, g in zip(rec.results, evaluate_graph(rec.graph, [X])):
        np.testing.assert_array_equal(r, g)


def test_apply_op():
    rec = record(lambda x: apply_op("slogdet", x[:, :2])[1] + apply_op("add", x, 1.5)[0, 0], (X,))
    check(rec.graph)
    assert rec.results == np.linalg.slogdet(X[:, :2])[1] + 1.5


def test_threads_record_apart():
    def work(k):
        rec = record(lambda x: sum((x * j for j in range(200)), x * k), (X,))
        return np.array_equal(rec.results, evaluate_graph(rec.graph, [X])[0]) and len(rec.graph.inputs)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [1] * 4


def test_recording_lets_go_of_arrays():
    gc.disable()
    try:
        x = np.ones(3)
        alive = weakref.ref(x)
        rec = record(lambda x: (x * 2).sum(), (x,))
        del x
        assert alive() is None, "the recording keeps its argument"
        assert rec.results == 6.0
    finally:
        gc.enable()


# errors
def message(f, *args, kind=AutodiffError):
    with pytest.raises(kind) as caught:
        record(f, args)
    text = str(caught.value)
    file, line, _ = text.split(":", 2)
    assert file.endswith("test_record.py") and f.__code__.co_firstlineno <= int(line)
    return text


def test_unsupported_functions_show_a_rule():
    text = message(lambda x: np.spacing(x), X, kind=UnsupportedError)
    assert "np.spacing has no derivative rule yet" in text and "custom_vjp" in text
    assert issubclass(UnsupportedError, NotImplementedError)
    text = message(lambda x: np.quantile(x, 0.5, weights=x, method="inverted_cdf"), X, kind=UnsupportedError)
    assert "with weights" in text
    message(lambda x: np.savetxt("nowhere", x), X, kind=UnsupportedError)
    text = message(lambda x: np.add(x, x, signature="dd->d"), X, kind=UnsupportedError)
    assert "np.add(signature=, axes=) is not recorded" in text and "def my_add(*args):\n" in text


def test_the_rule_that_an_error_shows_runs():
    """For a function of any number of arguments: only its gradients are to be filled in."""
    x, y = X + 1.0, X[::-1]
    text = message(lambda x: np.nextafter(x, y), x, kind=UnsupportedError)
    code = textwrap.dedent(text.partition("\n\n")[2]).replace("dout * ...,", "dout, 0.0 * dout")
    exec(code, names := {"np": np, "ad": ad})
    gradient = ad.grad(lambda x: np.sum(names["my_nextafter"](x, y) ** 2))(x)
    np.testing.assert_allclose(gradient, 2.0 * x, rtol=1e-15)  # the next number


def test_the_memory_of_a_recorded_array_is_not_shown():
    text = message(lambda x: np.lib.stride_tricks.as_strided(x, (2, 2)), X)
    assert "as_strided" in text and "\n" not in text
    assert record(lambda x: x * hasattr(x, "__array_interface__"), (X,)) is not None


@pytest.mark.parametrize("f, advice", [
    (lambda x: math.exp(x[0, 0]), "Use np.exp"),
    (lambda x: np.float64(x[0, 0]), "x.astype"),
    (lambda x: np.float32(x[0, 0]), "x.astype"),
    (lambda x: HELD["array"]([x[0], x[1]]), "np.array(x)"),
    (lambda x: np.sin([x, x]), "np.sin(np.array([a, b]))"),
    (lambda x: HELD["table"].dot(x[0]), "np.dot(a, x)"),
])  # fmt: skip
def test_conversions_name_the_spelling_that_works(f, advice):
    assert advice in message(f, X, kind=ConversionError)


def test_escaped_values():
    kept = []

    def f(x):
        doubled = x * 2
        kept.append(doubled)

    record(f, (X,))
    for use in (lambda: kept[0] + 1, lambda: kept[0][0], lambda: kept[0].sum(), lambda: float(kept[0][0, 0]),
                lambda: kept[0].__setitem__(0, 1.0), lambda: np.exp(kept[0]), lambda: bool(kept[0].all()),
                lambda: record(lambda y: y + kept[0], (X,))):  # fmt: skip
        with pytest.raises(EscapedError, match="'doubled', made at .*test_record.py") as caught:
            use()
        assert "while f was recorded" in str(caught.value)
    assert "recording ended" in repr(kept[0])


def test_dtype_object():
    with pytest.raises(DtypeError, match="argument x has dtype object"):
        record(lambda x: x, (np.array([1, None]),))
    message(lambda x: x + np.array([1, None], object)[:1], X)
    with pytest.raises(DtypeError, match="masked"):
        record(lambda x: x, (np.ma.array([1.0]),))
    message(lambda x: x + np.array(["a"]), X)


def test_shapes_that_do_not_fit():
    text = message(lambda x, y: x + 1 + y, X, np.ones(4), kind=ValueError)
    assert "np.add of (2, 3) float64, (4,) float64" in text and "broadcast" in text
    assert "np.concatenate" in message(lambda x: np.concatenate([x, x[0]]), X, kind=ValueError)
    message(lambda x: x @ x, X, kind=ValueError)
    message(lambda x: x[5], X, kind=IndexError)
    message(lambda x: x.__setitem__(0, np.ones(2)), X, kind=ValueError)
    with pytest.raises(np.exceptions.AxisError):
        record(lambda x: np.sum(x, axis=5), (X,))


def test_errors_of_the_user_come_through():
    with pytest.raises(KeyError, match="mine"):
        record(lambda x: {}["mine"], (X,))

    def g(x):
        try:
            return x @ x
        except ValueError:
            return x * 2

    np.testing.assert_array_equal(record(g, (X,)).results, X * 2)


def test_copies_and_pickles():
    def f(x):
        a, b = copy.copy(x), copy.deepcopy([x])[0]
        a += 1
        b[0] = 0
        return a, b, x

    for r, e in zip(record(f, (X,)).results, f(X.copy())):
        np.testing.assert_array_equal(r, e)
    message(lambda x: pickle.dumps(x), X, kind=ConversionError)


def test_looks_like_an_array():
    def f(x):
        assert type(x) is Recorded and isinstance(x, np.ndarray) and not isinstance(x, float)
        assert not np.isscalar(x) and np.ndim(x) == 2 and len(x) == 2
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)
        with pytest.raises(TypeError, match="unsized"):
            len(x.sum())
        with pytest.raises(ValueError, match="truth value"):
            bool(x)
        return x.itemsize + x.nbytes + x.size

    assert record(f, (X,)).results == 62


class Other:
    """A class that defines operators."""

    __array_ufunc__ = None

    def __radd__(self, x):
        return "mine"


def test_other_classes_keep_their_operators():
    assert record(lambda x: x + Other(), (X,)).results == "mine"
    with pytest.raises(TypeError):
        record(lambda x: x + "text", (X,))
    assert record(lambda x: x == None, (X,)).results is not None  # noqa: E711


# results that would outlive their recording
class Colour(enum.Enum):
    RED = 1


class Holder:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


@dataclass
class Named:
    value: object


RETURNED = {
    "a data class": (lambda x: Named(Holder(x * 2)), "returns a Named with a recorded value inside"),
    "deep inside": (lambda x: {"a": [Named([Holder({"b": x})])]}, "returns a Named with a recorded value"),
    "slots": (lambda x: (x, Holder(x)), "returns a Holder with"),
    "a generator": (lambda x: (v for v in x), "returns a generator, whose values.*Return a list"),
    "a map": (lambda x: (1, map(np.sin, x)), "returns a map"),
    "a closure": (lambda x: lambda: x + 1, "returns a function with"),
    "a method": (lambda x: x.sum, "returns a (method|function) with"),
    "a partial": (lambda x: functools.partial(np.multiply, x), "returns a partial with"),
}


@pytest.mark.parametrize("f, words", RETURNED.values(), ids=RETURNED)
def test_values_that_would_outlive_their_recording(f, words):
    with pytest.raises(AutodiffError, match=r"test_record.py:\d+: f " + words):
        record(f, (X,), name="f")


def test_objects_without_recorded_values_may_be_returned():
    kept = Named("x")

    def f(x):
        return x * 2, kept, range(3), np.sin, Colour.RED, len

    rec = record(f, (X,))
    assert rec.results[1] is kept and rec.results[2:] == (range(3), np.sin, Colour.RED, len)

    def outer(y):
        inner = record(lambda x: (x * 1.0, Named(y)), (X,))  # y is alive: it is not of the inner recording
        return inner.results[1].value * 2.0

    assert record(outer, (X,)).results is not None


class Rate(float):
    """A number class that defines operators."""

    def times(self, other):
        return other * 5.0

    __rmul__ = __mul__ = __rtruediv__ = __rpow__ = times

    def __gt__(self, other):
        return True


class Rate64(np.float64):
    def __rmul__(self, other):
        return other * 5.0


def in_place(x):
    x *= Rate(2.0)
    return x


OPERATORS = {
    "product": lambda x: x * Rate(2.0),
    "quotient": lambda x: x / Rate(2.0),
    "power": lambda x: x ** Rate(2.0),
    "reflected": lambda x: Rate(2.0) * x,
    "operator not defined": lambda x: x + Rate(2.0),
    "in place": in_place,
    "comparison": lambda x: x * 2.0 if np.max(x) < Rate(0.0) else x * 3.0,
    "of NumPy's": lambda x: x * Rate64(2.0),
    "a ufunc": lambda x: np.multiply(x, Rate(2.0)),
    "a plain number of NumPy's": lambda x: x * np.float64(2.0),
}


@pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("x", [3.0, np.float64(3.0), np.float32(3.0), np.array([3.0, 4.0])], ids=repr)
def test_number_classes_that_define_operators(f, x):
    for _ in range(2):
        np.testing.assert_array_equal(ad.compile(f)(np.copy(x)[()]), f(np.copy(x)[()]))


@pytest.mark.parametrize("value", [1.5, 2j, 3, np.float32(1.5), np.array(1j)[()], np.array(1j), np.ones(2)])
def test_a_protocol_is_asked_of_the_value(value):
    kinds = [getattr(typing, name) for name in typing.__all__ if name.startswith("Supports")]
    seen = []

    def f(x):
        seen.append([isinstance(x, kind) for kind in kinds])
        return x * 1

    ad.compile(f)(value)
    assert seen == [[isinstance(value, kind) for kind in kinds]]
