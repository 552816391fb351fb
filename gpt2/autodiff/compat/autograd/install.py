"""Has `import autograd` find these modules: for programs that must not be edited."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator

NAME = "autograd"
_HERE = __package__


def _load() -> None:
    """Import all modules of this package; those of SciPy's where SciPy is."""
    with_scipy = importlib.util.find_spec("scipy") is not None
    for found in pkgutil.walk_packages(sys.modules[_HERE].__path__, _HERE + "."):
        if not found.name.endswith("__main__") and (
            with_scipy or not found.name.startswith(_HERE + ".scipy")
        ):
            importlib.import_module(found.name)


def _theirs() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this context `import autograd` gives the modules of gpt2.autodiff.compat.autograd.

    What was imported under that name before is set aside, and is back afterwards.
    """
    _load()
    before = {name: sys.modules.pop(name) for name in _theirs()}
    ours = {
        name: module for name, module in sys.modules.items() if name == _HERE or name.startswith(_HERE + ".")
    }
    sys.modules.update({NAME + name[len(_HERE) :]: module for name, module in ours.items()})
    try:
        yield
    finally:
        for name in _theirs():
            del sys.modules[name]
        sys.modules.update(before)
