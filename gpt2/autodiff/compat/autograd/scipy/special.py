"""autograd.scipy.special: scipy.special with derivatives (gpt2.autodiff.scipy.special)."""

from typing import Any

from ....scipy import special as _module


def __getattr__(name: str) -> Any:
    return getattr(_module, name)


def __dir__() -> list[str]:
    return dir(_module)
