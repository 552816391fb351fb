"""Every benchmark's command line: its --help, its line in the documentation, errors for unknown names."""

import argparse
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import bench
from bench import finetune, scaling
from bench.harness import sizes
from gpt2.errors import UserError

# Started by other benchmarks, with positional arguments
INTERNAL = ("prelude", "worker")


def commands():
    """The modules of bench/ that are programs."""
    for module in pkgutil.walk_packages(bench.__path__, "bench."):
        path = Path(importlib.util.find_spec(module.name).origin)
        program = 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
        if program and module.name.rpartition(".")[2] not in INTERNAL:
            yield module.name


class ParserReached(Exception):
    pass


@pytest.mark.parametrize("name", [*commands()])
def test_help_names_the_program_and_explains_every_option(name, monkeypatch):
    def stop(parser, *args):
        raise ParserReached(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr("gpt2.cli.Parser.parse_args", stop)
    with pytest.raises(ParserReached) as caught:
        importlib.import_module(name).main([])
    parser = caught.value.args[0]
    assert parser.prog.endswith(f" -m {name.removesuffix('.__main__')}")
    assert parser.description and parser.description[0].isupper()
    for action in parser._actions:
        words = action.help or ""
        assert re.search(r"[a-z]{3}", re.sub(r"\(.*\)", "", words)), (name, action.dest, words)
        assert action.default in (None, False, "", 0, 0.0, "==SUPPRESS==") or "default" in words, action.dest


@pytest.mark.parametrize("name", [*commands()])
def test_documentation_lists_every_program(name):
    page = Path(bench.__path__[0]).parent / "docs" / "benchmarks.md"
    assert f"python -m {name.removesuffix('.__main__')} " in page.read_text(encoding="utf-8")


def test_unknown_names_are_reported_with_their_flag():
    with pytest.raises(UserError, match="^size: no size '124M', expected one of 124M-B8T64"):
        scaling.main(["--size", "124M"])
    with pytest.raises(UserError, match="^sizes: no size '124M', expected some of .*, or all$"):
        sizes.find("124M")
    with pytest.raises(UserError, match="^contenders: unknown name 'pft', expected some of full"):
        finetune.main(["--contenders", "pft"])
    with pytest.raises(UserError, match="^models: unknown name 'gpt3'"):
        finetune.main(["--models", "gpt3"])
