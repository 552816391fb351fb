"""Training: the program behind train.py, and the same for your own program or notebook.

    from gpt2.train import Settings, steps

    for step in steps(Settings(data="my.txt", steps=200)):
        print(step.number, step.loss, step.val_loss)

    Settings, from_preset        everything that decides what a run computes; by name: from_preset("llm.c")
    steps(settings)              an iterator: a Step after every optimizer step
    train(settings, callbacks)   all steps at once, with functions that are called after each; returns the Run
    opened(settings)             a context with the Run itself, for steps(run) or a loop of another kind
    resumed_settings(folder)     the settings with which `train(..., resume=True)` goes on with a run
    Step, Run, Reporter          what was done, what is trained, and what reports it

How it is put together, in the order of a run:

    flags.py, settings.py     a frozen dataclass as command line and TOML file; the settings of a run
    program.py, console.py    the program: before NumPy is imported, and after
    kernels.py, products.py   which kernels of BLAS it is to load, and what is timed to see
    recipe.py                 presets, and the shape of weights to start from
    resolve.py, build.py      what the settings come to here: the model, the optimizer and the team of a run
    run.py                    its steps and its files
    session.py, loop.py       opening a run; validations, samples, steps and checkpoints in their order
    reporters.py, llmc.py     whose lines are printed; step.py, flops.py and cost.py help them
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2.train.recipe import from_preset
    from gpt2.train.reporters import Reporter
    from gpt2.train.run import Run
    from gpt2.train.session import opened, steps, train
    from gpt2.train.settings import Settings, resumed_settings
    from gpt2.train.step import Step

# Loaded on first use: the program sets the number of threads before NumPy is loaded, and lies in this package
_EXPORTS = {
    "Reporter": "gpt2.train.reporters",
    "Run": "gpt2.train.run",
    "Settings": "gpt2.train.settings",
    "Step": "gpt2.train.step",
    "from_preset": "gpt2.train.recipe",
    "opened": "gpt2.train.session",
    "resumed_settings": "gpt2.train.settings",
    "steps": "gpt2.train.session",
    "train": "gpt2.train.session",
}

__all__ = [
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
