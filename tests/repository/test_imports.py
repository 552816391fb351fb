"""Imports follow the contracts of pyproject.toml, make no circles, and name listed packages; the core of the
compiler runs alone; every attribute of a module exists.
"""

import ast
import contextlib
import importlib.util
import os
import re
import sys
import tomllib
import types

import pytest

from docs import architecture, house
from gpt2 import autodiff
from tests.support import small_run
from tests.support.slow import rest_slow

ROOT = house.ROOT
FILES = house.files()
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

# Folders beside gpt2, and packages that it never needs
NEVER = {"train", "data", "bench", "docs", "tests", "torch", "jax", "autograd", "numba", "tensorflow", "cupy"}
# Part -> packages outside the standard library; numexpr and threadpoolctl are loaded on demand
THIRD_PARTY = {part: {"numpy"} for part in ("layers", "backward", "model")}
THIRD_PARTY["autodiff"] = {"numpy", "numexpr", "threadpoolctl"}
IN_INTEROP = {"torch", "jax"}  # gpt2.autodiff.interop imports them when one of its functions is called
WITH_SCIPY = ("gpt2.autodiff.scipy", "gpt2.autodiff.compat.autograd.scipy")  # loaded only where SciPy is used


def lint(*flags):
    script = "from importlinter.cli import lint_imports_command as run; run()"
    return small_run.python(script, "--no-cache", *flags)


def test_rooms_import_what_the_contracts_allow(tmp_path):
    """By the contracts of pyproject.toml; with two layers exchanged, import-linter reports a broken one."""
    pytest.importorskip("importlinter")
    kept = lint()
    assert kept.returncode == 0 and "0 broken" in kept.stdout, kept.stdout + kept.stderr
    exchanged = {'"model",': '"commands",', '"commands",': '"model",'}
    config = tmp_path / "pyproject.toml"
    config.write_text(re.sub("|".join(exchanged), lambda line: exchanged[line[0]], PYPROJECT))
    broken = lint("--config", config)
    assert broken.returncode == 1 and "BROKEN" in broken.stdout


def test_there_is_no_circle():
    """Among files, wherever in their text they import one another."""
    assert house.floors(house.arrows())


def test_types_make_no_circle_either():
    graph = pytest.importorskip("grimp").build_graph("gpt2", cache_dir=None)
    assert house.floors({m: graph.find_modules_directly_imported_by(m) for m in graph.modules})


def test_page_and_contract_agree_on_the_core():
    contracts = tomllib.loads(PYPROJECT)["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c.get("containers") == ["gpt2.autodiff"]]
    rooms = [room for line in layers for room in line.split(" | ")]
    count = len(architecture.EXTRAS)  # these are above the core
    assert set(rooms[:count]) == set(architecture.EXTRAS)
    assert set(rooms[count:]) == {*architecture.STAGES}


def test_packages_are_those_listed():
    for module, path in FILES.items():
        packages = {i.target.split(".")[0] for i in house.imports(path)} - sys.stdlib_module_names - {"gpt2"}
        if module == "gpt2.autodiff.interop":
            packages -= IN_INTEROP
        assert not packages & NEVER, module
        if module.startswith(WITH_SCIPY):
            packages -= {"scipy"}
        part = module.split(".")[1] if "." in module else ""
        if part in THIRD_PARTY:
            assert packages <= THIRD_PARTY[part], module
        else:
            assert "scipy" not in packages, module


def test_only_public_names_of_the_compiler_are_used():
    public = {f"gpt2.autodiff.{name}" for name in autodiff.__all__}
    outside = [path for name, path in FILES.items() if not name.startswith("gpt2.autodiff")]
    for path in [*outside, ROOT / "train.py", *(ROOT / "data").glob("*.py")]:
        used = {i.target for i in house.imports(path)}
        used |= {f"gpt2.autodiff.{x}" for x in re.findall(r"\bad\.(\w+)", path.read_text(encoding="utf-8"))}
        assert {name for name in used if name.startswith("gpt2.autodiff.")} <= public, path


def test_tests_and_pages_load_without_the_peers():
    """Few have what [peers] brings: it is imported in functions, in a try, or with importorskip."""
    peers = tomllib.loads(PYPROJECT)["project"]["optional-dependencies"]["peers"]
    packages = "|".join(re.match(r"\w+", requirement)[0] for requirement in peers)
    for path in [*house.files("tests").values(), *house.files("docs").values()]:
        for statement in map(ast.unparse, house.parsed(path).body):
            assert not re.match(rf"(import|from) ({packages})\b", statement), (path, statement)


def test_import_gpt2_loads_no_numpy():
    """That keeps it quick; all names are there, and load what they need."""
    code = (
        "import sys, gpt2; assert 'numpy' not in sys.modules; gpt2.GPT2, gpt2.AdamW, gpt2.GPT2Config; "
        "assert 'GPT2' in dir(gpt2); assert not hasattr(gpt2, 'pear'); "
        "assert not {'difflib', 'html', 'gpt2.autodiff.graph'} & {*sys.modules}; "
        "[getattr(gpt2, name) for name in gpt2.__all__]; assert gpt2.__version__.count('.') == 2; "
        "print(gpt2.autodiff.grad(abs)(-2.0))"
    )
    run = small_run.python(code)
    assert (run.stdout, run.returncode) == ("-1.0\n", 0), run.stderr


EACH_FIRST = """
import importlib, os, sys
import numpy

for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} cannot be the first module of gpt2 that is imported")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")
def test_a_module_can_be_imported_first():
    """Every 20th module, each in a process in which nothing of gpt2 is loaded."""
    run = small_run.python(EACH_FIRST, *list(FILES)[7::20])
    assert run.returncode == 0, run.stderr


FORK_DURING_AN_IMPORT = """
import os, signal, sys, threading, time
from gpt2 import autodiff as ad

begun = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "gpt2.autodiff.passes.parts" and not begun.is_set():
            begun.set()
            time.sleep(0.3)  # while other modules of the compiler wait for this one

sys.meta_path.insert(0, Slow())
importing = threading.Thread(target=lambda: ad.grad(abs)(2.0))
importing.start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(ad.grad(abs)(2.0) != 1.0)
importing.join()
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")
def test_a_fork_waits_for_the_imports_of_other_threads():
    run = small_run.python(FORK_DURING_AN_IMPORT)
    assert run.returncode == 0, run.stderr


# ---- The core without the packages beside it -------------------------------------------------------------

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
    run = small_run.python(CORE_ALONE.replace("EXTRAS", repr(sorted(architecture.EXTRAS))))
    assert run.returncode == 0, run.stderr


def test_core_loads_only_optional_packages_by_name():
    """`beside("show.drawing")` names a module that exists and is not part of the core."""
    calls = [
        node
        for module, path in FILES.items()
        if module.startswith("gpt2.autodiff.")
        for node in ast.walk(house.parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "beside"
    ]
    names = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert names and {f"gpt2.autodiff.{name}" for name in names} <= set(FILES)
    assert {name.partition(".")[0] for name in names} <= set(architecture.EXTRAS)


# ---- Attributes of modules ---------------------------------------------------------------------------------

OURS = ("gpt2", "bench", "tests", "docs")
MISSING = {  # on purpose, or set while a test runs
    ("tests/support/faults.py", "open"),
    ("tests/autodiff/transforms/test_transforms.py", "jacobain"),
    ("tests/autodiff/transforms/test_transforms.py", "jit"),
    ("tests/autodiff/compat/test_autograd.py", "lfilter"),  # a name of SciPy's
}


def modules_named(tree, package):
    """Name in this file -> the module of this project that it stands for."""
    modules = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        source = "." * node.level + (node.module or "")
        source = importlib.util.resolve_name(source, package) if node.level else source
        if source.partition(".")[0] in OURS:
            for alias in node.names:
                with contextlib.suppress(ImportError):  # of a module, or of a package that is not installed
                    value = getattr(importlib.import_module(source), alias.name, None)
                    if value is None:
                        value = importlib.import_module(f"{source}.{alias.name}")
                    if isinstance(value, types.ModuleType):
                        modules[alias.asname or alias.name] = value
    return modules


def unknown_attributes(path):
    """(line, `module.name`) in a file where the module, one of this project, has no such name."""
    tree = house.parsed(path)
    modules = modules_named(tree, ".".join(path.relative_to(ROOT).parent.parts))
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = None if node.value.id in bound else modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                yield node.lineno, f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("folder", rest_slow(OURS))
def test_attributes_of_own_modules_exist(folder):
    """Also on lines that no test reaches; mypy does not see those of gpt2.autodiff."""
    unknown = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for line, name in unknown_attributes(path):
            if (where, name.rpartition(".")[2]) not in MISSING:
                unknown.append(f"{where}:{line} {name}")
    assert not unknown, "\n".join(unknown)
