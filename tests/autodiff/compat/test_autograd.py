"""gpt2.autodiff.compat.autograd: its names behave as in autograd."""

import math
import subprocess
import sys
import threading
import warnings

import numpy
import pytest

from gpt2.autodiff import AutodiffError
from gpt2.autodiff.compat import autograd
from gpt2.autodiff.compat.autograd import numpy as np
from gpt2.autodiff.compat.autograd.core import VSpace, primitive_vjps, vspace
from gpt2.autodiff.compat.autograd.extend import (
    Box,
    SparseObject,
    def_linear,
    defjvp,
    defvjp,
    defvjp_argnum,
    notrace_primitive,
    primitive,
)
from gpt2.autodiff.compat.autograd.misc import flatten, optimizers
from gpt2.autodiff.compat.autograd.misc.fixed_points import fixed_point
from gpt2.autodiff.compat.autograd.numpy import array, numpy_vjps
from gpt2.autodiff.compat.autograd.numpy.numpy_boxes import ArrayBox
from gpt2.autodiff.compat.autograd.test_util import check_grads, combo_check
from gpt2.autodiff.compat.autograd.tracer import Node, getval, isbox, trace

X = numpy.array([0.3, -1.2, 2.0])
A = numpy.array([[2.0, 0.3], [0.1, 1.0]])


@pytest.fixture(autouse=True)
def seeded():
    numpy.random.seed(0)  # check_grads draws its directions, as autograd's does


def f(x, a, scale=1.0):
    return np.sum(np.tanh(x) * a) * scale


# name -> call of a package (autograd's or this one) and its NumPy
CALLS = {
    "grad": lambda ag, np: ag.grad(f)(X, X**2),
    "second argument": lambda ag, np: ag.grad(f, 1)(X, X**2),
    "last argument": lambda ag, np: ag.grad(f, -1)(X, X**2),
    "two arguments": lambda ag, np: ag.grad(f, (0, 1))(X, X**2, scale=3.0),
    "a list of them": lambda ag, np: ag.grad(f, [1, 0])(X, X**2),
    "a number": lambda ag, np: ag.grad(np.tanh)(0.5),
    "one entry": lambda ag, np: ag.grad(lambda x: np.reshape(x[0] * x[1], (1, 1)))(X),
    "integers in an array": lambda ag, np: ag.grad(lambda x: np.sum(1.5 * x**2))(numpy.arange(3)),
    "containers": lambda ag, np: ag.grad(lambda p: np.sum(p["w"] * p["b"][0]) + p["b"][1])(
        {"w": X, "b": [2.0, 3.0]}
    ),
    "value_and_grad": lambda ag, np: ag.value_and_grad(f)(X, 2.0),
    "value of one entry": lambda ag, np: ag.value_and_grad(lambda x: x[:1] ** 2)(X),
    "elementwise_grad": lambda ag, np: ag.elementwise_grad(np.sin)(X),
    "deriv": lambda ag, np: ag.deriv(np.sin)(0.3),
    "jacobian": lambda ag, np: ag.jacobian(lambda x: np.outer(x, x))(X),
    "hessian": lambda ag, np: ag.hessian(lambda x: np.sum(x**3) * x[0])(X),
    "hessian_vector_product": lambda ag, np: ag.hessian_vector_product(lambda x, k: np.sum(x**3) * k)(
        X, 2.0, X**2
    ),
    "tensor_jacobian_product": lambda ag, np: ag.tensor_jacobian_product(np.sin)(A, A),
    "vector on the left": lambda ag, np: ag.vector_jacobian_product(lambda x: np.outer(x, x))(X, X),
    "holomorphic_grad": lambda ag, np: ag.holomorphic_grad(lambda z: z**3)(1.0 + 2.0j),
    "grad_and_aux": lambda ag, np: ag.grad_and_aux(lambda x: (np.sum(x**2), x * 2))(X),
    "grad_named": lambda ag, np: ag.grad_named(f, "a")(X, X),
    "make_vjp": lambda ag, np: (lambda vjp, ans: (vjp(X), ans))(*ag.make_vjp(lambda x: x**2)(X)),
    "make_jvp": lambda ag, np: ag.make_jvp(f, 1)(X, X)(X),
    "make_hvp": lambda ag, np: (lambda hvp, g: (hvp(X), g))(*ag.make_hvp(lambda x: np.sum(x**3))(X)),
    "make_ggnvp": lambda ag, np: ag.make_ggnvp(lambda x: np.tanh(x) * x[0])(X)(X),
    "checkpoint": lambda ag, np: ag.grad(ag.checkpoint(lambda x: np.sum(np.sin(x) ** 2)))(X),
    "of a gradient": lambda ag, np: ag.grad(lambda x: np.sum(ag.grad(f)(x, x) ** 2))(X),
    "stack of a generator": lambda ag, np: ag.grad(lambda x: np.sum(np.stack(x * i for i in range(3))))(X),
    "where by name": lambda ag, np: ag.grad(lambda x: np.sum(np.where(x > 0, y=x, x=x**2)))(X),
    "list of values": lambda ag, np: ag.jacobian(lambda x: np.array([x[0], [x[1]][0] * 2, 1.0]))(X),
    "a real result of a complex argument": lambda ag, np: ag.grad(lambda z: np.abs(z) ** 2)(1.0 + 2.0j),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_autograd(name, monkeypatch):
    theirs = pytest.importorskip("autograd")
    import autograd.numpy

    actual = CALLS[name](autograd_here, np)
    monkeypatch.setitem(globals(), "np", autograd.numpy)  # f reads it
    assert_same(actual, CALLS[name](theirs, autograd.numpy))


autograd_here = sys.modules["gpt2.autodiff.compat.autograd"]


def assert_same(actual, expected):
    """Also in containers and shapes."""
    if isinstance(expected, (tuple, list)):
        assert type(actual) is type(expected) and len(actual) == len(expected)
        for a, b in zip(actual, expected):
            assert_same(a, b)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for k in expected:
            assert_same(actual[k], expected[k])
    else:
        assert numpy.shape(actual) == numpy.shape(expected)
        numpy.testing.assert_allclose(actual, expected, rtol=1e-12)
        assert numpy.iscomplexobj(actual) == numpy.iscomplexobj(expected)


# ---- Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call, words", [
    (lambda: autograd.grad(lambda x: x)(X), "one real number as their result, and this one gives an array"),
    (lambda: autograd.grad(lambda x: x + 1j)(1.0), "this one gives a complex number"),
    (lambda: autograd.grad(lambda x: [x])(1.0), "a list"),
    (lambda: autograd.grad(np.sin)(3), "with respect to int 3: pass 3.0"),
    (lambda: autograd.grad(lambda p: p["a"] * 1.0)({"a": "text"}), "str"),
    (lambda: autograd.grad(np.sin, "x")(1.0), "argnum is 'x'"),
    (lambda: autograd.elementwise_grad(lambda x: x + 1j)(X), "real results"),
    (lambda: defvjp(np.add, lambda ans, x, y: lambda g: g), "add is not a primitive"),
    (lambda: defvjp(np.sum, lambda ans, x: lambda g: g), "sum is not a primitive"),
    (lambda: defvjp(np.sin, lambda ans, x: lambda g: g), "were taken with it already"),
    (lambda: defvjp(primitive(abs), 3), "3 is no rule"),
])  # fmt: skip
def test_wrong_arguments_are_type_errors(call, words):
    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize("call", [
    lambda: Box.register(int),
    lambda: VSpace.register(int),
    lambda: SparseObject(None, None),
    lambda: autograd.tracer.new_box(1.0, 0, None),
    lambda: autograd.tracer.register_notrace(None, None),
    lambda: autograd.misc.tracers.full_graph(np.sin, 1.0),
    lambda: autograd.grad(primitive(lambda x: x))(1.0),
])  # fmt: skip
def test_unsupported_names_of_autograd_raise(call):
    with pytest.raises(NotImplementedError, match=r"\w+ \w+"):
        call()


def test_gradient_of_a_constant_is_zero_with_a_warning():
    with pytest.warns(UserWarning, match="independent"):
        assert autograd.grad(lambda x: 3.0)(1.0) == 0.0


def test_rule_for_a_function_that_is_no_primitive_warns():
    """Autograd never calls such a rule either."""

    def square(x):
        return x**2

    with pytest.warns(UserWarning, match="no effect"):
        defvjp(square, lambda ans, x: lambda g: 0.0)
    assert autograd.grad(square)(3.0) == 6.0
    assert primitive_vjps == {}


# ---- Arguments that are not differentiated, and repeated calls -------------------------------------------


def test_other_arguments_may_change_from_call_to_call():
    """Numbers and arrays are static until they change, and inputs of the program from then on."""
    g = autograd.grad(lambda x, a, k, i: np.sum(x * a) * k + x[i])
    hvp = autograd.hessian_vector_product(lambda x, k: np.sum(x**3) * k)
    tjp = autograd.tensor_jacobian_product(lambda x, k: x**2 * k)
    for step in range(6):
        a, k, i = X + step, 1.0 + step, step % 3
        numpy.testing.assert_allclose(g(X, a, k, i), a * k + numpy.eye(3)[i])
        numpy.testing.assert_allclose(hvp(X, k, X), 6 * X * X * k)
        new_hvp = autograd.hessian_vector_product(lambda x, k: np.sum(x**3) * k)
        numpy.testing.assert_allclose(new_hvp(X, k, X), 6 * X * X * k)
        numpy.testing.assert_allclose(tjp(X, k, X), 2 * X * X * k)
        vjp, _ = autograd.make_vjp(lambda x, k: x * k)(X, k)
        numpy.testing.assert_allclose(vjp(X), X * k)


def test_other_arguments_may_be_used_as_plain_numbers():
    """math.exp refuses a recorded value, so the function gets the number itself."""
    kinds = []

    def scaled(x, scale, table):
        kinds.append(type(scale))
        return np.sum(x) * math.exp(scale) + math.cos(table[0]) * x[0]

    g = autograd.grad(scaled)
    for k in (1.0, 2.0, 3.0, 4.0):
        expected = math.exp(k) + numpy.array([math.cos(X[0] * k), 0, 0])
        numpy.testing.assert_allclose(g(X, k, X * k), expected)
    assert kinds[-1] is float


def test_exception_of_the_function_is_passed_on():
    def f(x, k):
        if k > 2:
            raise KeyError("k")
        return x * k

    g = autograd.grad(f)
    assert [g(1.0, 1.0), g(1.0, 2.0)] == [1.0, 2.0]
    with pytest.raises(KeyError, match="k"):
        g(1.0, 3.0)
    assert g(1.0, 1.5) == 1.5


def test_side_effects_happen_at_every_call():
    seen = []

    def f(x):
        seen.append(1)
        return x**2

    g = autograd.grad(f)
    assert [g(1.0), g(1.0), g(1.0)] == [2.0] * 3 and len(seen) == 3


def test_threads_may_share_a_derived_function():
    g = autograd.grad(lambda x, k: np.sum(x * k))
    wrong = []

    def run(k):
        for _ in range(20):
            if not numpy.all(g(X, k) == float(k)):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in (1.0, 2, 3.0, 4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


# ---- Primitives ------------------------------------------------------------------------------------------


@primitive
def doubled(x, k=2.0):
    return numpy.multiply(numpy.asarray(x, float).copy(), k)  # x is never a recorded value


defvjp(doubled, lambda ans, x, k=2.0: lambda g: g * k)


@primitive
def dotted(a, b, power):
    return float(numpy.dot(numpy.array(a).tolist(), b)) ** power


defvjp_argnum(
    dotted,
    lambda argnum, ans, args, kwargs: (
        lambda g: g * args[2] * np.dot(args[0], args[1]) ** (args[2] - 1) * args[1 - argnum]
    ),
)


def test_primitives():
    assert autograd.grad(doubled)(3.0) == 2.0
    numpy.testing.assert_allclose(
        autograd.jacobian(lambda x: doubled(np.sin(x), k=5.0))(X), numpy.diag(5 * numpy.cos(X))
    )
    check_grads(dotted, (0, 1), modes=["rev"], order=1)(X, X + 1, 2)


def test_missing_rule_of_an_argument_is_named():
    @primitive
    def product(x, y):
        return x * y

    defvjp(product, lambda ans, x, y: lambda g: g * y)
    assert autograd.grad(product)(2.0, 3.0) == 3.0
    with pytest.raises(NotImplementedError, match="product has no vjp for its argument 1"):
        autograd.grad(product, 1)(2.0, 3.0)
    defvjp(product, None, lambda ans, x, y: lambda g: g * x)
    assert autograd.grad(product, (0, 1))(2.0, 3.0) == (0.0, 2.0)


def test_forward_rules():
    @primitive
    def opaque(x):
        return numpy.array([float(v) ** 2 for v in x])

    defjvp(opaque, lambda g, ans, x: 2 * g * x)
    numpy.testing.assert_allclose(autograd.make_jvp(opaque)(X)(X)[1], 2 * X * X)
    numpy.testing.assert_allclose(autograd.jacobian(opaque)(X), numpy.diag(2 * X))

    @primitive
    def linear(x, y):
        return 3.0 * x + y

    def_linear(linear)
    defjvp(linear, lambda g, ans, x, y: 3.0 * g, "same", argnums=(0, 1))
    assert autograd.make_jvp(lambda x: linear(x, 0.0))(1.0)(2.0)[1] == 6.0


def test_primitive_with_a_rule_for_each_mode():
    """Neither can be transposed for the other mode: they call functions that cannot be recorded."""
    plain = numpy.vectorize(lambda v: 2.0 * float(v))

    @primitive
    def opaque(x):
        return plain(x)

    defvjp(opaque, lambda ans, x: lambda g: plain(g))
    defjvp(opaque, lambda g, ans, x: plain(g) + 0.0)
    numpy.testing.assert_allclose(autograd.make_jvp(opaque)(X)(X)[1], 2 * X)
    numpy.testing.assert_allclose(autograd.make_vjp(opaque)(X)[0](X), 2 * X)


def test_fixed_points_to_second_order():
    """The rule reads the primitive's result, and calls the primitive again."""

    def root(a):
        return fixed_point(lambda a: lambda x: 0.5 * (x + a / x), a, 10.0, lambda x, y: np.abs(x - y), 1e-12)

    assert autograd.grad(root)(2.0) == pytest.approx(0.5 / 2**0.5)
    assert autograd.grad(autograd.grad(root))(2.0) == pytest.approx(-0.25 / 2**1.5)


def test_unbroadcast():
    @primitive
    def plus(x, y):
        return x + y

    defvjp(
        plus,
        lambda ans, x, y: numpy_vjps.unbroadcast_f(x, lambda g: g),
        lambda ans, x, y: numpy_vjps.unbroadcast_f(y, lambda g: g),
    )
    combo_check(plus, (0, 1), modes=["rev"], order=1)([X, 2.0], [X, X[:, None], 1.0])


# ---- Boxes, vector spaces and traces ---------------------------------------------------------------------


def test_boxes():
    seen = []

    def f(x, p):
        seen.extend(
            [isinstance(x, ArrayBox), isbox(x), isinstance(p, autograd.builtins.DictBox), type(getval(x))]
        )
        seen.append(autograd.builtins.type(x))
        return np.sum(x) * (2.0 if getval(x)[0] > 0 else 3.0) * p["k"]

    g = autograd.grad(f, (0, 1))
    assert g(X, {"k": 2.0})[0][0] == 4.0 and g(-X, {"k": 2.0})[0][0] == 6.0
    assert seen[:5] == [True, True, True, numpy.ndarray, numpy.ndarray]
    assert not isinstance(X, ArrayBox) and not isinstance({}, autograd.builtins.DictBox)


def test_notrace_primitive_is_a_constant():
    size = notrace_primitive(lambda x: float(numpy.abs(x).max()))
    g = autograd.grad(lambda x: np.sum(x / size(x)))
    numpy.testing.assert_allclose(g(X), 0.5)
    numpy.testing.assert_allclose(g(2 * X), 0.25)


def test_vector_spaces():
    space = vspace({"a": X, "b": [1.0, 2.0 + 1j]})
    assert space.size == 6 and space.iscomplex and space == vspace(space.randn()) and space != vspace(X)
    assert len(list(space.standard_basis())) == 6 and vspace(X).shape == (3,)
    numpy.testing.assert_allclose(vspace(X).inner_prod(X, X), X @ X)
    with pytest.raises(TypeError, match="vector space of str"):
        vspace("text")


def test_trace_makes_a_node_for_each_op():
    class Named(Node):
        def __init__(self, value, fun, args, kwargs, parent_argnums, parents):
            self.text = f"{fun.__name__}({','.join(p.text for p in parents)})"

        def initialize_root(self):
            self.text = "x"

    value, node = trace(Named.new_root(), lambda x: np.sin(x) * np.exp(x), 1.0)
    assert value == numpy.sin(1.0) * numpy.exp(1.0) and node.text == "multiply(sin(x),exp(x))"


# ---- Modules ---------------------------------------------------------------------------------------------


def test_function_imported_from_the_numpy_module():
    numpy.testing.assert_allclose(autograd.jacobian(lambda x: array([x[1], x[0]]))(X), [[0, 1, 0], [1, 0, 0]])


def test_flatten_and_unflatten():
    tree = {"b": [1.0, X], "a": (A, {"c": 2.0})}
    vector, unflatten = flatten(tree)
    assert vector.shape == (9,) and vector[:4].tolist() == A.ravel().tolist()
    assert_same(unflatten(vector), tree)
    slopes = autograd.grad(lambda v: np.sum(unflatten(v)["b"][1] ** 2))(vector)
    numpy.testing.assert_allclose(slopes[6:], 2 * X)
    numpy.testing.assert_allclose(autograd.grad(lambda t: np.sum(flatten(t)[0] ** 2))(tree)["b"][1], 2 * X)
    with pytest.raises(AutodiffError, match=r"expected \(9,\)"):
        unflatten(X)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adam"])
def test_optimizers_agree_with_autograd(name):
    theirs = pytest.importorskip("autograd.misc.optimizers")
    calls = []

    def gradient(p, i):
        return {"w": 2.0 * p["w"] + i * 0.01, "b": [p["b"][0] - 1.0]}

    start = {"w": X, "b": [0.5]}
    options = {"num_iters": 7, "step_size": 0.2}
    last = getattr(optimizers, name)(gradient, start, lambda *state: calls.append(state), **options)
    assert_same(last, getattr(theirs, name)(gradient, start, **options))
    assert [i for _, i, _ in calls] == list(range(7)) and calls[0][2]["w"].shape == (3,)


def test_gradient_through_an_optimizer():
    def trained(rate):
        return optimizers.sgd(lambda x, i: 2 * x, np.ones(1) * 1.0, num_iters=3, step_size=rate)[0]

    check_grads(trained, order=1)(0.1)


def test_modules_of_scipy():
    pytest.importorskip("scipy")
    import gpt2.autodiff.compat.autograd.scipy.stats.norm as norm
    from gpt2.autodiff.compat.autograd.scipy import misc, signal, special, stats
    from gpt2.autodiff.compat.autograd.scipy.integrate import odeint

    assert norm is stats.norm
    assert autograd.grad(norm.logpdf)(0.3) == pytest.approx(-0.3)
    assert autograd.grad(special.gammaln)(2.0) == pytest.approx(special.psi(2.0))
    numpy.testing.assert_allclose(autograd.grad(misc.logsumexp)(X), numpy.exp(X) / numpy.exp(X).sum())
    combo_check(stats.poisson.cdf, 1, order=1)([numpy.array([0, 2, 5])], [1.3])
    check_grads(signal.convolve, (0, 1), modes=["rev"], order=1)(A, X[None, :2])
    with pytest.raises(AttributeError, match="convolve alone"):
        signal.lfilter  # noqa: B018

    def slope(y, t, k):
        return -y * k + t

    def solved(y, t, args):
        return odeint(slope, y, t, args, rtol=1e-12, atol=1e-12)

    check_grads(solved, (0, 1, 2), modes=["rev"], order=1)(X, numpy.linspace(0, 0.4, 3), (1.5,))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolve_agrees_with_autograd(mode):
    theirs = pytest.importorskip("autograd.scipy.signal")
    from gpt2.autodiff.compat.autograd.scipy import signal

    rng = numpy.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 6, 5)), rng.standard_normal((3, 4, 2, 3))
    for args, dot_axes, m in (((a, b), ([1], [0]), mode), ((b, a), ([0], [1]), "valid")):
        options = {"axes": ([2, 3], [2, 3]), "dot_axes": dot_axes, "mode": m}
        numpy.testing.assert_allclose(signal.convolve(*args, **options), theirs.convolve(*args, **options))


def test_rules_for_functions_of_numpy_and_scipy():
    """In a new process: rules are accepted before the first derivative."""
    pytest.importorskip("scipy")
    code = """
import numpy
from gpt2 import autodiff as ad
from gpt2.autodiff.compat.autograd import elementwise_grad, grad, make_jvp, numpy as np
from gpt2.autodiff.compat.autograd.extend import defjvp, defvjp
from gpt2.autodiff.compat.autograd.scipy.special import expit
scale = [3.0]
defvjp(np._original_where, None, lambda ans, c, x, y: lambda g: np.where(c, scale[0] * g, 0.0), None)
defvjp(np.sign, lambda ans, x: lambda g: g)
defjvp(expit, lambda g, ans, x: 7.0 * g)
x = numpy.array([-1.0, 2.0])
f = lambda x: np.sum(np.where(x > 0, x, 0.0) * 2.0)
g = grad(f)
assert list(g(x)) == [0.0, 6.0] == list(ad.grad(f)(x)) and f(x) == 4.0
scale[0] = 5.0
assert list(g(x)) == [0.0, 10.0] == list(ad.grad(f)(x))
assert list(elementwise_grad(np.sign)(x)) == [1.0, 1.0]
assert list(grad(lambda x: np.sum(expit(x)))(x)) == [7.0, 7.0]
assert make_jvp(expit)(0.0)(1.0) == (0.5, 7.0)
try:
    defvjp(np.tan, lambda ans, x: lambda g: g)
except TypeError as error:
    assert "before the first derivative" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- Programs that import autograd -----------------------------------------------------------------------


def test_installed_as_autograd_and_removed():
    before = sys.modules.get("autograd")
    with autograd_here.installed():
        import autograd as imported
        import autograd.numpy.linalg
        from autograd.numpy.linalg import norm

        assert imported is autograd_here and autograd.grad is autograd_here.grad
        assert autograd.numpy.linalg.norm is norm
        with pytest.raises(ModuleNotFoundError):
            import autograd.no_such_module  # noqa: F401
    assert sys.modules.get("autograd") is before
    assert before is not None or not any(name.startswith("autograd.") for name in sys.modules)


def test_program_runs_unchanged(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport autograd.numpy as np\nfrom autograd import grad\n"
        "print(grad(np.tanh)(float(sys.argv[1])), grad.__module__, __name__)\n"
    )
    command = [sys.executable, "-m", "gpt2.autodiff.compat.autograd"]
    run = subprocess.run([*command, str(program), "0.0"], capture_output=True, text=True)
    assert run.stdout == "1.0 gpt2.autodiff.compat.autograd.differential_operators __main__\n", run.stderr
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout.startswith("usage:")


def test_error_names_the_users_line():
    y = numpy.zeros(2)

    def f(x):
        y[0] = x
        return np.sum(y)

    with pytest.raises(AutodiffError, match="test_autograd.py"):
        autograd.grad(f)(1.0)


def test_ordinary_function_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autograd.grad(f)(X, X)
