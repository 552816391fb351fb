"""autograd.scipy.linalg: scipy.linalg with derivatives (gpt2.autodiff.scipy.linalg)."""

from typing import Any

from ....scipy import linalg as _module


def __getattr__(name: str) -> Any:
    return getattr(_module, name)


def __dir__() -> list[str]:
    return dir(_module)
