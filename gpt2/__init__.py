"""GPT-2 in NumPy, with gradients written by hand or derived by a compiler.

    GPT2, GPT2Config          the model and its shape
    AdamW, Muon               the optimizers
    load, load_tokenizer      weights and tokenizer by name or path: "gpt2", a run, a folder, a file
    save                      a model to a file or folder, in the format that its name says
    lora, merged              a model with low-rank adapters, which alone are trained; with them merged
    generate                  token ids that continue a prompt, one at a time
    autodiff                  the compiler by itself: grad, jvp, hessian, check_backward, ...
    train                     what train.py does, in your own loop: Settings, steps, train

docs/examples.md shows each of them at work.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2 import autodiff, train
    from gpt2.library import load, load_tokenizer, lora, merged, save
    from gpt2.model.config import GPT2Config
    from gpt2.model.gpt2 import GPT2
    from gpt2.model.muon import Muon
    from gpt2.model.optimizer import AdamW
    from gpt2.sampling import generate

__version__ = "0.1.0"

# Loaded on first use, so that `import gpt2` takes milliseconds, and train.py can set the number of threads
# before NumPy is loaded. None: the module of this name itself.
_EXPORTS = {
    "GPT2": "gpt2.model.gpt2",
    "GPT2Config": "gpt2.model.config",
    "AdamW": "gpt2.model.optimizer",
    "Muon": "gpt2.model.muon",
    "load": "gpt2.library",
    "load_tokenizer": "gpt2.library",
    "lora": "gpt2.library",
    "merged": "gpt2.library",
    "save": "gpt2.library",
    "generate": "gpt2.sampling",
    "autodiff": None,
    "train": None,
}

__all__ = [
    "GPT2",
    "AdamW",
    "GPT2Config",
    "Muon",
    "__version__",
    "autodiff",
    "generate",
    "load",
    "load_tokenizer",
    "lora",
    "merged",
    "save",
    "train",
]


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gpt2' has no attribute {name!r}")
    home = _EXPORTS[name]
    if home is None:
        return importlib.import_module(f"gpt2.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
