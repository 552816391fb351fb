"""gpt2 as one house: no circle of imports, every module can come first, and the compiler has one door."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib

import pytest

from docs import architecture, house
from gpt2 import autodiff
from tests import house as tables

MODULES = [name for name in house.files() if not name.endswith("__main__")]


# ---- The reader ------------------------------------------------------------------------------------------


def test_the_reader_reads(tmp_path, monkeypatch):
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
    found = [(i.target, i.inside) for i in house.imports(package / "near.py")]
    assert found == [
        ("typing.TYPE_CHECKING", False),
        ("os.path", False),
        ("gpt2.rooms.far", False),
        ("gpt2.rooms.far.one", False),
        ("gpt2.other.x", False),
        ("gpt2.other.y", False),
        ("math", False),
        ("json", False),
        ("re", True),
    ]
    assert house.arrows() == {
        "gpt2": {"gpt2.rooms.far"},  # loaded on demand; "near" is no module of gpt2 itself
        "gpt2.rooms": {"gpt2.rooms.far"},
        "gpt2.rooms.far": set(),
        "gpt2.rooms.near": {"gpt2", "gpt2.rooms.far"},  # gpt2.other is a name in gpt2, not a module
    }


def test_circles_and_arrows_back_up():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}, "g": set()}
    assert house.circles(arrows) == [["a", "b", "c"], ["e", "f"]]
    assert house.back_up(arrows, "cbadefg") == [("c", "a"), ("e", "f")]
    assert len(house.back_up(arrows, house.depth_first(arrows))) == 2  # one in each circle
    straight = {"top": {"left", "right"}, "left": {"low"}, "right": {"low"}, "low": set(), "other": set()}
    assert house.circles(straight) == [] and not house.back_up(straight, house.depth_first(straight))
    assert [sorted(floor) for floor in house.floors(straight)] == [
        ["low", "other"],
        ["left", "right"],
        ["top"],
    ]


# ---- The house -------------------------------------------------------------------------------------------


def test_there_is_no_circle():
    """Among files, wherever in their text they import one another; so there is no arrow back up either."""
    arrows = house.arrows()
    assert house.circles(arrows) == []
    assert house.back_up(arrows, house.depth_first(arrows)) == []


PROJECT = (house.ROOT / "pyproject.toml").read_text(encoding="utf-8")


def lint(*flags):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run([*command, "--no-cache", *flags], cwd=house.ROOT, capture_output=True, text=True)


def test_rooms_import_what_the_contracts_allow(tmp_path):
    """Those of pyproject.toml. That one that is not kept is seen: the layers turned upside down."""
    pytest.importorskip("importlinter")
    kept = lint()
    assert kept.returncode == 0 and "0 broken" in kept.stdout, kept.stdout + kept.stderr
    turned = tmp_path / "pyproject.toml"
    exchanged = {'"model",': '"commands",', '"commands",': '"model",'}
    turned.write_text(re.sub("|".join(exchanged), lambda line: exchanged[line[0]], PROJECT))
    broken = lint("--config", str(turned))
    assert broken.returncode == 1 and "BROKEN" in broken.stdout


def test_the_map_and_the_contract_agree_on_the_core():
    contracts = tomllib.loads(PROJECT)["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c["containers"] == ["gpt2.autodiff"]]
    rooms = [room for line in layers for room in line.split(" | ")]
    assert set(rooms[: len(architecture.EXTRAS)]) == set(architecture.EXTRAS)  # they stand above the core
    assert set(rooms[len(architecture.EXTRAS) :]) == {*architecture.STAGES}


@pytest.mark.slow
def test_the_report_says_so(capsys):
    tables.main([])
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [
        "gpt2, by parts",
        "gpt2/autodiff, by stages",
        "gpt2, by files",
    ]
    assert all(head.endswith(" 0 back up, 0 circles") for head in heads), heads


FIRST = """
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
def test_every_module_can_be_the_first_import():
    """What was loaded of gpt2 before is forgotten. In a circle a module meets another that is half done."""
    count = min(4, os.cpu_count() or 1)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST, *MODULES[i::count]],
            cwd=house.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(count)
    ]
    said = "".join(run.communicate()[0] for run in runs)
    assert all(run.returncode == 0 for run in runs), said


# ---- The door of the compiler ----------------------------------------------------------------------------


def private_uses(source, package=("gpt2",)):
    """What a file uses of the compiler that is not one of its public names: dotted, or as an attribute."""
    tree = ast.parse(source)
    doors, found = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[:2] == ["gpt2", "autodiff"]:
                    found += [alias.name] if alias.name != "gpt2.autodiff" else []
                    doors.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                name = f"{module}.{alias.name}"
                if name == "gpt2.autodiff":
                    doors.add(alias.asname or alias.name)
                elif module.startswith("gpt2.autodiff") and name.split(".")[2:] != [alias.name]:
                    found.append(name)
                elif module == "gpt2.autodiff" and alias.name not in autodiff.__all__:
                    found.append(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in doors:
            found += [] if node.attr in autodiff.__all__ else [f"{ast.unparse(node.value)}.{node.attr}"]
    return found


OUTSIDE = [path for name, path in house.files().items() if tables.stage(name) is None]
OUTSIDE += [house.ROOT / "train.py", *sorted((house.ROOT / "data").glob("*.py"))]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(house.ROOT).as_posix())
def test_the_rest_knows_the_public_names_of_the_compiler_alone(path):
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
def test_a_private_name_is_seen(source):
    assert len(private_uses(source)) == 1
    assert private_uses("from gpt2 import autodiff as ad\nfrom gpt2.autodiff import grad\nad.jvp") == []


def written_onto_models(source):
    """Assignments to an attribute of something called model, `new` or `other`, but for one of self's own."""
    return [
        f"{target.lineno}: {ast.unparse(target)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[-1] in ("model", "twin")
    ]


def test_nobody_writes_attributes_onto_a_model():
    assert written_onto_models("run.model.lent = 1\nself.model = model\nself.model.x += 1") == [
        "1: run.model.lent",
        "3: self.model.x",
    ]
    own = house.ROOT / "gpt2/model/gpt2.py"
    found = {path: written_onto_models(path.read_text(encoding="utf-8")) for path in OUTSIDE if path != own}
    assert not {path: lines for path, lines in found.items() if lines}


# ---- What comments and docstrings cite ---------------------------------------------------------------------

EXAMPLES = {"example.py", "f.py", "mine.py", "my_layers.py"}  # files of a user
SOURCES = [
    p
    for folder in ("gpt2", "tests", "bench", "docs", "examples")
    for p in (house.ROOT / folder).rglob("*.py")
]


def cited(source):
    """Names of Python files in the comments and docstrings of a module."""
    texts = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT or token.type == tokenize.STRING and token.string.startswith('"""')
    ]
    return {name for text in texts for name in re.findall(r"(?<![\w./-])(\w[\w/]*\.py)\b", text)}


def test_files_that_are_cited_exist():
    assert cited('"""See dry.py."""\nx = "no.py"  # and run/short.py') == {"dry.py", "run/short.py"}
    there = {f"/{path.relative_to(house.ROOT).as_posix()}" for path in [*SOURCES, *house.ROOT.glob("*.py")]}
    missing = {
        f"{path.relative_to(house.ROOT)}: {name}"
        for path in SOURCES
        for name in cited(path.read_text(encoding="utf-8")) - EXAMPLES
        if not any(known.endswith(f"/{name}") for known in there)
    }
    assert not missing


# ---- Tests lie where the source does -----------------------------------------------------------------------


def folders(path):
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_tests_lie_in_the_rooms_that_they_test():
    source, tests = house.ROOT / "gpt2", house.ROOT / "tests"
    assert folders(tests / "autodiff") == {*folders(source / "autodiff"), "whole"}
    assert folders(tests) <= {*folders(source), "bench", "long", "support"}
    beside = {path.stem for path in (tests / "autodiff").glob("*.py")} - {"__init__", "test_stages"}
    alone = {f"test_{path.stem}" for path in (source / "autodiff").glob("*.py")}
    assert beside <= alone, (
        "tests of a room with a folder belong into tests/autodiff/ROOM, helpers into tests/support"
    )


def test_no_cache_is_committed():
    done = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"],
        cwd=tables.house.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("needs git and the repository")
    assert done.stdout == ""
