"""Which BLAS NumPy has, and its threads."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import threadpoolctl

from gpt2.autodiff.run import axpby, blas


@pytest.fixture
def loaded(monkeypatch):
    """loaded(*libraries): only these are in this process, as threadpoolctl tells it."""

    def stand_in(*libraries):
        blas.numpys_blas.cache_clear()
        found = SimpleNamespace(select=lambda user_api: SimpleNamespace(lib_controllers=list(libraries)))
        monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: found)

    yield stand_in
    blas.numpys_blas.cache_clear()


def library(path, api="openblas"):
    threads = []
    return SimpleNamespace(
        filepath=path,
        internal_api=api,
        architecture="Haswell",
        threads=threads,
        set_num_threads=threads.append,
    )


def test_a_numpy_function_is_distinguished_from_scipys(loaded):
    scipys, numpys = (library(f"/lib/{name}.libs/libscipy_openblas64_.so") for name in ("scipy", "numpy"))
    loaded(scipys, numpys)
    assert blas.limit_blas_threads(3) and (numpys.threads, scipys.threads) == ([3], [])


def test_mkl_has_its_threads_set_and_no_kernels_to_name(loaded):
    mkl = library("/opt/lib/libmkl_rt.so.2", "mkl")
    loaded(mkl)
    assert blas.limit_blas_threads(1) and mkl.threads == [1] and blas.blas_kernels.__wrapped__() == ""
    assert axpby._blas.__wrapped__("f") is None


def test_a_blas_that_is_not_known_is_left_alone(loaded):
    loaded()
    assert not blas.limit_blas_threads(1) and blas.blas_kernels.__wrapped__() == ""


def test_the_threads_of_this_blas_are_set():
    if blas.numpys_blas() is None:
        pytest.skip("threadpoolctl does not know the BLAS that NumPy has here")
    before = blas.numpys_blas().num_threads
    for n in (2, 1):
        assert blas.limit_blas_threads(n) and blas.numpys_blas().num_threads == n
    blas.limit_blas_threads(before)


def test_the_engine_runs_without_threadpoolctl():
    """On NumPy alone: BLAS then keeps the threads that it has."""
    program = (
        "import sys; sys.modules['threadpoolctl'] = None\n"
        "import numpy as np\nfrom gpt2 import autodiff as ad\n"
        "ad.set_threads(2)\n"
        "print(ad.limit_blas_threads(1), ad.grad(lambda w: np.sum((w @ w) ** 2))(np.ones((2, 2))).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False [[16.0, 16.0], [16.0, 16.0]]"
