"""Imports beyond the contracts of pyproject.toml, and no unknown attributes of modules."""

import ast
import contextlib
import importlib.util
import subprocess
import sys
import types

import pytest

from docs import house
from tests.repository.house import part

ROOT = house.ROOT
FILES = house.files()

# Folders beside gpt2, and packages that it never needs
NEVER = {"train", "data", "bench", "docs", "tests", "torch", "jax", "autograd", "numba", "tensorflow", "cupy"}
# Part -> packages outside the standard library; numexpr and threadpoolctl are loaded on demand
THIRD_PARTY = {part: {"numpy"} for part in ("layers", "backward", "model")}
THIRD_PARTY["autodiff"] = {"numpy", "numexpr", "threadpoolctl"}

# File -> what it imports inside functions, where a cycle could hide. The compiler has a separate test.
IN_FUNCTIONS = {
    # NumPy reads the number of its threads when it is imported, and these choose that number first
    "train/program.py": {"gpt2.train.console"},
    "parallel/__init__.py": {f"gpt2.parallel.{name}" for name in ("mpi", "team", "processes", "shares")},
    "parallel/worker.py": {"gpt2.parallel.memory"},
    # take milliseconds, and few programs need them
    "errors.py": {"difflib"},
    "model/gpt2.py": {"html"},
    "model/own.py": {"gpt2.storage.download"},
    # optional packages, and modules of one operating system
    "parallel/mpi.py": {"mpi4py"},
    "commands/plot.py": {"matplotlib", "tensorboard"},
    "weights/pretrained.py": {"huggingface_hub"},
    "storage/lock.py": {"msvcrt", "fcntl"},
}
IN_INTEROP = {"torch", "jax"}  # gpt2.autodiff.interop imports them when one of its functions is called
WITH_SCIPY = ("gpt2.autodiff.scipy", "gpt2.autodiff.compat.autograd.scipy")  # loaded only where SciPy is used

# File of bench -> modules of the compiler that it imports besides the public names
BENCH_IMPORTS = {
    # run other people's programs
    "dependents/prelude.py": {"compat.autograd"},
    "programs/own.py": {"scipy.linalg"},
    # put timers into compiled programs, and around what makes and calls them
    "harness/first_process.py": {"pipeline", "run.split_matmul"},
    "roofline.py": {"emit.program"},
    "timeline.py": {"run.kernels", "run.split_matmul", "run.threads"},
    # names the processor as remembered times do
    "harness/machine.py": {"run.remembered"},
    # time single stages, or count what they make
    "studies/memory.py": {"graph", "ops.cost", "pipeline", "record.record"},
    "studies/optimise_first.py": {"derive.differentiate", "graph", "pipeline", "record.record"},
    "studies/scalar.py": {"derive.differentiate", "pipeline", "record.record"},
}


def roots(path):
    """Names of the packages that a file imports from, in functions too."""
    return {i.target.split(".")[0] for i in house.imports(path)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder, banned",
    [
        ("bench", {"tests", "docs"}),
        ("docs", {"tests"}),  # bench draws its pictures
        ("tests", {"bench"}),
        ("data", {"tests", "docs", "bench"}),
    ],
)
def test_folders_beside_gpt2_are_independent(folder, banned):
    """Benchmarks and pages need no tests, and only the tests of benchmarks need benchmarks."""
    # the first takes a list of environment variables from bench, the others arguments of ops from tests
    excepted = {ROOT / "tests/long/machines.py", ROOT / "docs/ops.py", ROOT / "docs/coverage.py"}
    for path in sorted({*(ROOT / folder).rglob("*.py")} - {*(ROOT / "tests/bench").rglob("*")} - excepted):
        assert not roots(path) & banned, path


def imports_by_file(folder, paths, selected):
    """File -> the modules of gpt2 and packages that it imports, where selected(name, in a function)."""
    rows = {}
    for path in paths:
        pairs = {
            (house.longest(i.target, FILES) or i.target.split(".")[0], i.inside) for i in house.imports(path)
        }
        if names := {name for name, inside in pairs if selected(name, inside)}:
            rows[path.relative_to(ROOT / folder).as_posix()] = names
    return rows


def test_benchmarks_use_only_listed_modules_of_the_compiler():
    """And every row of the list is needed."""
    expected = {file: {f"gpt2.autodiff.{name}" for name in names} for file, names in BENCH_IMPORTS.items()}
    paths = (ROOT / "bench").rglob("*.py")
    assert imports_by_file("bench", paths, lambda name, _: name.startswith("gpt2.autodiff.")) == expected


def test_imports_in_functions_are_listed():
    """And every row of the list is needed."""
    paths = [path for name, path in FILES.items() if part(name) != "autodiff"]
    assert imports_by_file("gpt2", paths, lambda _, in_function: in_function) == IN_FUNCTIONS


@pytest.mark.parametrize("module", sorted(FILES))
def test_third_party_imports(module):
    packages = roots(FILES[module]) - sys.stdlib_module_names - {"gpt2"}
    if module == "gpt2.autodiff.interop":
        packages -= IN_INTEROP
    assert not packages & NEVER
    if module.startswith(WITH_SCIPY):
        packages -= {"scipy"}
    if part(module) in THIRD_PARTY:
        assert packages <= THIRD_PARTY[part(module)]
    else:
        assert "scipy" not in packages


def test_import_gpt2_loads_no_numpy():
    """That keeps it quick; all names are there, and load what they need."""
    code = (
        "import sys, gpt2; assert 'numpy' not in sys.modules; gpt2.GPT2, gpt2.AdamW, gpt2.GPT2Config; "
        "assert 'GPT2' in dir(gpt2); assert not hasattr(gpt2, 'pear'); "
        "assert not {'difflib', 'html', 'gpt2.autodiff.graph'} & {*sys.modules}; "
        "[getattr(gpt2, name) for name in gpt2.__all__]; assert gpt2.__version__.count('.') == 2; "
        "print(gpt2.autodiff.grad(abs)(-2.0))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("-1.0\n", 0), run.stderr


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


@pytest.mark.parametrize("folder", OURS)
def test_attributes_of_own_modules_exist(folder):
    """Also on lines that no test reaches; mypy does not see those of gpt2.autodiff."""
    unknown = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for line, name in unknown_attributes(path):
            if (where, name.rpartition(".")[2]) not in MISSING:
                unknown.append(f"{where}:{line} {name}")
    assert not unknown, "\n".join(unknown)
