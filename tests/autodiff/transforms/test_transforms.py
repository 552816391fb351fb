"""The public transforms: values, structures, nesting, buffers, errors."""

import collections
import math

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.transforms import jacobian
from tests.support.trees import assert_close


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def numeric_gradient(f, x, h=1e-5):
    """Central differences, element by element; the error is about h**2 + 1e-16 / h, so 1e-9."""
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[i] = h
        g[i] = (f(x + d) - f(x - d)) / (2 * h)
    return g


def network(params, x, y):
    h = np.tanh(x @ params["w1"] + params["b1"])
    return np.mean((h @ params["w2"] - y) ** 2)


def network_arguments(rng):
    params = {"w1": rng.normal(size=(4, 5)), "b1": rng.normal(size=5), "w2": rng.normal(size=(5, 2))}
    return params, rng.normal(size=(6, 4)), rng.normal(size=(6, 2))


# ---- grad and value_and_grad -----------------------------------------------------------------------------


def test_gradient_of_a_network(rng):
    """It has the structure of the parameters, and the arguments are not written to."""
    params, x, y = network_arguments(rng)
    before = [v.copy() for v in (*params.values(), x, y)]
    value, grads = ad.value_and_grad(network)(params, x, y)
    ad.grad(network, argnums=(0, 1))(params, x, y)
    for a, b in zip((*params.values(), x, y), before):
        np.testing.assert_array_equal(a, b)
    assert value == pytest.approx(network(params, x, y), rel=1e-14)
    assert list(grads) == list(params)
    for k in params:
        expected = numeric_gradient(lambda v, k=k: network({**params, k: v}, x, y), params[k])
        np.testing.assert_allclose(grads[k], expected, rtol=1e-7, atol=1e-9)


def test_argnums(rng):
    a, b = rng.normal(size=3), rng.normal(size=3)

    def f(a, b):
        return np.sum(a * b**2)

    for argnums, expected in (((0, 1), (b**2, 2 * a * b)), (-1, 2 * a * b), ((1,), (2 * a * b,))):
        slopes = ad.grad(f, argnums=argnums)(a, b)
        assert type(slopes) is type(expected)
        assert_close(slopes, expected)


def test_keyword_arguments_are_static():
    def f(x, *, power, name="a"):
        return np.sum(x**power) * (2.0 if name == "a" else 3.0)

    g = ad.grad(f)
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(g(x, power=2), 4 * x)
    np.testing.assert_allclose(g(x, power=3), 6 * x**2)
    np.testing.assert_allclose(g(x, power=3, name="b"), 9 * x**2)


def test_has_aux(rng):
    x = rng.normal(size=4)

    def f(x):
        y = np.sin(x)
        return np.sum(y), {"y": y, "n": 3, "label": "sine"}

    (value, aux), grad = ad.value_and_grad(f, has_aux=True)(x)
    assert aux["n"] == 3 and aux["label"] == "sine"
    assert_close((value, aux["y"], grad), (np.sum(np.sin(x)), np.sin(x), np.cos(x)))
    grad, aux = ad.grad(f, has_aux=True)(x)
    assert_close((grad, aux["y"]), (np.cos(x), np.sin(x)))


def test_named_tuples_lists_and_none(rng):
    Point = collections.namedtuple("Point", "x y")
    tree = Point([rng.normal(size=2), None], {"a": (rng.normal(size=3),)})

    def f(t):
        return np.sum(t.x[0] ** 2) + np.sum(t.y["a"][0] ** 3)

    for _ in range(3):  # recorded, looked up, fast entry
        g = ad.grad(f)(tree)
        assert type(g) is Point and g.x[1] is None
        assert_close((g.x[0], g.y["a"][0]), (2 * tree.x[0], 3 * tree.y["a"][0] ** 2))


@pytest.mark.parametrize(
    "x", [1.0, np.float64(1.0), np.float32(1.0), np.array(1.0)], ids=lambda x: type(x).__name__
)
def test_gradient_has_the_type_of_the_argument(x):
    g = ad.grad(lambda x: np.sum(x * 2.0))
    for _ in range(2):
        assert type(g(x)) is type(x)


def test_results_share_no_memory_with_arguments(rng):
    x, y = rng.normal(size=3), rng.normal(size=3)
    assert not np.shares_memory(ad.grad(lambda x, y: np.sum(x * y))(x, y), y)
    assert not np.shares_memory(ad.compile(lambda x: x)(x), x)


def test_non_contiguous_arguments(rng):
    x = rng.normal(size=(4, 6))
    g = ad.grad(lambda x: np.sum(np.sin(x.reshape(-1)) * np.arange(12.0)))
    for view in (x[:, ::2], x[:2], x.T[:3], x[::2]):
        for _ in range(2):
            expected = np.cos(view) * np.arange(12.0).reshape(view.shape)
            np.testing.assert_allclose(g(view), expected, rtol=1e-13)


def test_methods_and_callable_objects(rng):
    class Model:
        scale = 3.0

        def loss(self, x):
            return self.scale * np.sum(x**2)

        def __call__(self, x):
            return np.sum(x)

        slope = ad.grad(lambda self, x: self.scale * np.sum(x), argnums=1)

    m, x = Model(), rng.normal(size=3)
    np.testing.assert_allclose(ad.grad(m.loss)(x), 6 * x)
    np.testing.assert_allclose(ad.grad(m)(x), np.ones(3))
    np.testing.assert_allclose(m.slope(x), np.full(3, 3.0))
    np.testing.assert_allclose(ad.grad(np.linalg.norm)(x), x / np.linalg.norm(x))


class Labelled(list):
    """A list with attributes and its own constructor."""

    def __init__(self, label, factor, *items):
        super().__init__(items)
        self.label, self.factor = label, factor


class AttributeDict(dict):
    """d.a is d["a"]."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


def test_subclasses_of_list_and_dict_keep_their_attributes():
    g = ad.grad(lambda v: v[0] * v.factor + v[1])
    for _ in range(3):
        for factor in (2.0, 3.0):
            slope = g(Labelled("x", factor, 1.0, 5.0))
            assert type(slope) is Labelled and slope == [factor, 1.0]
            assert (slope.label, slope.factor) == ("x", factor)
        slope = ad.grad(lambda d: d["a"] ** 2 + len(d["new"]))(collections.defaultdict(list, a=3.0))
        assert type(slope) is collections.defaultdict and slope.default_factory is list and slope["a"] == 6.0
        slope = ad.grad(lambda d: d.a * d.b)(AttributeDict(a=2.0, b=3.0))
        assert type(slope) is AttributeDict and slope.a == 3.0
    assert type(ad.compile(lambda x: Labelled("y", 1.0, x))(2.0)) is Labelled


# ---- Buffers for results ---------------------------------------------------------------------------------


def test_out_buffers(rng):
    params, x, y = network_arguments(rng)
    g = ad.value_and_grad(network)
    value, expected = g(params, x, y)
    for _ in range(3):
        buffers = {k: np.full_like(v, np.nan) for k, v in params.items()}
        buffers["b1"] = None
        v, grads = g(params, x, y, out=(None, buffers))
        assert v == value
        for k in params:
            np.testing.assert_array_equal(grads[k], expected[k])
            assert grads[k] is buffers[k] or k == "b1"


def test_buffer_that_overlaps_an_argument_read_gets_the_right_result(rng):
    def read_after_the_first_write(x):
        y = np.exp(x)
        y[:100] *= x[100:]
        return y

    memory = rng.normal(size=300)
    for g in (
        ad.grad(lambda x: np.sum(np.exp(x) * np.sin(x)) * np.sum(x)),
        ad.compile(read_after_the_first_write),
    ):
        expected = g(memory[:200])
        for k in range(6):
            copied = memory.copy()
            x = copied[:200]
            out = x if k % 2 else copied[50:250]
            assert g(x, out=out) is out
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("bad", [np.zeros(4), np.zeros(3, np.float32), [0.0, 0.0, 0.0], {"a": None}])
def test_out_that_does_not_fit_is_refused(bad):
    with pytest.raises(ad.AutodiffError, match="grad: out"):
        ad.grad(lambda x: np.sum(x))(np.ones(3), out=bad)


def test_read_only_buffer_is_refused_by_name():
    g = ad.grad(lambda p: np.sum(p["w"] ** 2))
    p, out = {"w": np.ones(3)}, {"w": np.ones(3)}
    g(p, out=out)
    out["w"].flags.writeable = False
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match=r"grad: out\['w'\] is read-only"):
            g(p, out=out)


def test_a_parameter_named_out_is_an_argument():
    slope = ad.grad(lambda x, out: np.sum(x * out))(np.ones(2), out=np.full(2, 3.0))
    np.testing.assert_allclose(slope, [3.0, 3.0])


@pytest.mark.parametrize("first, second, refused", [
    (slice(0, 4), slice(2, 6), True),
    (slice(0, 4), slice(0, 4), True),
    (slice(0, 7, 2), slice(2, 6), True),
    (slice(0, 4), slice(4, 8), False),
    (slice(0, 7, 2), slice(1, 8, 2), False),
])  # fmt: skip
def test_buffers_that_overlap_are_refused(first, second, refused):
    x, memory, expected = np.arange(1.0, 5.0), np.zeros(8), np.zeros(8)
    compiled, fixed = (make(lambda x: (x * 2, x * 3)) for make in (ad.compile, ad.Fixed))
    for _ in range(3):  # the third call goes through the fast entry
        for f in (compiled, fixed):
            if refused:
                with pytest.raises(ad.AutodiffError, match="shares memory with another one. Pass arrays"):
                    f(x, out=(memory[first], memory[second]))
            else:
                expected[first], expected[second] = x * 2, x * 3
                f(x, out=(memory[first], memory[second]))
                np.testing.assert_array_equal(memory, expected)
        compiled(x, out=(x.copy(), x.copy()))


@pytest.mark.parametrize("strides", [(0,), (4,)])
def test_buffer_whose_elements_overlap_is_refused(strides):
    _, pullback = ad.vjp(lambda x: x * 2, np.ones(4))
    buffer = np.lib.stride_tricks.as_strided(np.zeros(4), (4,), strides)
    for f, out in ((ad.compile(lambda x: x * 2), buffer), (pullback, (buffer,))):
        with pytest.raises(ad.AutodiffError, match="out has a buffer whose own elements share memory"):
            f(np.ones(4), out=out)


def test_buffer_that_overlaps_an_argument_written_to_is_refused():
    def f(x):
        x[0] = 7.0
        return x * 2

    g = ad.compile(f)
    for _ in range(3):
        x, apart = np.arange(8.0), np.zeros(4)
        np.testing.assert_array_equal(g(x[:4], out=apart), [14.0, 2.0, 4.0, 6.0])
        assert x[0] == 7.0
        with pytest.raises(ad.AutodiffError, match="shares memory with an argument that it writes to"):
            g(x[:4], out=x[2:6])


# ---- vjp, jvp --------------------------------------------------------------------------------------------


def test_vjp_and_jvp_are_transposed(rng):
    """<ct, J v> = <J' ct, v>."""
    params, x, _ = network_arguments(rng)

    def f(params, x):
        h = np.tanh(x @ params["w1"] + params["b1"])
        return h @ params["w2"], {"h": h}

    def dot(a, b):
        return sum(np.sum(x * y) for x, y in zip(ad.tree.leaves(a), ad.tree.leaves(b), strict=True))

    tangents = ({k: rng.normal(size=v.shape) for k, v in params.items()}, rng.normal(size=x.shape))
    out, out_tangents = ad.jvp(f, (params, x), tangents)
    out_again, pullback = ad.vjp(f, params, x)
    assert_close((out, out_again), (f(params, x), f(params, x)), rtol=1e-14)
    cts = (rng.normal(size=out[0].shape), {"h": rng.normal(size=out[1]["h"].shape)})
    assert dot(cts, out_tangents) == pytest.approx(dot(pullback(cts), tangents), rel=1e-12)


def test_pullback_is_called_repeatedly_with_none_and_buffers(rng):
    x = rng.normal(size=4)
    (s, c), pullback = ad.vjp(lambda x: (np.sin(x), np.cos(x)), x)
    d1, d2, buffer = rng.normal(size=4), rng.normal(size=4), np.empty(4)
    np.testing.assert_allclose(pullback((d1, None))[0], d1 * c, rtol=1e-13)
    np.testing.assert_allclose(pullback((None, 2 * d2))[0], -2 * d2 * s, rtol=1e-13)
    assert pullback((d1, d2), out=(buffer,))[0] is buffer
    for result in (buffer, pullback((d1, d2))[0]):
        np.testing.assert_allclose(result, d1 * c - d2 * s, rtol=1e-13)


def test_interpreted_pullback_writes_into_buffers(rng):
    """A new function at each call is interpreted. The gradient of x + n is dout, and must be a copy of it."""
    for n in range(2):
        _, pullback = ad.vjp(lambda x, n=n: x + np.random.default_rng(n).random(3), np.ones(3))
        dout, buffer = rng.normal(size=3), np.full(3, -7.0)
        assert not np.shares_memory(pullback(dout)[0], dout)
        assert pullback(dout, out=(buffer,))[0] is buffer
        np.testing.assert_array_equal(buffer, dout)


def test_pullback_does_not_see_later_edits(rng):
    """Of arguments or of results."""
    x, y = rng.normal(size=4), rng.normal(size=4)
    x0, y0 = x.copy(), y.copy()
    ad.vjp(lambda x, y: np.exp(x * y), x, y)
    out, pullback = ad.vjp(lambda x, y: np.exp(x * y), x, y)
    d = rng.normal(size=4)
    x[:], y[:], out[:] = 0.0, 5.0, np.nan
    assert_close(pullback(d), (d * y0 * np.exp(x0 * y0), d * x0 * np.exp(x0 * y0)))


def test_pullbacks_of_several_calls_coexist(rng):
    xs = [rng.normal(size=30) for _ in range(4)]
    pullbacks = [ad.vjp(lambda x: np.tanh(x) * x, x)[1] for x in xs]
    expected = [np.tanh(x) + x * (1 - np.tanh(x) ** 2) for x in xs]
    assert_close([pullback(np.ones(30)) for pullback in pullbacks], expected)


def test_integer_arguments_and_results(rng):
    table, index = rng.normal(size=(5, 3)), np.array([1, 4, 1])

    def f(table, index):
        return table[index], np.argmax(table, axis=1)

    (_, best), pullback = ad.vjp(f, table, index)
    d = rng.normal(size=(3, 3))
    dtable, dindex = pullback((d, None))
    expected = np.zeros_like(table)
    np.add.at(expected, index, d)
    np.testing.assert_allclose(dtable, expected, rtol=1e-14)
    assert dindex is None
    out, tangents = ad.jvp(f, (table, index), (np.ones_like(table), None))
    np.testing.assert_array_equal(tangents[0], np.ones((3, 3)))
    assert tangents[1] is None
    np.testing.assert_array_equal(best, out[1])


def test_tangents_and_cotangents_are_converted_and_may_be_none(rng):
    x = rng.normal(size=3).astype(np.float32)
    _, t = ad.jvp(lambda x, y: x * y, (x, x), (np.ones(3), None))
    assert t.dtype == np.float32
    np.testing.assert_array_equal(t, x)
    assert ad.jvp(np.sin, (1.0,), (1,))[1] == pytest.approx(math.cos(1.0))
    _, pullback = ad.vjp(lambda x: x * 2, x)
    assert pullback(np.ones(3))[0].dtype == np.float32


def test_a_complex_tangent_of_a_real_argument_is_refused():
    x = np.array([1.5, 2.5])
    for name, call in (
        ("jvp", lambda t: ad.jvp(lambda x: x * x, (x,), (t,))),
        ("hvp", lambda t: ad.hvp(lambda x: np.sum(x**3), x, t)),
        ("jvp", lambda t: ad.compile(lambda x, t: ad.jvp(lambda x: x * x, (x,), (t,)))(x, t)),
        ("jvp", lambda t: ad.jvp(lambda x: x * x, (2.5,), (t[0].item(),))),
    ):
        call(x)
        error = f"{name}: tangents.* expected real numbers and not complex128"
        with pytest.raises(ad.AutodiffError, match=error):
            call(x * 1j)
    np.testing.assert_array_equal(ad.jvp(lambda z: z * z, (x * 1j,), (x * 1j,))[1], -2 * x * x)


# ---- Jacobians and second derivatives --------------------------------------------------------------------


@pytest.mark.parametrize("m, n", [(2, 5), (5, 2), (3, 3)])
def test_jacobian_by_rows_and_by_columns(rng, m, n):
    a, x = rng.normal(size=(m, n)), rng.normal(size=n)
    expected = (1 - np.tanh(a @ x) ** 2)[:, None] * a
    g = ad.jacobian(lambda x, a: np.tanh(a @ x))
    for _ in range(2):
        np.testing.assert_allclose(g(x, a), expected, rtol=1e-12)


def test_jacobian_of_trees(rng):
    tree = {"a": rng.normal(size=(2, 3)), "b": 0.5}

    def f(t):
        return [t["a"] * t["b"], (np.sum(t["a"]), t["b"] ** 2)]

    j = ad.jacobian(f)(tree)
    assert j[0]["a"].shape == (2, 3, 2, 3) and j[0]["b"].shape == (2, 3)
    np.testing.assert_allclose(j[0]["a"].reshape(6, 6), 0.5 * np.eye(6))
    np.testing.assert_allclose(j[0]["b"], tree["a"])
    np.testing.assert_allclose(j[1][0]["a"], np.ones((2, 3)))
    assert j[1][0]["b"] == 0.0 and j[1][1]["b"] == 1.0
    assert type(j[1][1]["b"]) is float
    both = ad.jacobian(lambda x, y: np.outer(x, y), argnums=(0, 1))(np.ones(2), np.ones(3))
    assert both[0].shape == (2, 3, 2) and both[1].shape == (2, 3, 3)


def test_hessian_and_hvp_agree(rng):
    a = rng.normal(size=(6, 4))

    f = lambda x: np.sum(np.log(1 + np.exp(a @ x)))  # noqa: E731
    x, v = rng.normal(size=4), rng.normal(size=4)
    p = 1 / (1 + np.exp(-a @ x))
    expected = a.T @ np.diag(p * (1 - p)) @ a
    found = (ad.hessian(f)(x), ad.jacobian(ad.grad(f))(x), ad.hvp(f, x, v))
    assert_close(found, (expected, expected, expected @ v), rtol=1e-11)


def test_hessian_of_a_tree(rng):
    tree = {"a": rng.normal(size=2), "b": rng.normal(size=3)}
    h = ad.hessian(lambda t: np.sum(t["a"]) ** 2 * np.sum(t["b"] ** 2))(tree)
    s, b = np.sum(tree["a"]), tree["b"]
    mixed = np.tile(4 * s * b, (2, 1))
    assert_close(h["a"], {"a": np.full((2, 2), 2 * np.sum(b**2)), "b": mixed})
    assert_close(h["b"], {"a": mixed.T, "b": 2 * s**2 * np.eye(3)})


def square_products(f, x):
    """Lines of the emitted graph with a product of two matrices, neither a row nor a column."""
    *_, graph, _ = ad.stages(f, x).split("\n# ")
    products = [line for line in graph.splitlines() if "matmul" in line and ",1]" not in line.split("=")[0]]
    return [line for line in products if not line.split(":")[1].strip().startswith("f64[1,")]


@pytest.mark.parametrize("jacobian", [ad.jacobian, ad.jacfwd, ad.jacrev])
def test_jacobian_of_matrix_products_has_no_product_with_the_identity(rng, jacobian):
    """Unit vectors times a matrix are its rows, scaled by the elementwise derivatives."""
    a, b, x = rng.normal(size=(4, 5)), rng.normal(size=(5, 5)), rng.normal(size=5)
    functions = {
        0: (lambda x: np.tanh(a @ x), lambda x: -(np.sin(x) @ b), lambda x: x[None] @ b),
        1: (lambda x: a @ np.tanh(b @ x) * x[0], lambda x: np.exp(x @ b @ b)),
        # added, compared or multiplied with something else, they are no scaled unit vectors
        9: (lambda x: b @ x + x * np.sum(x), lambda x: b @ (x * x[::-1]), lambda x: (b @ x) * (b @ x)[0]),
    }
    for most, fs in functions.items():
        for f in fs:
            expected = np.stack([ad.jvp(f, (x,), (e,))[1] for e in np.eye(5)], axis=-1)
            np.testing.assert_allclose(jacobian(f)(x), expected, rtol=1e-12, atol=1e-14)
            assert len(square_products(jacobian(f), x)) <= most


# ---- Nesting ---------------------------------------------------------------------------------------------


def test_higher_derivatives():
    d = ad.grad
    assert d(d(d(np.sin)))(0.7) == pytest.approx(-math.cos(0.7), rel=1e-14)
    assert d(d(d(d(lambda x: x**5))))(2.0) == pytest.approx(240.0, rel=1e-14)
    expected = 2 * math.exp(0.3) * (math.cos(0.3) - math.sin(0.3))
    assert d(d(d(lambda x: np.exp(x) * np.sin(x))))(0.3) == pytest.approx(expected, rel=1e-13)


def test_perturbation_confusion():
    """d/dx (x * d/dy (x + y)) = 1: the inner derivative must not see the outer one's. Siskind and Pearlmutter
    2005.
    """
    d = ad.grad
    assert d(lambda x: x * d(lambda y: x + y)(2.0))(1.0) == 1.0
    assert d(lambda x: x * d(lambda y: x * y)(x))(3.0) == 6.0
    assert ad.jvp(lambda x: x * ad.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (1.0,), (1.0,))[1] == 1.0


@pytest.mark.parametrize("outer", ["fwd", "rev"])
@pytest.mark.parametrize("inner", ["fwd", "rev"])
def test_modes_are_nested(outer, inner):
    modes = {"fwd": lambda f: lambda x: ad.jvp(f, (x,), (1.0,))[1], "rev": ad.grad}
    f = modes[outer](modes[inner](lambda x: np.exp(np.sin(x))))
    s, c = math.sin(0.4), math.cos(0.4)
    assert f(0.4) == pytest.approx(math.exp(s) * (c * c - s), rel=1e-13)


def test_gradient_through_derived_functions(rng):
    x, v = rng.normal(size=3), rng.normal(size=3)

    def f(x):
        return np.sum(x**4) / 12

    def pulled_back(x):
        out, pullback = ad.vjp(lambda x: x**3, x)
        return np.sum(pullback(out)[0])  # 3 x**5

    def compiled(x):
        scale = np.sum(x)  # of the outer function
        return np.sum(ad.compile(lambda y: y * scale)(x))  # sum(x) ** 2

    _, pullback = ad.vjp(np.sin, x)
    for g, expected in (
        (lambda x: np.sum(ad.grad(f)(x) * v), x**2 * v),
        (lambda x: np.sum(ad.hvp(f, x, v)), 2 * x * v),
        (pulled_back, 15 * x**4),
        (lambda x: np.sum(ad.jacobian(lambda y: y**3)(x)), 6 * x),
        (lambda x: np.trace(ad.hessian(f)(x)), 2 * x),
        (compiled, np.full(3, 2 * np.sum(x))),
        (lambda ct: np.sum(pullback(ct)[0]), np.cos(x)),
    ):
        np.testing.assert_allclose(ad.grad(g)(x), expected, rtol=1e-13)


# ---- compile, and functions that write to their arguments ------------------------------------------------


def test_compile_as_a_decorator_and_of_compiled_functions():
    @ad.compile
    def f(x):
        return np.sum(np.sin(x) ** 2)

    @ad.compile(pure=True)
    def g(x):
        return f(x) * 2

    x = np.array([0.3, 0.4])
    for _ in range(2):
        assert g(x) == pytest.approx(2 * np.sum(np.sin(x) ** 2))
        np.testing.assert_allclose(ad.grad(g)(x), 2 * np.sin(2 * x), rtol=1e-13)


def test_compiled_function_writes_to_arguments_and_its_gradient_does_not(rng):
    def step(p, g, lr):
        p -= lr * g * p
        return np.sum(p)

    p, g = rng.normal(size=4), rng.normal(size=4)
    q = p.copy()
    compiled, slope = ad.compile(step), ad.grad(step)
    for _ in range(3):
        np.testing.assert_allclose(slope(p, g, 0.1), 1.0 - 0.1 * g, rtol=1e-13)
        np.testing.assert_allclose(p, q, rtol=1e-14)
        total = step(q, g, 0.1)
        assert compiled(p, g, 0.1) == pytest.approx(total, rel=1e-13)
        np.testing.assert_allclose(p, q, rtol=1e-14)


def test_argument_written_to_may_not_share_memory_with_another(rng):
    def f(x, y):
        x *= 2.0
        return np.sum(x * y)

    x = rng.normal(size=4)
    g = ad.grad(f)
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match="shares memory"):
            g(x, x)
        g(x, x.copy())


def test_argument_written_to_may_not_share_memory_with_a_captured_array(rng):
    k = rng.normal(size=4)

    def f(x):
        x *= 2.0
        return np.sum(x * k)

    before = k.copy()
    for g in (ad.grad(f), ad.compile(f), ad.grad(lambda x: ad.compile(f)(x))):
        for _ in range(3):
            g(before.copy())
            for x in (k, k[::-1]):
                with pytest.raises(ad.AutodiffError, match="shares memory with an array that it reads"):
                    g(x)
    np.testing.assert_array_equal(k, before)


def test_stop_gradient_shares_the_memory_of_its_argument():
    """That memory is not reused while the result is still read."""

    def f(x):
        y = np.cumsum(x, axis=0)
        kept = ad.stop_gradient(y)
        for _ in range(4):
            y = np.cumsum(y, axis=1)
        return y * kept

    x = np.random.default_rng(0).standard_normal((300, 200))
    assert np.array_equal(ad.compile(f)(x), f(x))


# ---- Errors: one clear line ------------------------------------------------------------------------------


class Net:
    def __init__(self):
        self.weight = np.ones(3)


class Tagged(tuple):
    def __init__(self, _):
        self.tag = 3.0


@pytest.mark.parametrize("call, words", [
    (lambda: ad.grad(np.sin, argnums=2)(1.0), "argnums=2.*1 positional argument"),
    (lambda: ad.grad(np.sin, argnums="x"), "expected an int"),
    (lambda: ad.grad(np.sin)(np.ones((2, 3))), r"shape \(2, 3\).*ad.vjp or ad.jacobian"),
    (lambda: ad.grad(lambda x: (x, x))(1.0), "tuple.*has_aux"),
    (lambda: ad.grad(lambda x: None)(1.0), "None"),
    (lambda: ad.grad(lambda x: x, has_aux=True)(1.0), "pair"),
    (lambda: ad.grad(lambda x: x)(3), r"x is 3;.*pass 3\.0"),
    (lambda: ad.grad(lambda p: p["a"] + p["n"])({"a": 1.0, "n": np.int64(3)}), r"p\['n'\] has dtype int64"),
    (lambda: ad.grad(lambda x: np.sum(x))(np.arange(3)), "dtype int64.*astype"),
    (lambda: ad.grad(lambda x: np.argmax(x))(np.ones(3)), "int64, which has no derivative"),
    (lambda: ad.jvp(np.sin, (np.ones(3),), (np.ones(4),)), r"shape \(4,\), expected shape \(3,\)"),
    (lambda: ad.jvp(np.sin, (1.0,), (1.0, 2.0)), "a tuple of 1, as the argument"),
    (lambda: ad.jvp(np.sin, 1.0, 1.0), "expected a tuple"),
    (lambda: ad.jvp(lambda x: x, ({"a": 1.0},), ({"b": 1.0},)), "keys"),
    (lambda: ad.vjp(np.sin, np.ones(3))[1](np.ones(2)), r"shape \(2,\).*shape \(3,\)"),
    (lambda: ad.vjp(lambda x: (x, x), np.ones(3))[1](np.ones(3)), "tuple of 2"),
    (lambda: ad.hvp(np.sum, np.ones(3), np.ones(2)), r"expected shape \(3,\)"),
    (lambda: ad.jacobian(lambda x: np.argsort(x))(np.ones(3)), "no derivative"),
    (lambda: ad.source(np.sin), r"expected a function made by.*ad.source\(ad.grad\(f\), x\)"),
    (lambda: ad.source(ad.grad(np.sin), emitted=True), "not called yet"),
    (lambda: ad.grad(lambda x: x[0] * x[1])([1, 2]), "x is a list with nothing.*write 1.0 for 1"),
    (lambda: ad.grad(lambda x, k: x * k)(x=1.0, k=2.0), "given by name have no derivative"),
    (lambda: ad.grad(lambda x: np.sum(x.at[0].set(1.0)))(np.ones(3)), "'at'.*x.i. = v"),
    (lambda: ad.grad(lambda x: x.detach())(1.0), r"test_transforms.py:\d+: .*'detach'.*ad.stop_gradient"),
    (lambda: ad.grad(lambda x: x.tobytes())(np.ones(3)), "'tobytes'.*ad.custom_vjp"),
    (lambda: ad.grad(lambda net: net.weight)(Net()), "a Net; .* decorate the class Net with @ad.tree"),
    (lambda: ad.grad(lambda p: p[0] * p.tag)(Tagged((1.0, 2.0))), r"a Tagged, a tuple with attributes \(tag"),
])  # fmt: skip
def test_errors(call, words):
    with pytest.raises(ad.AutodiffError, match=words) as e:
        call()
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("call, words", [
    (lambda: ad.grad(3.0), "expected a function"),
    (lambda: ad.readable_source(ad.grad(np.sum)), r"expected a Graph, got DerivedFunction; ad.source\(g\)"),
    *(
        (lambda f=f, x=x: ad.grad(f)(x), rf"an argument is a {type(x).__name__}, .* pass np.array")
        for f in (lambda x: np.sum(x * x), lambda x: x**2, lambda x: x - 1)
        for x in ([1.0, 2.0], (1.0, 2.0))
    ),
])  # fmt: skip
def test_type_errors(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_unknown_names_of_the_module():
    with pytest.raises(AttributeError, match="no attribute 'jacobain'") as e:
        ad.jacobain  # noqa: B018
    assert e.value.name == "jacobain" and e.value.obj is ad  # so that Python adds "Did you mean"
    with pytest.raises(AttributeError, match=r"no attribute 'jit'; here it is ad\.compile"):
        ad.jit  # noqa: B018


# ---- Sources, stages and options -------------------------------------------------------------------------


def test_source_is_the_program_that_runs():
    x = np.ones(2)
    text = ad.source(ad.grad(lambda x: np.sum(np.tanh(x))), x, emitted=True)
    assert "np.tanh" in text and "def f_grad(x" in text
    _, pullback = ad.vjp(lambda x: np.tanh(x), x)
    assert "def " in pullback.source == ad.source(pullback, emitted=True)
    recorded_at_each_call = ad.grad(lambda x: np.sum(x) if np.sum(x) > 0 else -np.sum(x))
    assert "def f_grad" in ad.source(recorded_at_each_call, x, emitted=True)
    assert "looks at" in ad.why_recorded(recorded_at_each_call)


def test_options_switch_passes_off_and_separate_programs():
    g, x = ad.grad(lambda x: np.sum(np.sin(x) * np.cos(x) + np.sin(x))), np.array([0.1, 0.2])
    default = ad.source(g, x, emitted=True)
    with ad.options(off={"cse"}):
        without_cse = ad.source(g, x, emitted=True)
        np.testing.assert_allclose(g(x), np.cos(2 * x) + np.cos(x), rtol=1e-13)
    assert without_cse.count("np.cos") > default.count("np.cos")
    assert ad.source(g, x, emitted=True) == default
    with pytest.raises(ValueError, match="nosuchpass"), ad.options(off={"nosuchpass"}):
        pass


def test_what_is_kept_for_a_pullback_does_not_hold_the_graph():
    """Its nodes take hundreds of megabytes for a long program."""
    _, pullback = ad.vjp(lambda x: (np.sin(x) * 2.0, x > 0), np.ones(2))
    wiring = pullback._wiring
    of_sine, of_comparison = wiring.cotangents
    assert of_sine.args == () and of_comparison is None
    assert not any(n.args for n in (*wiring.graph.inputs, *wiring.graph.outputs))


# Jacobians of which one entry is infinite or nan at a point: all others are as they would be alone
KEPT_APART = {
    "sqrt": (np.sqrt, [0.0, 4.0], [[np.inf, 0.0], [0.0, 0.25]]),
    "log": (np.log, [0.0, 4.0], [[np.inf, 0.0], [0.0, 0.25]]),
    "reciprocal": (lambda x: 1.0 / x, [0.0, 2.0], [[-np.inf, 0.0], [0.0, -0.25]]),
    "power": (lambda x: x**0.5, [0.0, 4.0], [[np.inf, 0.0], [0.0, 0.25]]),
    "overflow": (np.exp, [1000.0, 0.0], [[np.inf, 0.0], [0.0, 1.0]]),
    "nan": (lambda x: -(x * x).reshape(2), [np.nan, 2.0], [[np.nan, 0.0], [0.0, -4.0]]),
    "slice": (lambda x: np.sqrt(x[1:]), [1.0, 0.0, 4.0], [[0.0, np.inf, 0.0], [0.0, 0.0, 0.25]]),
    "difference": (
        lambda x: np.sqrt(x[1:] - x[:-1]),
        [1.0, 1.0, 2.0],
        [[-np.inf, np.inf, 0.0], [0.0, -0.5, 0.5]],
    ),
    "item": (lambda x: np.sqrt(x[0]) + x[1], [0.0, 4.0], [np.inf, 1.0]),
    "joined": (lambda x: np.log(np.append(x, x)), [0.0, 4.0], [[np.inf, 0.0], [0.0, 0.25]] * 2),
    "quotient": (lambda x: x[:1] / x[1], [1.0, 0.0], [[np.inf, -np.inf]]),
    "power of entries": (lambda x: x[0] ** x[1], [-2.0, 2.0], [-4.0, np.nan]),
    "0 times infinity": (lambda x: np.arctan2(x[0], x[1]), [0.0, 0.0], [np.nan, np.nan]),
    "product": (lambda x: np.sqrt(np.array([[3.0]]) @ x[:1]) * x[1:], [0.0, 1.0], [[np.inf, 0.0]]),
    "max": (
        lambda x: np.max(x.reshape(2, 2), axis=1),
        [1.0, np.nan, 3.0, 4.0],
        [[np.nan, np.nan, 0, 0], [0, 0, 0, 1]],
    ),
    "max beside": (lambda x: np.stack([np.max(x), x[1]]), [np.nan, 2.0], [[np.nan, np.nan], [0.0, 1.0]]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [jacobian.MOST, 1], ids=["batched", "in a loop"])
@pytest.mark.parametrize("f, x, wanted", KEPT_APART.values(), ids=KEPT_APART)
def test_infinite_entries_stay_apart(f, x, wanted, size, monkeypatch):
    monkeypatch.setattr(jacobian, "MOST", size)
    for transform in (ad.jacfwd, ad.jacrev):
        g = transform(lambda x: f(x))
        for _ in range(2):
            np.testing.assert_array_equal(g(np.array(x)), wanted, f"{transform.__name__}")
