"""Imports run one way. Read from the source, so that an import inside a function counts as well."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each part of gpt2 may know of the others, from the ground up: no part knows one that stands below it.
MAY_IMPORT = {
    "output": set(),
    "errors": {"output"},
    "layers": set(),
    "autodiff": set(),
    "storage": {"errors"},
    "data": {"errors", "storage"},
    "backward": {"layers", "autodiff", "errors"},
    # The model is layers. Of the seam it knows that a word such as "auto" names a table of them.
    "model": {"layers", "backward", "errors"},
    "optimizer": {"autodiff"},  # its threads alone: there is one pool
    "parallel": {"model", "optimizer", "autodiff", "errors"},  # of autodiff the threads alone
    "weights": {"data", "errors", "model", "storage"},
    "sample": {"data", "errors", "layers", "model", "weights"},
    "train": {
        "autodiff",  # its threads and what it has measured
        "data",
        "errors",
        "model",
        "optimizer",
        "output",
        "parallel",
        "sample",
        "storage",
        "weights",
    },
    # Commands, and the library's functions
    "certificate": {"autodiff", "backward", "errors", "layers", "model"},
    "convert": {"data", "errors", "model", "storage", "weights"},
    "evaluate": {"data", "errors", "layers", "model", "weights"},
    "explain": {"autodiff", "certificate", "errors", "layers", "storage"},
    "plot": {"errors", "storage"},
    "library": {"convert", "data", "model", "weights"},
    "__main__": {"errors"},  # it starts commands by name
}
# Imports inside functions, each with its reason: a circle could hide in one. autodiff has a test of its own.
NUMPY_LATER = "NumPy reads the number of its threads when it is imported, and what decides on it comes first"
OPTIONAL = "a package that need not be there"
PLATFORM = "a module of one operating system"
INSIDE_FUNCTIONS = {
    ("train/program.py", "gpt2.train"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.one"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.mpi"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.team"): NUMPY_LATER,
    ("parallel/__init__.py", "gpt2.parallel.processes"): NUMPY_LATER,
    ("parallel/worker.py", "gpt2.parallel.memory"): NUMPY_LATER,
    ("parallel/worker.py", "gpt2.parallel.pipes"): NUMPY_LATER,
    ("parallel/mpi.py", "mpi4py"): OPTIONAL,
    ("plot.py", "matplotlib.figure"): OPTIONAL,
    ("plot.py", "tensorboard.compat.proto.event_pb2"): OPTIONAL,
    ("plot.py", "tensorboard.compat.proto.summary_pb2"): OPTIONAL,
    ("plot.py", "tensorboard.summary.writer.event_file_writer"): OPTIONAL,
    ("weights/huggingface.py", "safetensors.numpy"): OPTIONAL,
    ("weights/pretrained.py", "huggingface_hub"): OPTIONAL,
    ("storage/lock.py", "msvcrt"): PLATFORM,
    ("storage/lock.py", "fcntl"): PLATFORM,
}
# Outside the standard library. numexpr is loaded on demand only.
THIRD_PARTY = {
    "layers": {"numpy"},
    "autodiff": {"numpy", "numexpr"},
    "backward": {"numpy"},
    "model": {"numpy"},
    "optimizer": {"numpy"},
}
NEVER = {"torch", "jax", "autograd", "numba", "tensorflow", "cupy", "scipy"}


def imports(path):
    """Dotted names of the modules that a file imports, relative imports made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            # `from gpt2 import model` and `from gpt2.model import GPT2` both name gpt2.model.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports_inside_functions(path):
    """The modules that functions of a file import; gpt2.autodiff stands for all modules of the compiler."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield "gpt2.autodiff" if node.module.startswith("gpt2.autodiff") else node.module


def part(module):
    """The part of gpt2 that a dotted name belongs to, or None."""
    names = module.split(".")
    return names[1] if names[0] == "gpt2" and len(names) > 1 else None


def sources():
    """(part, path) of every file of gpt2; gpt2/__init__.py itself is the door to all of them."""
    for path in sorted((ROOT / "gpt2").rglob("*.py")):
        names = path.relative_to(ROOT / "gpt2").parts
        if names != ("__init__.py",):
            yield names[0].removesuffix(".py"), path


SOURCES = pytest.mark.parametrize(
    ("owner", "path"), [pytest.param(o, p, id=p.relative_to(ROOT).as_posix()) for o, p in sources()]
)


def test_the_reader_reads():
    """What the other tests rely on."""
    found = set(imports(ROOT / "gpt2" / "model.py"))
    assert {"math", "numpy", "gpt2.backward", "gpt2.layers.LAYERS"} <= found
    assert part("gpt2.layers.LAYERS") == "layers" and part("numpy") is None
    inside = set(imports_inside_functions(ROOT / "gpt2" / "weights" / "pretrained.py"))
    assert inside == {"huggingface_hub"}


def test_every_part_has_a_row():
    assert set(MAY_IMPORT) == {owner for owner, _ in sources()}


def test_no_part_knows_one_that_stands_below_it():
    """So there is no circle of parts, and no arrow back up."""
    order = list(MAY_IMPORT)
    for owner, known in MAY_IMPORT.items():
        assert not known.intersection(order[order.index(owner) :]), owner


@SOURCES
def test_arrows_between_the_parts(owner, path):
    assert {part(name) for name in imports(path)} - {None, owner} <= MAY_IMPORT[owner]


@SOURCES
def test_nothing_in_gpt2_knows_the_program_or_the_corpora(owner, path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & {"train", "data", "bench", "tests"}


def test_no_import_hides_in_a_function():
    """Both ways: none that is not in the table, and no row that is out of date."""
    found = {
        (path.relative_to(ROOT / "gpt2").as_posix(), module)
        for owner, path in sources()
        if owner != "autodiff"
        for module in imports_inside_functions(path)
    }
    assert found == set(INSIDE_FUNCTIONS)


def modules_outside_the_compiler():
    for owner, path in sources():
        names = path.relative_to(ROOT).with_suffix("").parts
        if owner != "autodiff" and names[-1] != "__main__":
            yield ".".join(names[:-1] if names[-1] == "__init__" else names)


@pytest.mark.parametrize("module", sorted({*modules_outside_the_compiler()} - {"gpt2.parallel.mpi"}))
def test_every_module_can_be_the_first_import(module):
    """A circle would show here: some module of it meets another that is half done."""
    run = subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_modules_outside_the_compiler_form_no_circle():
    """Within the parts as well, where the table says nothing; imports inside functions count."""
    known = set(modules_outside_the_compiler())
    arrows = {}
    for path in (ROOT / name.replace(".", "/") for name in known):
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        own = ".".join(path.relative_to(ROOT).parts)
        found = {longest(name, known) for name in imports(file)}
        if own in DOORS:
            found = set()  # they hand names on when these are asked for
        arrows[own] = found - {None, own}
    assert circles(arrows) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# Their imports are for type checkers, or behind the functions that the table above lists
DOORS = {"gpt2", "gpt2.train", "gpt2.parallel"}


def longest(name, known):
    """The module that a dotted name belongs to, or None."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def circles(arrows):
    """What is left once every module is taken away that knows none of those left, or is known by none."""
    left = {name: set(others) for name, others in arrows.items()}
    while True:
        told = set().union(*left.values()) if left else set()
        ends = {name for name, others in left.items() if not others & left.keys() or name not in told}
        if not ends:
            return [sorted(left)] if left else []
        left = {name: others - ends for name, others in left.items() if name not in ends}


@SOURCES
def test_third_parties(owner, path):
    roots = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"gpt2"}
    assert not roots & NEVER
    if owner in THIRD_PARTY:
        assert roots <= THIRD_PARTY[owner]


def test_import_gpt2_loads_next_to_nothing():
    """Not even NumPy: that is what keeps it quick. The names are there all the same."""
    code = (
        "import sys, gpt2; assert 'numpy' not in sys.modules; gpt2.GPT2, gpt2.AdamW, gpt2.GPT2Config; "
        "assert 'GPT2' in dir(gpt2); assert not hasattr(gpt2, 'pear'); print(gpt2.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(".") == 2
