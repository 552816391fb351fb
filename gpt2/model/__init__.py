"""GPT-2: its shape, its tensors, its layers at their places, and what is done with them."""

import importlib
from typing import TYPE_CHECKING, Any

from gpt2.model.presets import ACTIVATIONS, PRESETS, RELEASED

if TYPE_CHECKING:
    from gpt2.layers.layer import Parameter
    from gpt2.model.config import GPT2Config
    from gpt2.model.description import Block
    from gpt2.model.forward import loss_fn
    from gpt2.model.gpt2 import GPT2

__all__ = ["ACTIVATIONS", "GPT2", "PRESETS", "RELEASED", "Block", "GPT2Config", "Parameter", "loss_fn"]
_HOMES = {
    "GPT2": "gpt2.model.gpt2",
    "Block": "gpt2.model.description",
    "GPT2Config": "gpt2.model.config",
    "Parameter": "gpt2.layers.layer",
    "loss_fn": "gpt2.model.forward",
}


def __getattr__(name: str) -> Any:
    """Loaded on first use: the flags of commands read the configuration before NumPy is there."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gpt2.model' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
