"""Imports run one way. Read from the source, so that an import inside a function counts as well."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each part of gpt2 may know of the others: every part has a row.
MAY_IMPORT = {
    "layers": set(),
    "autodiff": set(),
    "backward": {"layers", "autodiff", "errors", "certificate"},  # the last only where it is run as a command
    "optimizer": {"autodiff"},  # its threads alone: there is one pool, autodiff/runtime.py
    # The model is layers. Of the seam it knows that a word such as "auto" names a table of them.
    "model": {"layers", "backward", "errors"},
    "parallel": {"model", "optimizer", "autodiff", "errors"},  # of autodiff the threads alone
    "sample": {"layers", "pretrained", "stop", "errors"},
    # Files, settings and reports
    "errors": set(),
    "files": {"errors"},
    "lock": {"errors"},
    "runs": {"errors", "files"},
    "settings": {"errors"},
    "progress": set(),
    "spikes": set(),
    "stop": set(),
    "metrics": {"errors", "runs"},
    "plot": {"errors", "metrics"},
    "flops": set(),
    "cost": {"flops", "model", "optimizer"},
    # Text and weights
    "download": {"errors", "files"},
    "dataset": {"download", "errors"},
    "tokenizer": {"download", "errors"},
    "checkpoint": {"errors", "files", "model"},
    "formats": {"download", "errors", "model", "tokenizer"},
    "pretrained": {"checkpoint", "errors", "formats", "model", "runs", "tokenizer"},
    "llmc": {"dataset", "errors", "formats"},
    # Commands, and the library's functions
    "__main__": set(),  # it starts them by name
    "certificate": {"autodiff", "backward", "layers", "model"},
    "convert": {"checkpoint", "dataset", "errors", "formats", "model", "pretrained", "runs"},
    "evaluate": {"dataset", "errors", "layers", "pretrained"},
    "explain": {"autodiff", "certificate", "errors", "files", "layers"},
    "library": {"convert", "model", "pretrained", "tokenizer"},
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
    found = set(imports(Path(__file__).parents[1] / "gpt2" / "model.py"))
    assert {"math", "numpy", "gpt2.backward.choose"} <= found
    assert part("gpt2.backward.choose") == "backward" and part("numpy") is None


def test_every_part_has_a_row():
    assert set(MAY_IMPORT) == {owner for owner, _ in sources()}


@SOURCES
def test_arrows_between_the_parts(owner, path):
    assert {part(name) for name in imports(path)} - {None, owner} <= MAY_IMPORT[owner]


@SOURCES
def test_nothing_in_gpt2_knows_the_program_or_the_corpora(owner, path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & {"train", "data", "bench", "tests"}


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
