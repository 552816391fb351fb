"""Imports of the compiler's packages: none inside a function, and the core runs without the optional ones."""

import ast
import subprocess
import sys

from docs import house
from docs.architecture import EXTRAS
from tests.repository.house import stage

FILES = {name: path for name, path in house.files().items() if stage(name)}
# Optional packages, imported where they are used; any other import inside a function could hide a cycle
INSIDE_FUNCTIONS = {
    ("gpt2.autodiff.interop", "torch"),
    ("gpt2.autodiff.interop", "jax"),
    ("gpt2.autodiff.run.blas", "threadpoolctl.ThreadpoolController"),
    ("gpt2.autodiff.emit.numexpr", "numexpr"),
}


def test_imports_inside_functions_are_those_listed():
    inside = {(name, i.target) for name, path in FILES.items() for i in house.imports(path) if i.inside}
    assert inside == INSIDE_FUNCTIONS


# ---- The core without the packages beside it -------------------------------------------------------------


def imported_stages(module):
    """The stages that a module imports, in functions or not."""
    modules = {house.longest(i.target, FILES) for i in house.imports(FILES[module])}
    return {stage(name) for name in modules if name} - {stage(module)}


def test_core_loads_only_optional_packages_by_name():
    """`beside("show.drawing")` names a module that exists and is not part of the core."""
    loaded = set()
    for module, path in FILES.items():
        if "doors" in imported_stages(module):
            calls = [n for n in ast.walk(house.parsed(path)) if isinstance(n, ast.Call)]
            names = [n.args[0].value for n in calls if isinstance(n.func, ast.Name) and n.func.id == "beside"]
            loaded |= {f"gpt2.autodiff.{name}" for name in names}
    assert loaded and loaded <= set(FILES) and {stage(name) for name in loaded} <= set(EXTRAS)


CORE_ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("gpt2.autodiff.") and name.split(".")[2] in EXTRAS:
            raise ImportError(f"{name} is not part of the core")

sys.meta_path.insert(0, Blocker())
import numpy as np
from gpt2 import autodiff as ad

A = np.eye(3) + 0.1

def f(x):
    y = np.tanh(A @ x)
    return np.sum(np.where(y > 0, y * y, np.exp(y))) + np.linalg.norm(np.linalg.solve(A, x))

x = np.array([0.5, -1.0, 2.0])
print(ad.value_and_grad(f)(x), ad.hessian(f)(x), ad.jvp(f, (x,), (x,)), ad.vmap(ad.grad(f))(np.stack([x, x])))
print(ad.scan(lambda c, v: (c + v, c), 0.0, x), ad.root(lambda v: v * v - 2.0, 1.0))
"""


def test_core_runs_alone():
    program = CORE_ALONE.replace("EXTRAS", repr(sorted(EXTRAS)))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=house.ROOT)
    assert run.returncode == 0, run.stderr
