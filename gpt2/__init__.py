"""GPT-2 in NumPy, with gradients written by hand or derived by a compiler."""

import importlib

__version__ = "0.1.0"

# Loaded on first use, so that `import gpt2` stays quick.
_EXPORTS = {"GPT2": "gpt2.model", "GPT2Config": "gpt2.model", "AdamW": "gpt2.optimizer"}

__all__ = ["GPT2", "AdamW", "GPT2Config", "__version__"]


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gpt2' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__():
    return sorted(set(globals()) | set(_EXPORTS))
