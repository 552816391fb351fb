"""from_torch, to_torch, from_jax, to_jax and as_numpy, with the real packages."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.trees import assert_close

X = np.array([0.3, -1.2, 2.0])
Y = np.array([1.0, 0.5, -2.0])
SINGLE = {"rtol": 1e-4, "atol": 1e-5}  # JAX computes in float32


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax")


def numpy_loss(x, y):
    return np.sum(np.tanh(x**2) * y)


def test_from_torch(torch):
    f = ad.from_torch(lambda x, y: torch.tanh(x) * y)
    np.testing.assert_allclose(f(X, Y), np.tanh(X) * Y)
    actual = ad.value_and_grad(lambda x, y: np.sum(f(x**2, y)), (0, 1))(X, Y)
    assert_close(actual, ad.value_and_grad(numpy_loss, (0, 1))(X, Y), rtol=1e-7)


def test_from_torch_with_two_results_and_integers(torch):
    f = ad.from_torch(lambda x, i: (x[i], 2.0 * x.sum()))
    index = np.array([2, 0])
    g = ad.grad(lambda x: np.sum(f(x, index)[0] * np.array([1.0, 5.0])) + f(x, index)[1])
    np.testing.assert_allclose(g(X), [7.0, 2.0, 3.0])
    h = ad.grad(lambda x: np.sum(f(x, index)[0]))  # the other result is not used
    np.testing.assert_allclose(h(X), [1.0, 0.0, 1.0])
    g = ad.from_torch(lambda x, i: (x[i] ** 3, i + 1))
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(g(x, index)[0]))(X), 3 * X**2 * [1, 0, 1])
    np.testing.assert_allclose(ad.hessian(lambda x: np.sum(g(x, index)[0]))(X), np.diag(6 * X * [1, 0, 1]))


def test_from_torch_of_a_module(torch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    f = ad.from_torch(module)
    out = module(torch.from_numpy(X))
    np.testing.assert_allclose(f(f.params, X), out.detach().numpy())
    (out**2).sum().backward()
    grads = ad.grad(lambda p, x: np.sum(f(p, x) ** 2))(f.params, X)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(grads[name], p.grad.numpy(), rtol=1e-12)


def test_to_torch(torch):
    f = ad.to_torch(numpy_loss)
    x, y = torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=True)
    (3.0 * f(x, y)).backward()
    expected = ad.grad(numpy_loss, (0, 1))(X, Y)
    np.testing.assert_allclose(x.grad.numpy(), 3 * expected[0])
    np.testing.assert_allclose(y.grad.numpy(), 3 * expected[1])
    assert torch.autograd.gradcheck(f, (x, y))
    assert not f(torch.tensor(X), torch.tensor(Y)).requires_grad


def test_to_torch_with_several_results_and_static_arguments(torch):
    f = ad.to_torch(lambda x, k: (x**k, np.argmax(x), np.sum(x)))
    x = torch.tensor(X, requires_grad=True)
    powers, index, total = f(x, 2)
    assert int(index) == 2 and not index.requires_grad
    (powers.sum() + 5.0 * total).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * X + 5)
    (only,) = torch.autograd.grad(f(x, 2)[2], x)
    np.testing.assert_allclose(only.numpy(), 1.0)


def test_higher_derivatives_in_torch(torch):
    f = ad.from_torch(lambda x, y: (torch.tanh(x) * y, torch.sum(x * y)))
    both = lambda x, y: np.sum(f(x, y)[0]) * f(x, y)[1]  # noqa: E731
    expected = lambda x, y: np.sum(np.tanh(x) * y) * np.sum(x * y)  # noqa: E731
    np.testing.assert_allclose(ad.hessian(both)(X, Y), ad.hessian(expected)(X, Y), rtol=1e-10)
    third = ad.grad(ad.grad(ad.grad(lambda a: both(a * X, Y))))(0.7)
    assert third == pytest.approx(ad.grad(ad.grad(ad.grad(lambda a: expected(a * X, Y))))(0.7))
    g = ad.to_torch(lambda x, k, y: (np.sum(np.tanh(x**k) * y), np.argmax(x)))
    x, y = torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, y: g(x, 2, y)[0], (x, y))
    (slope,) = torch.autograd.grad(g(x, 2, y)[0], x, create_graph=True)
    (slope**2).sum().backward()  # a penalty on the gradient
    expected = ad.grad(lambda x: np.sum(ad.grad(numpy_loss)(x, Y) ** 2))(X)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-10)


def test_second_derivatives_and_vmap_in_jax(jax):
    f = ad.from_jax(lambda x, y: jax.numpy.sum(jax.numpy.tanh(x**2) * y))
    expected = ad.hessian(numpy_loss)(X, Y)
    np.testing.assert_allclose(ad.hessian(f)(X, Y), expected, **SINGLE)
    g, x, y = ad.to_jax(numpy_loss), jax.numpy.array(X), jax.numpy.array(Y)
    np.testing.assert_allclose(jax.jacrev(jax.grad(g))(x, y), expected, **SINGLE)
    many = jax.numpy.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(g, (0, None))(many, y), [g(x, y), g(2 * x, y)], rtol=1e-6)


def test_from_jax(jax):
    f = ad.from_jax(lambda x, y: {"out": jax.numpy.tanh(x) * y})
    slopes = ad.grad(lambda x, y: np.sum(f(x**2, y)["out"]), (0, 1))(X, Y)
    np.testing.assert_allclose(slopes, ad.grad(numpy_loss, (0, 1))(X, Y), **SINGLE)


def test_from_jax_with_two_results_and_integers(jax):
    f = ad.from_jax(lambda x, i: (x[i] ** 3, i + 1))
    index = np.array([2, 0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(f(x, index)[0]))(X), 3 * X**2 * [1, 0, 1], **SINGLE)
    curvature = ad.hessian(lambda x: np.sum(f(x, index)[0]))(X)
    np.testing.assert_allclose(curvature, np.diag(6 * X * [1, 0, 1]), **SINGLE)


def test_to_jax(jax):
    f = ad.to_jax(numpy_loss)
    x, y = jax.numpy.array(X), jax.numpy.array(Y)
    expected = ad.grad(numpy_loss, (0, 1))(X, Y)
    for transform in (lambda g: g, jax.jit):
        slopes = transform(jax.grad(lambda x, y: 3.0 * f(x, y), (0, 1)))(x, y)
        np.testing.assert_allclose(slopes, 3 * np.array(expected), **SINGLE)
    np.testing.assert_allclose(f(x, y), numpy_loss(X, Y), rtol=1e-5)
    with pytest.raises(ad.AutodiffError, match="argument 1 has integers"):
        f(x, jax.numpy.arange(3))


def test_tensor_combined_with_a_recorded_value_is_an_error(torch):
    ones = torch.ones(3)
    for f in (lambda x: x * ones, lambda x: ones * x, lambda x: np.multiply(x, ones), lambda x: x @ ones):
        with pytest.raises(TypeError, match=r"test_interop.py:\d+: a torch.Tensor met .*ad.as_numpy"):
            ad.grad(lambda x: np.sum(f(x)))(X)  # noqa: B023
    with pytest.raises(TypeError, match=r"test_interop.py:\d+: .*ad.from_torch\(f\)"):
        ad.grad(lambda x: torch.sin(x).sum())(X)


def test_as_numpy_of_arrays_of_other_libraries(torch):
    class WithDlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    tensor = torch.ones(3, dtype=torch.float64)
    with_interface = SimpleNamespace(__array_interface__=X.__array_interface__)
    tree = ad.as_numpy({"a": tensor, "b": [with_interface, (WithDlpack(Y), 1.0)], "c": None})
    assert type(tree["a"]) is type(tree["b"][0]) is type(tree["b"][1][0]) is np.ndarray
    tensor += 1.0
    assert tree["a"].tolist() == [2.0] * 3  # the same memory
    np.testing.assert_array_equal(torch.from_dlpack(ad.grad(np.sum)(tree["b"][1][0])).numpy(), 1.0)
    with pytest.raises(ad.AutodiffError, match="requires a gradient"):
        ad.as_numpy([torch.ones(2, requires_grad=True)])
