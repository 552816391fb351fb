"""The structure of the source: no import cycles, one public interface of the compiler, tests beside what they
test; and names of files in comments exist.
"""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from graphlib import CycleError

import pytest

from docs import architecture, house
from gpt2 import autodiff
from tests.repository import house as tables

MODULES = [name for name in house.files() if not name.endswith("__main__")]


# ---- docs/house.py ---------------------------------------------------------------------------------------


def test_imports_are_read_from_source(tmp_path, monkeypatch):
    package = tmp_path / "gpt2" / "rooms"
    package.mkdir(parents=True)
    (tmp_path / "gpt2" / "__init__.py").write_text('_EXPORTS = {"far": "gpt2.rooms.far", "near": None}\n')
    (package / "__init__.py").write_text('_EXPORTS = {"far": "one two"}\n')
    (package / "far.py").write_text("import math\n")
    (package / "near.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import os.path as p\n"
        "from . import far\n"
        "from .far import one as uno\n"
        "from ..other import x, y\n"
        "if TYPE_CHECKING:\n    from gpt2 import never\nelse:\n    import math\n"
        "class A:\n    import json\n    def f(self):\n        import re\n"
        "g = lambda: 1\n"
    )
    monkeypatch.setattr(house, "ROOT", tmp_path)
    at_top = (
        "typing.TYPE_CHECKING os.path gpt2.rooms.far gpt2.rooms.far.one gpt2.other.x gpt2.other.y math json"
    )
    imports = [(i.target, i.inside) for i in house.imports(package / "near.py")]
    assert imports == [*((name, False) for name in at_top.split()), ("re", True)]
    assert house.arrows() == {
        "gpt2": {"gpt2.rooms.far"},  # loaded on demand; gpt2 has no module "near"
        "gpt2.rooms": {"gpt2.rooms.far"},
        "gpt2.rooms.far": set(),
        "gpt2.rooms.near": {"gpt2", "gpt2.rooms.far"},  # gpt2.other is a name in gpt2, not a module
    }


def test_floors_and_circles():
    straight = {"top": {"left", "right"}, "left": {"low"}, "right": {"low"}, "low": set(), "other": set()}
    assert house.floors(straight) == [["low", "other"], ["left", "right"], ["top"]]
    for circle in ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, {"e": {"f"}, "f": {"e"}, "g": set()}):
        with pytest.raises(CycleError):
            house.floors(circle)


# ---- Imports ---------------------------------------------------------------------------------------------


def test_there_is_no_circle():
    """Among files, wherever in their text they import one another."""
    assert house.floors(house.arrows())


PYPROJECT = (house.ROOT / "pyproject.toml").read_text(encoding="utf-8")


def lint(*flags):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run([*command, "--no-cache", *flags], cwd=house.ROOT, capture_output=True, text=True)


def test_rooms_import_what_the_contracts_allow(tmp_path):
    """By the contracts of pyproject.toml; with two layers exchanged, import-linter reports a broken one."""
    pytest.importorskip("importlinter")
    kept = lint()
    assert kept.returncode == 0 and "0 broken" in kept.stdout, kept.stdout + kept.stderr
    exchanged = {'"model",': '"commands",', '"commands",': '"model",'}
    config = tmp_path / "pyproject.toml"
    config.write_text(re.sub("|".join(exchanged), lambda line: exchanged[line[0]], PYPROJECT))
    broken = lint("--config", str(config))
    assert broken.returncode == 1 and "BROKEN" in broken.stdout


def test_page_and_contract_agree_on_the_core():
    contracts = tomllib.loads(PYPROJECT)["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c["containers"] == ["gpt2.autodiff"]]
    rooms = [room for line in layers for room in line.split(" | ")]
    count = len(architecture.EXTRAS)  # these are above the core
    assert set(rooms[:count]) == set(architecture.EXTRAS)
    assert set(rooms[count:]) == {*architecture.STAGES}


@pytest.mark.slow
def test_report_shows_no_cycle(capsys):
    tables.main([])
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [
        "gpt2, by parts",
        "gpt2/autodiff, by stages",
        "gpt2, by files",
    ]
    assert all(head.endswith(" no circle") for head in heads), heads


IMPORT_EACH = """
import importlib, sys
failed = 0
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.split(".")[0] == "gpt2"]:
        del sys.modules[name]
    try:
        importlib.import_module(module)
    except Exception as error:
        print(f"import {module}: {type(error).__name__}: {error}")
        failed = 1
sys.exit(failed)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_first():
    """With no other module of gpt2 loaded: in a cycle, a module meets another that is half loaded."""
    count = min(4, os.cpu_count() or 1)
    command = [sys.executable, "-c", IMPORT_EACH]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    runs = [subprocess.Popen([*command, *MODULES[i::count]], cwd=house.ROOT, **pipes) for i in range(count)]
    output = "".join(run.communicate()[0] for run in runs)
    assert all(run.returncode == 0 for run in runs), output


# ---- Public names and attributes -------------------------------------------------------------------------


def private_uses(source, package=("gpt2",)):
    """Names of the compiler in a file that are not public: imported, or attributes of the compiler."""
    tree = ast.parse(source)
    aliases, private = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[:2] == ["gpt2", "autodiff"]:
                    private += [alias.name] if alias.name != "gpt2.autodiff" else []
                    aliases.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                name = f"{module}.{alias.name}"
                if name == "gpt2.autodiff":
                    aliases.add(alias.asname or alias.name)
                elif module.startswith("gpt2.autodiff") and name.split(".")[2:] != [alias.name]:
                    private.append(name)
                elif module == "gpt2.autodiff" and alias.name not in autodiff.__all__:
                    private.append(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            private += [] if node.attr in autodiff.__all__ else [f"{ast.unparse(node.value)}.{node.attr}"]
    return private


OUTSIDE_THE_COMPILER = [path for name, path in house.files().items() if tables.stage(name) is None]
OUTSIDE_THE_COMPILER += [house.ROOT / "train.py", *sorted((house.ROOT / "data").glob("*.py"))]


@pytest.mark.parametrize(
    "path", OUTSIDE_THE_COMPILER, ids=lambda path: path.relative_to(house.ROOT).as_posix()
)
def test_only_public_names_of_the_compiler_are_used(path):
    package = path.relative_to(house.ROOT).parent.parts
    assert private_uses(path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    "source",
    [
        "import gpt2.autodiff.graph",
        "from gpt2.autodiff import graph",
        "from gpt2.autodiff.graph import Graph",
        "from gpt2.autodiff.transforms.gradient import grad",
        "from .autodiff import pipeline",
        "from . import autodiff as ad\nad.graph",
        "def f():\n    from gpt2 import autodiff\n    return autodiff.pipeline",
    ],
)
def test_private_names_are_found(source):
    assert len(private_uses(source)) == 1
    assert private_uses("from gpt2 import autodiff as ad\nfrom gpt2.autodiff import grad\nad.jvp") == []


def model_attributes_assigned(source):
    """Assignments to an attribute of something called model or twin."""
    return [
        f"{target.lineno}: {ast.unparse(target)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[-1] in ("model", "twin")
    ]


def test_only_gpt2_py_assigns_attributes_of_models():
    example = "run.model.lent = 1\nself.model = model\nself.model.x += 1"
    assert model_attributes_assigned(example) == ["1: run.model.lent", "3: self.model.x"]
    others = set(OUTSIDE_THE_COMPILER) - {house.ROOT / "gpt2/model/gpt2.py"}
    assigned = {path: model_attributes_assigned(path.read_text(encoding="utf-8")) for path in others}
    assert not {path: lines for path, lines in assigned.items() if lines}


# ---- Files named in comments and docstrings ----------------------------------------------------------------

FILES_OF_USERS = {"example.py", "f.py", "mine.py", "my_layers.py"}
FOLDERS = [house.ROOT / name for name in ("gpt2", "tests", "bench", "docs", "examples")]
SOURCES = [path for folder in FOLDERS for path in folder.rglob("*.py")]


def cited_files(source):
    """Names of Python files in the comments and docstrings of a module."""
    texts = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT or token.type == tokenize.STRING and token.string.startswith('"""')
    ]
    return {name for text in texts for name in re.findall(r"(?<![\w./-])(\w[\w/]*\.py)\b", text)}


def test_cited_files_exist():
    assert cited_files('"""See dry.py."""\nx = "no.py"  # and run/short.py') == {"dry.py", "run/short.py"}
    paths = {f"/{path.relative_to(house.ROOT).as_posix()}" for path in [*SOURCES, *house.ROOT.glob("*.py")]}
    missing = {
        f"{path.relative_to(house.ROOT)}: {name}"
        for path in SOURCES
        for name in cited_files(path.read_text(encoding="utf-8")) - FILES_OF_USERS
        if not any(path.endswith(f"/{name}") for path in paths)
    }
    assert not missing


# ---- Folders -----------------------------------------------------------------------------------------------


def folders(path):
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_test_folders_mirror_the_source():
    source, tests = house.ROOT / "gpt2", house.ROOT / "tests"
    assert folders(tests / "autodiff") == {*folders(source / "autodiff"), "whole"}
    assert folders(tests) <= {*folders(source), "bench", "docs", "long", "repository", "support"}
    files = {path.stem for path in (tests / "autodiff").glob("*.py")} - {"__init__", "test_stages"}
    modules = {f"test_{path.stem}" for path in (source / "autodiff").glob("*.py")}
    assert files <= modules, "tests of a room belong into tests/autodiff/ROOM, helpers into tests/support"


def test_no_folder_has_more_than_twenty_modules():
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert not {str(folder): n for folder, n in counts.items() if n > 20}


def test_no_cache_is_committed():
    command = ["git", "ls-files", "-ci", "--exclude-standard"]
    done = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs git and the repository")
    assert done.stdout == ""
