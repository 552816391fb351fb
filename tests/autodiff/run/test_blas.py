"""NumPy's BLAS: its detection, its number of threads, and its axpby."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

from gpt2 import autodiff as ad
from gpt2.autodiff.run import blas


@pytest.fixture
def loaded(monkeypatch):
    """loaded(*libraries) makes threadpoolctl report exactly these libraries."""

    def forget():
        blas.numpys_blas.cache_clear()
        blas.blas_threads.cache_clear()

    def load(*libraries):
        forget()
        controller = SimpleNamespace(select=lambda user_api: SimpleNamespace(lib_controllers=list(libraries)))
        monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: controller)

    yield load
    forget()


def library(path, api="openblas"):
    threads = []
    return SimpleNamespace(
        filepath=path,
        internal_api=api,
        architecture="Haswell",
        num_threads=4,
        threads=threads,
        set_num_threads=threads.append,
    )


def test_numpys_blas_is_told_apart_from_scipys(loaded):
    scipys, numpys = (library(f"/lib/{name}.libs/libscipy_openblas64_.so") for name in ("scipy", "numpy"))
    loaded(scipys, numpys)
    assert blas.limit_blas_threads(3) and (numpys.threads, scipys.threads) == ([3], [])


def test_mkl_threads_can_be_set_but_its_kernels_have_no_name(loaded):
    mkl = library("/opt/lib/libmkl_rt.so.2", "mkl")
    loaded(mkl)
    assert blas.limit_blas_threads(1) and mkl.threads == [1] and blas.blas_kernels.__wrapped__() == ""
    assert blas._axpby_of.__wrapped__("f") is None


def test_unknown_blas_is_left_alone(loaded):
    loaded()
    assert not blas.limit_blas_threads(1) and blas.blas_kernels.__wrapped__() == ""


def test_limit_blas_threads_sets_the_threads_of_this_blas():
    if blas.numpys_blas() is None:
        pytest.skip("threadpoolctl does not know the BLAS of this NumPy")
    for n in (2, 1):
        assert blas.limit_blas_threads(n) and blas.numpys_blas().num_threads == n


@pytest.mark.parametrize(("arguments", "threads"), [((2,), 1), ((1,), 1), ((1, 3), 3), ((2, "restore"), 4)])
def test_set_threads_sets_those_of_blas(loaded, arguments, threads):
    numpys = library("/lib/numpy.libs/libscipy_openblas64_.so")
    loaded(numpys)
    ad.set_threads(*arguments)
    assert (ad.get_threads(), numpys.threads[-1]) == (arguments[0], threads)


@pytest.mark.parametrize("arguments", [(0,), (1, 0), (1, "own")])
def test_wrong_numbers_of_threads_are_refused(arguments):
    with pytest.raises(ValueError, match="^set_threads: (n|blas) is .*, expected at least 1"):
        ad.set_threads(*arguments)


def test_compiler_runs_without_threadpoolctl():
    """BLAS then keeps its number of threads."""
    program = (
        "import sys; sys.modules['threadpoolctl'] = None\n"
        "import numpy as np\nfrom gpt2 import autodiff as ad\n"
        "ad.set_threads(2)\n"
        "print(ad.limit_blas_threads(1), ad.grad(lambda w: np.sum((w @ w) ** 2))(np.ones((2, 2))).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False [[16.0, 16.0], [16.0, 16.0]]"


MODELS = """
from gpt2 import GPT2, GPT2Config, autodiff as ad, machine
from gpt2.autodiff.run.blas import numpys_blas

def threads():
    return ad.get_threads(), numpys_blas().num_threads

machine.cores = lambda: 3
config = GPT2Config(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4)
{first}
GPT2(config, compile=False)
before = threads()
GPT2(config)
print(*before, *threads())
"""


@pytest.mark.skipif(blas.numpys_blas() is None, reason="threadpoolctl does not know the BLAS of this NumPy")
@pytest.mark.parametrize(
    ("variable", "first", "expected"),
    [
        ("2", "", [1, 2, 2, 1]),  # a thread for each of BLAS's, which itself has one
        ("1", "", [1, 1, 1, 1]),
        ("2", "ad.set_threads(1)", [1, 1, 1, 1]),
        ("2", "ad.set_threads(1, blas='restore')", [1, 2, 1, 2]),
        ("2", "GPT2(config); ad.set_threads(1, blas='restore')", [1, 2, 1, 2]),
    ],
)
def test_first_compiled_model_sets_the_threads(variable, first, expected):
    """Only where the program has not; one that runs as written leaves them."""
    environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), variable)
    command = [sys.executable, "-c", MODELS.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert [*map(int, done.stdout.split())] == expected


# ---- axpby: against NumPy, with BLAS and without, whole and in parts ---------------------------------------


@pytest.mark.numeric
@pytest.mark.parametrize("by_blas", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_axpby_against_float64(dtype, by_blas, monkeypatch):
    if not by_blas:
        monkeypatch.setattr(blas, "_axpby_of", lambda char: None)
    x, y = np.random.default_rng(0).standard_normal((2, 1001)).astype(dtype)
    x.flags.writeable = False
    kept, expected = x.copy(), -0.3 * x.astype("f8") + 0.9 * y.astype("f8")
    ad.axpby(-0.3, x, 0.9, y, np.empty_like(y))
    # the rounding of each factor, and two roundings of terms smaller than 4
    np.testing.assert_allclose(y, expected, rtol=0, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(x, kept)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_axpby_in_parts_has_the_same_bits(dtype):
    x, y = np.random.default_rng(1).standard_normal((2, 400)).astype(dtype)
    whole, parts, scratch = y.copy(), y.copy(), np.empty_like(y)
    ad.axpby(0.1, x, 0.7, whole, scratch)
    for start, stop in ((0, 0), (0, 1), (1, 50), (50, 57), (57, 400)):
        ad.axpby(0.1, x[start:stop], 0.7, parts[start:stop], scratch[start:stop])
    assert parts.tobytes() == whole.tobytes()


def test_blas_whose_rounding_depends_on_position_is_not_used():
    def uneven(n, alpha, x, _, beta, y, __):
        numbers = (ctypes.c_double * n).from_address(y)
        for i in range(n):
            numbers[i] = numbers[i] * beta + i % 8 * 1e-16

    assert not blas._is_even(uneven, "d")
