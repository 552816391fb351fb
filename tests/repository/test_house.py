"""Cited files exist, tests lie beside what they test, folders are small, a model is written by its module."""

import ast
import io
import re
import tokenize
from collections import Counter

from docs import house
from gpt2 import GPT2, GPT2Config

FILES_OF_USERS = {"example.py", "f.py", "mine.py", "my_layers.py"}
FOLDERS = [house.ROOT / name for name in ("gpt2", "tests", "bench", "docs", "examples")]
SOURCES = [path for folder in FOLDERS for path in folder.rglob("*.py")]


def cited_files(source):
    """Names of Python files in the comments and docstrings of a module."""
    if not re.search(r"\w\.py\b", source):
        return set()  # without reading its tokens
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


def test_test_folders_mirror_the_source():
    source, tests = house.ROOT / "gpt2", house.ROOT / "tests"

    def folders(path):
        return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}

    assert folders(tests / "autodiff") == {*folders(source / "autodiff"), "whole"}
    assert folders(tests) <= {*folders(source), "bench", "docs", "long", "repository", "support"}
    files = {path.stem for path in (tests / "autodiff").glob("*.py")} - {"__init__", "test_stages"}
    modules = {f"test_{path.stem}" for path in (source / "autodiff").glob("*.py")}
    assert files <= modules, "tests of a room belong into tests/autodiff/ROOM, helpers into tests/support"


def test_a_folder_has_at_most_twenty_files():
    paths = [path for path in (house.ROOT / "gpt2").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    count = Counter(path.parent.relative_to(house.ROOT).as_posix() for path in paths)
    assert len(count) > 20 and {folder: files for folder, files in count.items() if files > 20} == {}


def test_the_house_keeps_within_its_budget_of_lines():
    """What is added takes the place of something."""
    lines = Counter()
    for path in SOURCES:
        lines[path.relative_to(house.ROOT).parts[0]] += path.read_text(encoding="utf-8").count("\n")
    assert 50_000 < lines["gpt2"] <= 61_000 and lines["tests"] + lines["bench"] <= 58_500, lines


def written_attributes(source):
    """(object, attribute) of all that a module assigns or deletes, also by setattr and delattr."""
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
            yield ast.unparse(node.args[0]), ast.unparse(node.args[1]).strip("'")


def test_attributes_of_a_model_are_written_by_its_own_module():
    """A model is what is so called, and outside the compiler what has an attribute of its name."""
    own = set(vars(GPT2(GPT2Config.preset("tiny"))))
    files = {name: path for name, path in house.files().items() if name != GPT2.__module__}
    files |= {name: house.ROOT / name for name in ("train.py", "bench/step.py")}
    written = {
        f"{name}: {value}.{attribute}"
        for name, path in files.items()
        if not name.startswith("gpt2.autodiff.") or "model" in path.read_text(encoding="utf-8")
        for value, attribute in written_attributes(house.parsed(path))
        if value.split(".")[-1].endswith("model")
        or (attribute in own and value != "self" and not name.startswith("gpt2.autodiff."))
    }
    assert not written
