"""Training: the program behind train.py, and the same for your own program or notebook.

from gpt2.train import Settings, steps

for step in steps(Settings(data="my.txt", steps=200)):
    print(step.number, step.loss, step.val_loss)

Settings, from_preset        all settings of a run; those of a preset: from_preset("llm.c")
steps(settings)              an iterator: a Step after every optimizer step
train(settings, callbacks)   all steps at once, with functions that are called after each; returns the Run
opened(settings)             a context with the Run itself, for steps(run) or a loop of another kind
resumed_settings(folder)     the settings to resume a run with `train(..., resume=True)`
Step, Run                    the result of a step, and a run in its folder
Reporter, ProgressReporter   the output of a run: none; a progress bar and the curve
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2.train.recipe import from_preset
    from gpt2.train.reporters import ProgressReporter, Reporter
    from gpt2.train.run import Run, Step
    from gpt2.train.session import opened, steps, train
    from gpt2.train.settings import Settings, resumed_settings

# Loaded on first use: the program in this package sets the number of threads before NumPy is loaded
_EXPORTS = {
    "ProgressReporter": "gpt2.train.reporters",
    "Reporter": "gpt2.train.reporters",
    "Run": "gpt2.train.run",
    "Settings": "gpt2.train.settings",
    "Step": "gpt2.train.run",
    "from_preset": "gpt2.train.recipe",
    "opened": "gpt2.train.session",
    "resumed_settings": "gpt2.train.settings",
    "steps": "gpt2.train.session",
    "train": "gpt2.train.session",
}

__all__ = [
    "ProgressReporter",
    "Reporter",
    "Run",
    "Settings",
    "Step",
    "from_preset",
    "opened",
    "resumed_settings",
    "steps",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gpt2.train' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
