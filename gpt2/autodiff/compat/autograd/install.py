"""Makes `import autograd` import these modules, for programs that must not be edited."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator

NAME = "autograd"
_HERE = __package__


def _theirs() -> list[str]:
    return [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this context `import autograd` imports the modules of gpt2.autodiff.compat.autograd.

    Modules that were imported under that name before are restored afterwards.
    """
    left_out = "__main__" if importlib.util.find_spec("scipy") else ("__main__", "scipy")
    for module in pkgutil.walk_packages(sys.modules[_HERE].__path__, _HERE + "."):
        if not module.name.removeprefix(_HERE + ".").startswith(left_out):
            importlib.import_module(module.name)
    before = {name: sys.modules.pop(name) for name in _theirs()}
    ours = {k: module for k, module in sys.modules.items() if k == _HERE or k.startswith(_HERE + ".")}
    sys.modules.update({NAME + name[len(_HERE) :]: module for name, module in ours.items()})
    try:
        yield
    finally:
        for name in _theirs():
            del sys.modules[name]
        sys.modules.update(before)
