"""Detection of NumPy's BLAS, and its number of threads."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import threadpoolctl

from gpt2.autodiff.run import axpby, blas


@pytest.fixture
def loaded(monkeypatch):
    """loaded(*libraries) makes threadpoolctl report exactly these libraries."""

    def load(*libraries):
        blas.numpys_blas.cache_clear()
        controller = SimpleNamespace(select=lambda user_api: SimpleNamespace(lib_controllers=list(libraries)))
        monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: controller)

    yield load
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


def test_numpys_blas_is_told_apart_from_scipys(loaded):
    scipys, numpys = (library(f"/lib/{name}.libs/libscipy_openblas64_.so") for name in ("scipy", "numpy"))
    loaded(scipys, numpys)
    assert blas.limit_blas_threads(3) and (numpys.threads, scipys.threads) == ([3], [])


def test_mkl_threads_can_be_set_but_its_kernels_have_no_name(loaded):
    mkl = library("/opt/lib/libmkl_rt.so.2", "mkl")
    loaded(mkl)
    assert blas.limit_blas_threads(1) and mkl.threads == [1] and blas.blas_kernels.__wrapped__() == ""
    assert axpby._blas.__wrapped__("f") is None


def test_unknown_blas_is_left_alone(loaded):
    loaded()
    assert not blas.limit_blas_threads(1) and blas.blas_kernels.__wrapped__() == ""


def test_limit_blas_threads_sets_the_threads_of_this_blas():
    if blas.numpys_blas() is None:
        pytest.skip("threadpoolctl does not know the BLAS of this NumPy")
    before = blas.numpys_blas().num_threads
    for n in (2, 1):
        assert blas.limit_blas_threads(n) and blas.numpys_blas().num_threads == n
    blas.limit_blas_threads(before)


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
