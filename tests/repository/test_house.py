"""Files named in comments and docstrings exist, and tests lie beside what they test."""

import io
import re
import tokenize

from docs import house

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


def folders(path):
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_test_folders_mirror_the_source():
    source, tests = house.ROOT / "gpt2", house.ROOT / "tests"
    assert folders(tests / "autodiff") == {*folders(source / "autodiff"), "whole"}
    assert folders(tests) <= {*folders(source), "bench", "docs", "long", "repository", "support"}
    files = {path.stem for path in (tests / "autodiff").glob("*.py")} - {"__init__", "test_stages"}
    modules = {f"test_{path.stem}" for path in (source / "autodiff").glob("*.py")}
    assert files <= modules, "tests of a room belong into tests/autodiff/ROOM, helpers into tests/support"
