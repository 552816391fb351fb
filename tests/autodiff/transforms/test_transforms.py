"""The public transforms: values, structures, nesting, buffers, errors."""

import collections
import math

import numpy as np
import pytest

from gpt2 import autodiff as ad


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def numeric_gradient(f, x, h=1e-5):
    """Central differences, element by element. Error about h**2 + 1e-16 / h, so 1e-9 for functions of order
    1.
    """
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[i] = h
        g[i] = (f(x + d) - f(x - d)) / (2 * h)
    return g


def network(params, x, y):
    h = np.tanh(x @ params["w1"] + params["b1"])
    return np.mean((h @ params["w2"] - y) ** 2)


def network_arguments(rng, dtype=np.float64):
    params = {"w1": rng.normal(size=(4, 5)), "b1": rng.normal(size=5), "w2": rng.normal(size=(5, 2))}
    params = {k: v.astype(dtype) for k, v in params.items()}
    return params, rng.normal(size=(6, 4)).astype(dtype), rng.normal(size=(6, 2)).astype(dtype)


# --- grad and value_and_grad
# --------------------------------------------------------------------------------------


def test_gradient_of_a_network_in_the_structure_of_its_parameters(rng):
    params, x, y = network_arguments(rng)
    value, grads = ad.value_and_grad(network)(params, x, y)
    assert value == pytest.approx(network(params, x, y), rel=1e-14)
    assert list(grads) == list(params)
    for k in params:
        expected = numeric_gradient(lambda v, k=k: network({**params, k: v}, x, y), params[k])
        np.testing.assert_allclose(grads[k], expected, rtol=1e-7, atol=1e-9)


def test_arguments_are_left_alone(rng):
    params, x, y = network_arguments(rng)
    before = [v.copy() for v in (*params.values(), x, y)]
    ad.grad(network, argnums=(0, 1))(params, x, y)
    for a, b in zip((*params.values(), x, y), before):
        np.testing.assert_array_equal(a, b)


def test_float32_stays_float32(rng):
    params, x, y = network_arguments(rng, np.float32)
    value, grads = ad.value_and_grad(network)(params, x, y)
    assert value.dtype == np.float32
    assert {g.dtype for g in grads.values()} == {np.dtype(np.float32)}


def test_value_used_twice():
    assert ad.grad(lambda x: x * x + x * np.sin(x))(0.5) == pytest.approx(
        1.0 + math.sin(0.5) + 0.5 * math.cos(0.5)
    )


def test_argnums(rng):
    a, b = rng.normal(size=3), rng.normal(size=3)

    def f(a, b):
        return np.sum(a * b**2)

    da, db = ad.grad(f, argnums=(0, 1))(a, b)
    np.testing.assert_allclose(da, b**2, rtol=1e-14)
    np.testing.assert_allclose(db, 2 * a * b, rtol=1e-14)
    np.testing.assert_allclose(ad.grad(f, argnums=-1)(a, b), 2 * a * b, rtol=1e-14)
    (only,) = ad.grad(f, argnums=(1,))(a, b)
    np.testing.assert_allclose(only, 2 * a * b, rtol=1e-14)


def test_keyword_arguments_and_statics():
    def f(x, *, power, name="a"):
        return np.sum(x**power) * (2.0 if name == "a" else 3.0)

    g = ad.grad(f)
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(g(x, power=2), 4 * x)
    np.testing.assert_allclose(g(x, power=3), 6 * x**2)
    np.testing.assert_allclose(g(x, power=3, name="b"), 9 * x**2)


def test_statics_of_equal_value_and_different_type_differ():
    def f(x, flag):
        return x * (2.0 if flag is True else 3.0)

    g = ad.grad(f)
    assert [g(1.0, True), g(1.0, 1), g(1.0, True)] == [2.0, 3.0, 2.0]


def test_has_aux(rng):
    x = rng.normal(size=4)

    def f(x):
        y = np.sin(x)
        return np.sum(y), {"y": y, "n": 3, "label": "sine"}

    (value, aux), grad = ad.value_and_grad(f, has_aux=True)(x)
    assert value == pytest.approx(np.sum(np.sin(x)))
    np.testing.assert_allclose(aux["y"], np.sin(x), rtol=1e-14)
    assert aux["n"] == 3 and aux["label"] == "sine"
    np.testing.assert_allclose(grad, np.cos(x), rtol=1e-14)
    grad, aux = ad.grad(f, has_aux=True)(x)
    np.testing.assert_allclose(grad, np.cos(x), rtol=1e-14)
    np.testing.assert_allclose(aux["y"], np.sin(x), rtol=1e-14)


Point = collections.namedtuple("Point", "x y")


def test_named_tuples_lists_and_none(rng):
    tree = Point([rng.normal(size=2), None], {"a": (rng.normal(size=3),)})

    def f(t):
        return np.sum(t.x[0] ** 2) + np.sum(t.y["a"][0] ** 3)

    for _ in range(3):  # recorded, looked up, fast entry
        g = ad.grad(f)(tree)
        assert type(g) is Point and g.x[1] is None
        np.testing.assert_allclose(g.x[0], 2 * tree.x[0], rtol=1e-14)
        np.testing.assert_allclose(g.y["a"][0], 3 * tree.y["a"][0] ** 2, rtol=1e-14)


def test_results_are_of_the_kind_of_the_argument():
    def f(x):
        return np.sum(x * 2.0)

    g = ad.grad(f)
    for x, kind in (
        (1.0, float),
        (np.float64(1.0), np.float64),
        (np.float32(1.0), np.float32),
        (np.array(1.0), np.ndarray),
    ):
        for _ in range(2):
            assert type(g(x)) is kind, kind


def test_a_result_that_the_caller_holds_is_never_overwritten(rng):
    g = ad.grad(lambda x: np.sum(np.sin(x) * x))
    xs = [rng.normal(size=50) for _ in range(5)]
    results = [g(x) for x in xs]
    for x, r in zip(xs, results):
        np.testing.assert_allclose(r, np.cos(x) * x + np.sin(x), rtol=1e-13)


def test_a_result_is_no_view_of_an_argument(rng):
    x, y = rng.normal(size=3), rng.normal(size=3)
    g = ad.grad(lambda x, y: np.sum(x * y))(x, y)
    assert not np.shares_memory(g, y)
    out = ad.compile(lambda x: x)(x)
    assert not np.shares_memory(out, x)


def test_complex_gradients():
    """Of a real function of z = x + iy: du/dx - i du/dy. Of a holomorphic one: df/dz."""
    z = 0.3 + 0.4j
    assert ad.grad(lambda z: np.real(z) ** 2 * np.imag(z))(z) == pytest.approx(2 * 0.3 * 0.4 - 1j * 0.3**2)
    assert ad.grad(lambda z: np.sin(z) * z)(z) == pytest.approx(np.cos(z) * z + np.sin(z))


def test_non_contiguous_arguments(rng):
    x = rng.normal(size=(4, 6))
    g = ad.grad(lambda x: np.sum(np.sin(x.reshape(-1)) * np.arange(12.0)))
    for view in (x[:, ::2], x[:2], x.T[:3], x[::2]):
        for _ in range(2):
            expected = np.cos(view) * np.arange(12.0).reshape(view.shape)
            np.testing.assert_allclose(g(view), expected, rtol=1e-13)


def test_out_buffers(rng):
    params, x, y = network_arguments(rng)
    g = ad.value_and_grad(network)
    value, expected = g(params, x, y)
    for _ in range(3):
        buffers = {k: np.full_like(v, np.nan) for k, v in params.items()}
        buffers["b1"] = None
        v, found = g(params, x, y, out=(None, buffers))
        assert v == value
        for k in params:
            np.testing.assert_array_equal(found[k], expected[k])
            assert found[k] is buffers[k] or k == "b1"


def test_out_may_be_the_argument_itself(rng):
    x = rng.normal(size=200)
    g = ad.grad(lambda x: np.sum(np.exp(x) * np.sin(x)) * np.sum(x))
    expected = g(x.copy())
    for _ in range(3):
        y = x.copy()
        assert g(y, out=y) is y
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("bad", [np.zeros(4), np.zeros(3, np.float32), [0.0, 0.0, 0.0], {"a": None}])
def test_out_that_does_not_fit(bad):
    with pytest.raises(ad.AutodiffError, match="grad: out"):
        ad.grad(lambda x: np.sum(x))(np.ones(3), out=bad)


def test_a_parameter_of_that_name_is_not_taken_for_buffers():
    def f(x, out):
        return np.sum(x * out)

    np.testing.assert_allclose(ad.grad(f)(np.ones(2), out=np.full(2, 3.0)), [3.0, 3.0])


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


# --- vjp, jvp
# ---------------------------------------------------------------------------------------------------


def test_vjp_and_jvp_are_transposed(rng):
    """<ct, J v> = <J' ct, v>."""
    params, x, y = network_arguments(rng)

    def f(params, x):
        h = np.tanh(x @ params["w1"] + params["b1"])
        return h @ params["w2"], {"h": h}

    tangents = ({k: rng.normal(size=v.shape) for k, v in params.items()}, rng.normal(size=x.shape))
    out, moved = ad.jvp(f, (params, x), tangents)
    again, pullback = ad.vjp(f, params, x)
    np.testing.assert_allclose(out[0], f(params, x)[0], rtol=1e-14)
    np.testing.assert_allclose(again[1]["h"], f(params, x)[1]["h"], rtol=1e-14)
    cts = (rng.normal(size=out[0].shape), {"h": rng.normal(size=out[1]["h"].shape)})
    grads = pullback(cts)
    left = np.sum(cts[0] * moved[0]) + np.sum(cts[1]["h"] * moved[1]["h"])
    right = sum(np.sum(grads[0][k] * tangents[0][k]) for k in params) + np.sum(grads[1] * tangents[1])
    assert left == pytest.approx(right, rel=1e-12)


def test_pullback_many_times_with_zeros_and_buffers(rng):
    x = rng.normal(size=4)
    (s, c), pullback = ad.vjp(lambda x: (np.sin(x), np.cos(x)), x)
    d1, d2 = rng.normal(size=4), rng.normal(size=4)
    np.testing.assert_allclose(pullback((d1, d2))[0], d1 * c - d2 * s, rtol=1e-13)
    np.testing.assert_allclose(pullback((d1, None))[0], d1 * c, rtol=1e-13)
    np.testing.assert_allclose(pullback((None, 2 * d2))[0], -2 * d2 * s, rtol=1e-13)
    buffer = np.empty(4)
    (result,) = pullback((d1, d2), out=(buffer,))
    assert result is buffer
    np.testing.assert_allclose(buffer, d1 * c - d2 * s, rtol=1e-13)


def test_pullback_belongs_to_the_values_of_its_own_call(rng):
    """Arrays edited after the call, arguments as well as results, do not reach the pullback."""
    x, y = rng.normal(size=4), rng.normal(size=4)
    x0, y0 = x.copy(), y.copy()
    ad.vjp(lambda x, y: np.exp(x * y), x, y)
    out, pullback = ad.vjp(lambda x, y: np.exp(x * y), x, y)
    d = rng.normal(size=4)
    x[:], y[:], out[:] = 0.0, 5.0, np.nan
    dx, dy = pullback(d)
    np.testing.assert_allclose(dx, d * y0 * np.exp(x0 * y0), rtol=1e-13)
    np.testing.assert_allclose(dy, d * x0 * np.exp(x0 * y0), rtol=1e-13)


def test_pullbacks_of_several_calls_live_side_by_side(rng):
    def f(x):
        return np.tanh(x) * x

    xs = [rng.normal(size=30) for _ in range(4)]
    pulls = [ad.vjp(f, x)[1] for x in xs]
    for x, pull in zip(xs, pulls):
        np.testing.assert_allclose(pull(np.ones(30))[0], np.tanh(x) + x * (1 - np.tanh(x) ** 2), rtol=1e-12)


def test_integer_arguments_and_results(rng):
    table, index = rng.normal(size=(5, 3)), np.array([1, 4, 1])

    def f(table, index):
        return table[index], np.argmax(table, axis=1)

    (rows, best), pullback = ad.vjp(f, table, index)
    d = rng.normal(size=(3, 3))
    dtable, dindex = pullback((d, None))
    expected = np.zeros_like(table)
    np.add.at(expected, index, d)
    np.testing.assert_allclose(dtable, expected, rtol=1e-14)
    assert dindex is None
    out, moved = ad.jvp(f, (table, index), (np.ones_like(table), None))
    np.testing.assert_array_equal(moved[0], np.ones((3, 3)))
    assert moved[1] is None
    np.testing.assert_array_equal(best, out[1])


def test_tangents_are_converted_and_may_be_missing(rng):
    x = rng.normal(size=3).astype(np.float32)
    _, t = ad.jvp(lambda x, y: x * y, (x, x), (np.ones(3), None))
    assert t.dtype == np.float32
    np.testing.assert_array_equal(t, x)
    assert ad.jvp(np.sin, (1.0,), (1,))[1] == pytest.approx(math.cos(1.0))
    out, pullback = ad.vjp(lambda x: x * 2, x)
    assert pullback(np.ones(3))[0].dtype == np.float32


# --- Jacobians and second derivatives
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("m, n", [(2, 5), (5, 2), (3, 3)])
def test_jacobian_by_rows_and_by_columns(rng, m, n):
    a, x = rng.normal(size=(m, n)), rng.normal(size=n)
    expected = (1 - np.tanh(a @ x) ** 2)[:, None] * a
    g = ad.jacobian(lambda x, a: np.tanh(a @ x))
    for _ in range(2):
        np.testing.assert_allclose(g(x, a), expected, rtol=1e-12)


class Labelled(list):
    """A list with an attribute besides its items, and its own constructor."""

    def __init__(self, label, factor, *items):
        super().__init__(items)
        self.label, self.factor = label, factor


class Names(dict):
    """d.a is d["a"]."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


def test_subclasses_of_list_and_dict_keep_what_they_hold():
    g = ad.grad(lambda v: v[0] * v.factor + v[1])
    for _ in range(3):
        for factor in (2.0, 3.0):
            found = g(Labelled("x", factor, 1.0, 5.0))
            assert type(found) is Labelled and found == [factor, 1.0]
            assert (found.label, found.factor) == ("x", factor)
        found = ad.grad(lambda d: d["a"] ** 2 + len(d["new"]))(collections.defaultdict(list, a=3.0))
        assert type(found) is collections.defaultdict and found.default_factory is list and found["a"] == 6.0
        found = ad.grad(lambda d: d.a * d.b)(Names(a=2.0, b=3.0))
        assert type(found) is Names and found.a == 3.0
    assert type(ad.compile(lambda x: Labelled("y", 1.0, x))(2.0)) is Labelled


def test_a_tuple_with_attributes_is_refused():
    class Tagged(tuple):
        pass

    pair = Tagged((1.0, 2.0))
    pair.tag = 3.0
    with pytest.raises(ad.AutodiffError, match=r"a Tagged, a tuple with attributes \(tag\)"):
        ad.grad(lambda p: p[0] * p.tag)(pair)


def test_jacobian_shapes_and_trees(rng):
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

    def f(x):
        return np.sum(np.log(1 + np.exp(a @ x)))

    x, v = rng.normal(size=4), rng.normal(size=4)
    p = 1 / (1 + np.exp(-a @ x))
    expected = a.T @ np.diag(p * (1 - p)) @ a
    h = ad.hessian(f)(x)
    np.testing.assert_allclose(h, expected, rtol=1e-11)
    np.testing.assert_allclose(ad.hvp(f, x, v), expected @ v, rtol=1e-11)
    np.testing.assert_allclose(ad.jacobian(ad.grad(f))(x), expected, rtol=1e-11)


def test_hessian_of_a_tree(rng):
    tree = {"a": rng.normal(size=2), "b": rng.normal(size=3)}

    def f(t):
        return np.sum(t["a"]) ** 2 * np.sum(t["b"] ** 2)

    h = ad.hessian(f)(tree)
    s, b = np.sum(tree["a"]), tree["b"]
    np.testing.assert_allclose(h["a"]["a"], np.full((2, 2), 2 * np.sum(b**2)), rtol=1e-13)
    np.testing.assert_allclose(h["a"]["b"], np.tile(4 * s * b, (2, 1)), rtol=1e-13)
    np.testing.assert_allclose(h["b"]["a"], h["a"]["b"].T, rtol=1e-13)
    np.testing.assert_allclose(h["b"]["b"], 2 * s**2 * np.eye(3), rtol=1e-13)


def test_hvp_of_a_network_against_differences_of_gradients(rng):
    params, x, y = network_arguments(rng)
    v = {k: rng.normal(size=p.shape) for k, p in params.items()}
    found = ad.hvp(lambda p: network(p, x, y), params, v)
    h = 1e-5
    moved = [ad.grad(network)({k: p + s * h * v[k] for k, p in params.items()}, x, y) for s in (1, -1)]
    for k in params:
        np.testing.assert_allclose(found[k], (moved[0][k] - moved[1][k]) / (2 * h), rtol=1e-6, atol=1e-8)


# --- nesting
# ------------------------------------------------------------------------------------------------------


def test_third_derivative():
    d = ad.grad
    assert d(d(d(np.sin)))(0.7) == pytest.approx(-math.cos(0.7), rel=1e-14)
    assert d(d(d(d(lambda x: x**5))))(2.0) == pytest.approx(240.0, rel=1e-14)
    assert d(d(d(lambda x: np.exp(x) * np.sin(x))))(0.3) == pytest.approx(
        2 * math.exp(0.3) * (math.cos(0.3) - math.sin(0.3)), rel=1e-13
    )


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
def test_modes_in_each_other(outer, inner):
    def forward(f):
        return lambda x: ad.jvp(f, (x,), (1.0,))[1]

    modes = {"fwd": forward, "rev": ad.grad}
    f = modes[outer](modes[inner](lambda x: np.exp(np.sin(x))))
    s, c = math.sin(0.4), math.cos(0.4)
    assert f(0.4) == pytest.approx(math.exp(s) * (c * c - s), rel=1e-13)


def test_gradient_through_gradients_pullbacks_and_hvps(rng):
    x, v = rng.normal(size=3), rng.normal(size=3)

    def f(x):
        return np.sum(x**4) / 12

    np.testing.assert_allclose(ad.grad(lambda x: np.sum(ad.grad(f)(x) * v))(x), x**2 * v, rtol=1e-13)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(ad.hvp(f, x, v)))(x), 2 * x * v, rtol=1e-13)

    def through_pullback(x):
        out, pullback = ad.vjp(lambda x: x**3, x)
        return np.sum(pullback(out)[0])  # 3 x**5

    np.testing.assert_allclose(ad.grad(through_pullback)(x), 15 * x**4, rtol=1e-13)
    np.testing.assert_allclose(
        ad.grad(lambda x: np.sum(ad.jacobian(lambda y: y**3)(x)))(x), 6 * x, rtol=1e-13
    )
    np.testing.assert_allclose(ad.grad(lambda x: np.trace(ad.hessian(f)(x)))(x), 2 * x, rtol=1e-13)


def test_derived_functions_inside_of_others_read_the_outer_value(rng):
    x = rng.normal(size=3)

    def f(x):
        scale = np.sum(x)
        return np.sum(ad.compile(lambda y: y * scale)(x))  # sum(x) ** 2

    np.testing.assert_allclose(ad.grad(f)(x), np.full(3, 2 * np.sum(x)), rtol=1e-13)


def test_pullback_made_outside_used_inside(rng):
    x = rng.normal(size=3)
    _, pullback = ad.vjp(np.sin, x)
    np.testing.assert_allclose(ad.grad(lambda ct: np.sum(pullback(ct)[0]))(np.ones(3)), np.cos(x), rtol=1e-13)


# --- compile
# ------------------------------------------------------------------------------------------------------


def test_compile_gives_what_the_function_gives(rng):
    params, x, y = network_arguments(rng)
    c = ad.compile(network)
    for _ in range(3):
        assert c(params, x, y) == pytest.approx(network(params, x, y), rel=1e-13)


def test_compile_as_a_decorator_and_derived_functions_of_derived_functions():
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


def test_compile_writes_to_arguments_as_the_function_does(rng):
    def step(p, g, lr):
        p -= lr * g
        return np.sum(p)

    p, g = rng.normal(size=4), rng.normal(size=4)
    q = p.copy()
    c = ad.compile(step)
    for _ in range(3):
        total = step(q, g, 0.1)
        assert c(p, g, 0.1) == pytest.approx(total, rel=1e-13)
        np.testing.assert_allclose(p, q, rtol=1e-14)


def test_gradient_of_a_function_that_writes_to_its_argument(rng):
    """The derivative is that of the whole function; the caller's array stays as it is."""
    x = rng.normal(size=3)
    before = x.copy()

    def f(x):
        x *= x
        return np.sum(x * x)

    np.testing.assert_allclose(ad.grad(f)(x), 4 * before**3, rtol=1e-13)
    np.testing.assert_array_equal(x, before)


def test_an_argument_written_to_shares_no_memory_with_another(rng):
    def f(x, y):
        x *= 2.0
        return np.sum(x * y)

    x = rng.normal(size=4)
    g = ad.grad(f)
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match="shares memory"):
            g(x, x)
        g(x, x.copy())


def test_an_argument_written_to_is_not_read_from_outside_as_well(rng):
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


def test_a_pullback_that_was_not_compiled_writes_into_buffers_too(rng):
    """A new function each time, which is interpreted; the gradient of x + n is dout, and no part of it."""
    for n in range(2):
        out, pullback = ad.vjp(lambda x, n=n: x + np.random.default_rng(n).random(3), np.ones(3))
        dout, buffer = rng.normal(size=3), np.full(3, -7.0)
        (dx,) = pullback(dout)
        assert not np.shares_memory(dx, dout)
        (into,) = pullback(dout, out=(buffer,))
        assert into is buffer
        np.testing.assert_array_equal(buffer, dout)


def test_a_read_only_buffer_is_named():
    g = ad.grad(lambda p: np.sum(p["w"] ** 2))
    p, out = {"w": np.ones(3)}, {"w": np.ones(3)}
    g(p, out=out)
    out["w"].flags.writeable = False
    for _ in range(2):
        with pytest.raises(ad.AutodiffError, match=r"grad: out\['w'\] is read-only"):
            g(p, out=out)


# --- errors: one clear line
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ad.grad(np.sin, argnums=2)(1.0), "argnums=2.*1 positional argument"),
        (lambda: ad.grad(np.sin, argnums="x"), "expected an int"),
        (lambda: ad.grad(np.sin)(np.ones((2, 3))), r"shape \(2, 3\).*ad.vjp or ad.jacobian"),
        (lambda: ad.grad(lambda x: (x, x))(1.0), "tuple.*has_aux"),
        (lambda: ad.grad(lambda x: None)(1.0), "None"),
        (lambda: ad.grad(lambda x: x, has_aux=True)(1.0), "pair"),
        (lambda: ad.grad(lambda x: x)(3), r"x is 3;.*pass 3\.0"),
        (
            lambda: ad.grad(lambda p: p["a"] + p["n"])({"a": 1.0, "n": np.int64(3)}),
            r"p\['n'\] has dtype int64",
        ),
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
        (lambda: ad.grad(lambda x: x[0] * x[1])([1, 2]), "x is a list with nothing.*write 1.0 for 1"),
        (lambda: ad.grad(lambda x, k: x * k)(x=1.0, k=2.0), "given by name have no derivative"),
        (lambda: ad.grad(lambda x: np.sum(x.at[0].set(1.0)))(np.ones(3)), "'at'.*x.i. = v"),
        (lambda: ad.grad(lambda x: x.detach())(1.0), r"test_transforms.py:\d+: .*'detach'.*ad.stop_gradient"),
        (lambda: ad.grad(lambda x: x.tobytes())(np.ones(3)), "'tobytes'.*ad.custom_vjp"),
        (lambda: ad.source(ad.grad(np.sin), emitted=True), "not called yet"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ad.AutodiffError, match=words) as e:
        call()
    assert "\n" not in str(e.value)


def test_a_misspelt_name_can_be_told():
    with pytest.raises(AttributeError, match="no attribute 'jacobain'") as e:
        ad.jacobain  # noqa: B018
    assert e.value.name == "jacobain" and e.value.obj is ad  # of which Python makes "Did you mean"
    with pytest.raises(AttributeError, match=r"no attribute 'jit'; here it is ad\.compile"):
        ad.jit  # noqa: B018


def test_grad_of_something_else():
    with pytest.raises(TypeError, match="expected a function"):
        ad.grad(3.0)


# --- records of what was done
# --------------------------------------------------------------------------------------------------


def test_source_is_what_runs(rng):
    g = ad.grad(lambda x: np.sum(np.tanh(x)))
    x = rng.normal(size=3)
    text = ad.source(g, x, emitted=True)
    assert "np.tanh" in text and "def f_grad(x" in text
    _, pullback = ad.vjp(lambda x: np.tanh(x), x)
    assert "def " in pullback.source == ad.source(pullback, emitted=True)


def test_source_of_a_function_that_is_recorded_at_each_call():
    def f(x):
        return np.sum(x) if np.sum(x) > 0 else -np.sum(x)

    g = ad.grad(f)
    assert "def f_grad" in ad.source(g, np.ones(2), emitted=True)
    assert "looks at" in ad.why_recorded(g)


def test_stages(rng):
    text = ad.stages(lambda x: np.sum(np.tanh(x) ** 2), rng.normal(size=3))
    titles = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    assert titles == [
        "recorded",
        "simplified",
        "differentiated",
        "simplified again",
        "forward",
        "backward",
        "forward, emitted",
        "backward, emitted",
    ]
    assert "tanh(x)" in text


def test_options_switch_passes_off_and_programs_are_kept_apart():
    def f(x):
        return np.sum(np.sin(x) * np.cos(x) + np.sin(x))

    g, x = ad.grad(f), np.array([0.1, 0.2])
    plain = ad.source(g, x, emitted=True)
    with ad.options(off={"cse"}):
        other = ad.source(g, x, emitted=True)
        np.testing.assert_allclose(g(x), np.cos(2 * x) + np.cos(x), rtol=1e-13)
    assert other.count("np.cos") > plain.count("np.cos")
    assert ad.source(g, x, emitted=True) == plain
    with pytest.raises(ValueError, match="nosuchpass"), ad.options(off={"nosuchpass"}):
        pass


def test_simplifying_before_differentiating_is_a_choice(rng):
    """x**3 as products has a derivative of products; differentiated first it is 3 x**2."""
    x = rng.normal(size=4)
    g = ad.grad(lambda x: np.sum(np.exp(x) * np.exp(x) + x**3))
    found = {}
    for before in (True, False):
        with ad.options(before=before):
            found[before] = g(x)
            np.testing.assert_allclose(found[before], 2 * np.exp(2 * x) + 3 * x**2, rtol=1e-12)
            assert g.__derived__.last[0].graph is not None
    assert len(g.__derived__.cache) == 2


def test_names_are_all_there():
    for name in ad.__all__:
        assert getattr(ad, name) is not None
    assert callable(ad.scan) and callable(ad.parallel_map)


def test_what_stop_gradient_gives_keeps_its_memory():
    """It is its argument's memory, which is not free while the result is still read."""

    def f(x):
        y = np.cumsum(x, axis=0)
        kept = ad.stop_gradient(y)
        for _ in range(4):
            y = np.cumsum(y, axis=1)
        return y * kept

    x = np.random.default_rng(0).standard_normal((300, 200))
    assert np.array_equal(ad.compile(f)(x), f(x))


@pytest.mark.parametrize("jacobian", [ad.jacobian, ad.jacfwd, ad.jacrev])
def test_jacobians_of_products_with_matrices_take_no_product_with_the_identity(rng, jacobian):
    """Rows of a matrix, scaled by elementwise derivatives, stand where unit vectors are multiplied by it."""
    a, b, x = rng.normal(size=(4, 5)), rng.normal(size=(5, 5)), rng.normal(size=5)
    functions = {
        0: (lambda x: np.tanh(a @ x), lambda x: -(np.sin(x) @ b), lambda x: x[None] @ b),
        1: (lambda x: a @ np.tanh(b @ x) * x[0], lambda x: np.exp(x @ b @ b)),
    }
    for products, these in functions.items():
        for f in these:
            expected = np.stack([ad.jvp(f, (x,), (e,))[1] for e in np.eye(5)], axis=-1)
            np.testing.assert_allclose(jacobian(f)(x), expected, rtol=1e-12, atol=1e-14)
            (*_, graph, _) = str(ad.stages(jacobian(f), x)).split("\n# ")
            square = [
                line for line in graph.splitlines() if "matmul" in line and ",1]" not in line.split("=")[0]
            ]
            assert len([line for line in square if not line.split(":")[1].strip().startswith("f64[1,")]) <= (
                products
            ), graph


def test_units_that_are_used_elsewhere_stay_whole(rng):
    """A unit vector that is added, compared or multiplied with something of its own is no scaled one."""
    a, x = rng.normal(size=(3, 3)), rng.normal(size=3)
    for f in (lambda x: a @ x + x * np.sum(x), lambda x: a @ (x * x[::-1]), lambda x: (a @ x) * (a @ x)[0]):
        expected = np.stack([ad.jvp(f, (x,), (e,))[1] for e in np.eye(3)], axis=-1)
        np.testing.assert_allclose(ad.jacrev(f)(x), expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(ad.jacfwd(f)(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("f", [lambda x: np.sum(x * x), lambda x: x**2, lambda x: x - 1])
@pytest.mark.parametrize("numbers", [[1.0, 2.0], (1.0, 2.0)])
def test_a_list_that_was_meant_as_an_array_is_named(f, numbers):
    with pytest.raises(TypeError, match=rf"an argument is a {type(numbers).__name__}, .* pass np.array"):
        ad.grad(f)(numbers)


def test_readable_source_of_what_is_no_graph():
    with pytest.raises(TypeError, match=r"expected a Graph, got DerivedFunction; ad.source\(g\) is the text"):
        ad.readable_source(ad.grad(np.sum))


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (slice(0, 4), slice(2, 6), "that shares memory with another one"),
        (slice(0, 4), slice(0, 4), "that shares memory with another one"),
        (slice(0, 7, 2), slice(2, 6), "that shares memory with another one"),
        (slice(0, 4), slice(4, 8), None),
        (slice(0, 7, 2), slice(1, 8, 2), None),
    ],
)
def test_buffers_that_overlap_are_refused(first, second, why):
    x, whole, known = np.arange(1.0, 5.0), np.zeros(8), np.zeros(8)
    g = ad.compile(lambda x: (x * 2, x * 3))
    pair = ad.Fixed(lambda x: (x * 2, x * 3))
    for _ in range(3):  # the third call is by the fast entry
        for f in (g, pair):
            if why is None:
                known[first], known[second] = x * 2, x * 3
                f(x, out=(whole[first], whole[second]))
                np.testing.assert_array_equal(whole, known)
            else:
                with pytest.raises(ad.AutodiffError, match=f"out has a buffer {why}. Pass arrays that lie"):
                    f(x, out=(whole[first], whole[second]))
        g(x, out=(x.copy(), x.copy()))


def test_a_buffer_whose_elements_overlap_is_refused():
    _, pullback = ad.vjp(lambda x: x * 2, np.ones(4))
    for strides in ((0,), (4,)):
        buffer = np.lib.stride_tricks.as_strided(np.zeros(4), (4,), strides)
        for call in (
            lambda b=buffer: ad.compile(lambda x: x * 2)(np.ones(4), out=b),
            lambda b=buffer: pullback(np.ones(4), out=(b,)),
        ):
            with pytest.raises(ad.AutodiffError, match="out has a buffer whose own elements share memory"):
                call()


def test_a_buffer_that_is_an_argument_written_to_is_refused():
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


def test_a_buffer_that_overlaps_an_argument_that_is_read_has_numpys_result():
    g = ad.compile(lambda x: np.cumsum(x[::-1]) * x)
    for _ in range(3):
        x = np.arange(8.0)
        expected = np.cumsum(x[3::-1]) * x[:4]
        np.testing.assert_array_equal(g(x[:4], out=x[2:6]), expected)
        np.testing.assert_array_equal(x[2:6], expected)


def test_a_complex_tangent_of_a_real_argument_is_refused():
    x = np.array([1.5, 2.5])
    for name, call in (
        ("jvp", lambda t: ad.jvp(lambda x: x * x, (x,), (t,))),
        ("hvp", lambda t: ad.hvp(lambda x: np.sum(x**3), x, t)),
        ("jvp", lambda t: ad.compile(lambda x, t: ad.jvp(lambda x: x * x, (x,), (t,)))(x, t)),
        ("jvp", lambda t: ad.jvp(lambda x: x * x, (2.5,), (t[0].item(),))),
    ):
        call(x)
        with pytest.raises(
            ad.AutodiffError, match=f"{name}: tangents.* expected real numbers and not complex128"
        ):
            call(x * 1j)
    np.testing.assert_array_equal(ad.jvp(lambda z: z * z, (x * 1j,), (x * 1j,))[1], -2 * x * x)


def test_an_object_with_numbers_in_it_is_to_be_registered():
    class Net:
        def __init__(self):
            self.weight = np.ones(3)

    with pytest.raises(ad.AutodiffError, match="a Net; .* decorate the class Net with @ad.tree.register"):
        ad.grad(lambda net, x: np.sum(net.weight * x))(Net(), np.ones(3))
    assert (
        ad.grad(lambda net, x: np.sum(net.weight * x))(ad.tree.register(Net)(), np.ones(3)).weight.sum() == 3
    )
