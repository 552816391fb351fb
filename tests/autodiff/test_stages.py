"""The rooms of the compiler: no import hides in a function, and the core runs without those beside it."""

import ast
import subprocess
import sys

from docs import house
from docs.architecture import EXTRAS
from tests.house import stage

FILES = {name: path for name, path in house.files().items() if stage(name)}
# Imports inside functions, each with its reason: a circle could hide in one
INSIDE_FUNCTIONS = {
    ("gpt2.autodiff.interop", "torch"): "a package that need not be there, and is asked for by name",
    ("gpt2.autodiff.interop", "jax"): "as above",
    ("gpt2.autodiff.run.blas", "threadpoolctl.ThreadpoolController"): "the engine runs without it",
    (
        "gpt2.autodiff.emit.numexpr",
        "numexpr",
    ): "one of two backends for elementwise work, loaded when it is asked for",
}


def known_by(module):
    """The stages that a module's imports lead to, in functions or not."""
    found = {house.longest(i.target, FILES) for i in house.imports(FILES[module])}
    return {stage(name) for name in found if name} - {stage(module)}


def test_no_import_hides_in_a_function():
    """Both ways: none that is not in the table, and no row that is out of date."""
    found = {(name, i.target) for name, path in FILES.items() for i in house.imports(path) if i.inside}
    assert found == set(INSIDE_FUNCTIONS)


# ---- The core, and what stands beside it ---------------------------------------------------------------


def test_doors_lead_to_what_stands_beside():
    """The core's `beside("show.drawing")` names a module of a room beside it."""
    found = set()
    for module, path in FILES.items():
        if "doors" in known_by(module):
            calls = [n for n in ast.walk(house.parsed(path)) if isinstance(n, ast.Call)]
            names = [n.args[0].value for n in calls if isinstance(n.func, ast.Name) and n.func.id == "beside"]
            found |= {f"gpt2.autodiff.{name}" for name in names}
    assert found and found <= set(FILES) and {stage(name) for name in found} <= set(EXTRAS)


WITHOUT = """
import sys

class Closed:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("gpt2.autodiff.") and name.split(".")[2] in ROOMS:
            raise ImportError(f"{name} stands beside the core")

sys.meta_path.insert(0, Closed())
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


def test_the_core_runs_without_them():
    program = WITHOUT.replace("ROOMS", repr(sorted(EXTRAS)))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=house.ROOT)
    assert run.returncode == 0, run.stderr
