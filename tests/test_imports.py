"""What the parts of gpt2 import besides each other: little. pyproject.toml says which may import which."""

import ast
import contextlib
import importlib.util
import subprocess
import sys
import types

import pytest

from docs import house
from tests.house import part

ROOT = house.ROOT
FILES = house.files()

# Imports inside functions, each with its reason: a circle could hide in one. autodiff has a separate test.
NUMPY_LATER = "NumPy reads the number of its threads when it is imported, and what decides on it comes first"
OPTIONAL = "a package that need not be there"
PLATFORM = "a module of one operating system"
SELDOM = "takes milliseconds of the first use of gpt2.GPT2, and few programs come to it"
INSIDE_FUNCTIONS = {
    ("train/program.py", "gpt2.train.console"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.one"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.mpi"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.team"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.processes"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.shares"): NUMPY_LATER,
    ("parallel/worker.py", "gpt2.parallel.memory"): NUMPY_LATER,
    ("parallel/worker.py", "gpt2.parallel.pipes"): NUMPY_LATER,
    ("model/gpt2.py", "html"): SELDOM,
    ("model/own.py", "gpt2.storage.download"): SELDOM,
    ("parallel/mpi.py", "mpi4py"): OPTIONAL,
    ("commands/plot.py", "matplotlib"): OPTIONAL,
    ("commands/plot.py", "tensorboard"): OPTIONAL,
    ("weights/huggingface.py", "safetensors"): OPTIONAL,
    ("weights/pretrained.py", "huggingface_hub"): OPTIONAL,
    ("storage/lock.py", "msvcrt"): PLATFORM,
    ("storage/lock.py", "fcntl"): PLATFORM,
}
# Outside the standard library. numexpr and threadpoolctl are loaded on demand only.
THIRD_PARTY = {
    "layers": {"numpy"},
    "autodiff": {"numpy", "numexpr", "threadpoolctl"},
    "backward": {"numpy"},
    "model": {"numpy"},
}
NEVER = {"torch", "jax", "autograd", "numba", "tensorflow", "cupy"}
ON_CALL = {
    "gpt2.autodiff.interop": {"torch", "jax"}
}  # its functions are about these packages, and import them
# Loaded where SciPy is, and a function of it is differentiated: the rest of the engine runs without it
WITH_SCIPY = (
    "gpt2.autodiff.compat.autograd.scipy",
    "gpt2.autodiff.scipy",
    "gpt2.autodiff.scipy.rules.distributions",
    "gpt2.autodiff.scipy.rules.special",
    "gpt2.autodiff.scipy.rules.matrix_functions",
    "gpt2.autodiff.scipy.rules.sparse_matrices",
)

# What benchmarks take from the compiler besides its public names: they measure single stages of it
STAGE = "times or counts what one stage makes"
BENCH_IMPORTS = {
    ("dependents/prelude.py", "gpt2.autodiff.compat.autograd"): "is what programs of others are run under",
    ("harness/first_process.py", "gpt2.autodiff.pipeline"): "puts a timer around the making of programs",
    ("harness/first_process.py", "gpt2.autodiff.run.split_matmul"): "puts a timer around trials of cuts",
    ("harness/machine.py", "gpt2.autodiff.run.remembered"): "names the processor as remembered times do",
    ("programs/own.py", "gpt2.autodiff.scipy.linalg"): "is what users of SciPy import",
    ("statements.py", "gpt2.autodiff.emit.program"): "puts a look at the clock into emitted source",
    ("timeline.py", "gpt2.autodiff.run.kernels"): "puts a timer around what programs call",
    ("timeline.py", "gpt2.autodiff.run.split_matmul"): "as above",
    ("timeline.py", "gpt2.autodiff.run.threads"): "as above",
    ("studies/memory.py", "gpt2.autodiff.graph"): STAGE,
    ("studies/memory.py", "gpt2.autodiff.ops.cost"): STAGE,
    ("studies/memory.py", "gpt2.autodiff.pipeline"): STAGE,
    ("studies/memory.py", "gpt2.autodiff.record.record"): STAGE,
    ("studies/optimise_first.py", "gpt2.autodiff.derive.differentiate"): STAGE,
    ("studies/optimise_first.py", "gpt2.autodiff.graph"): STAGE,
    ("studies/optimise_first.py", "gpt2.autodiff.pipeline"): STAGE,
    ("studies/optimise_first.py", "gpt2.autodiff.record.record"): STAGE,
    ("studies/scalar.py", "gpt2.autodiff.derive.differentiate"): STAGE,
    ("studies/scalar.py", "gpt2.autodiff.pipeline"): STAGE,
    ("studies/scalar.py", "gpt2.autodiff.record.record"): STAGE,
}

CASES = pytest.mark.parametrize("module", sorted(FILES))


def targets(module):
    """Dotted names of all that a module imports, in functions or not."""
    return [i.target for i in house.imports(FILES[module])]


@CASES
def test_nothing_in_gpt2_knows_what_stands_beside_it(module):
    roots = {name.split(".")[0] for name in targets(module)}
    assert not roots & {"train", "data", "bench", "docs", "tests"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder, apart",
    [
        ("bench", {"tests", "docs"}),
        ("docs", {"tests"}),  # bench draws its pictures
        ("tests", {"bench"}),
        ("data", {"tests", "docs", "bench"}),
    ],
)
def test_what_stands_beside_gpt2_stays_apart(folder, apart):
    """Benchmarks and pages need no tests, and only the tests of benchmarks need benchmarks."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        # machines.py: both run programs as on other processors, from one list of variables
        if path.is_relative_to(ROOT / "tests" / "bench") or path == ROOT / "tests" / "long" / "machines.py":
            continue
        # the pages of the ops show the arguments that the tests try
        shows_samples = path in (ROOT / "docs" / "ops.py", ROOT / "docs" / "coverage.py")
        banned = apart - {"tests"} if shows_samples else apart
        found = {i.target.split(".")[0] for i in house.imports(path)} & banned
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_benchmarks_take_public_names_of_the_compiler():
    """And of its rooms only what is listed, with the reason; no row is out of date."""
    found = {
        (path.relative_to(ROOT / "bench").as_posix(), room)
        for path in (ROOT / "bench").rglob("*.py")
        for i in house.imports(path)
        if (room := house.longest(i.target, FILES) or "").startswith("gpt2.autodiff.")
    }
    assert found == set(BENCH_IMPORTS)


def test_no_import_hides_in_a_function():
    """Both ways: none that is not in the table, and no row that is out of date. The compiler's has a test of
    its own."""
    found = {
        (path.relative_to(ROOT / "gpt2").as_posix(), house.longest(i.target, FILES) or i.target.split(".")[0])
        for name, path in FILES.items()
        if part(name) != "autodiff"
        for i in house.imports(path)
        if i.inside
    }
    assert found == set(INSIDE_FUNCTIONS)


@CASES
def test_third_parties(module):
    roots = {name.split(".")[0] for name in targets(module)} - sys.stdlib_module_names - {"gpt2"}
    roots -= ON_CALL.get(module, set())
    assert not roots & NEVER
    if module.startswith(WITH_SCIPY):
        roots -= {"scipy"}
    if part(module) in THIRD_PARTY:
        assert roots <= THIRD_PARTY[part(module)]
    else:
        assert "scipy" not in roots


def test_import_gpt2_loads_next_to_nothing():
    """Not even NumPy: that is what keeps it quick. The names are there all the same."""
    code = (
        "import sys, gpt2; assert 'numpy' not in sys.modules; gpt2.GPT2, gpt2.AdamW, gpt2.GPT2Config; "
        "assert 'GPT2' in dir(gpt2); assert not hasattr(gpt2, 'pear'); print(gpt2.__version__); "
        "assert not {'difflib', 'html', 'gpt2.autodiff.graph'} & {*sys.modules}"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(".") == 2


# ---- Names in other modules --------------------------------------------------------------------------------

OURS = ("gpt2", "bench", "tests", "docs")
# Attributes that are missing on purpose, or set while a test runs
MISSING = {("tests/support/faults.py", "open"), ("tests/autodiff/transforms/test_transforms.py", "jacobain")}
MISSING |= {("tests/autodiff/transforms/test_transforms.py", "jit")}
MISSING |= {("tests/autodiff/compat/test_autograd.py", "lfilter")}  # a name of SciPy's


def modules_named(tree, package):
    """Name in this file -> the module of ours that it stands for."""
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
    """`module.name` in the file at `path` where the module, one of ours, has no such name."""
    tree = house.parsed(path)
    parts = path.relative_to(ROOT).with_suffix("").parts
    modules = modules_named(tree, ".".join(parts[:-1]))
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id not in bound
        ):
            module = modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                yield node.lineno, f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("folder", OURS)
def test_names_of_other_modules_exist(folder):
    """mypy does not see them in gpt2.autodiff, and a line that no test reaches would be found by a user."""
    unknown = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for line, name in unknown_attributes(path):
            if (where, name.rpartition(".")[2]) not in MISSING:
                unknown.append(f"{where}:{line} {name}")
    assert not unknown, "\n".join(unknown)
