"""README.md, CONTRIBUTING.md and docs/*.md taken apart into blocks, commands and examples."""

import argparse
import ast
import contextlib
import doctest
import importlib.util
import io
import linecache
import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from gpt2.train import program
from tests import ROOT

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
# Words that a command begins with. Anything else in a block is what a command prints.
COMMAND = re.compile(r"(?:\$ )?((?:python3?|pip|pytest|mpiexec|git|tensorboard|\.venv/bin/\w+)\s.*)$")


@dataclass(frozen=True)
class Block:
    """A block of a page: number of its first line, language of its fence ("" for none), text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self):
        """The first line, which names the block in the tables of tests/docs/test_docs.py."""
        return self.text.split("\n", 1)[0].strip()

    @property
    def kind(self):
        """commands, examples (a doctest), python, or output: anything else."""
        if any(COMMAND.match(line) for line in self.text.split("\n")):
            return "commands"
        if ">>> " in self.text:
            return "examples"
        return "python" if self.language in ("python", "py") or _is_program(self.text) else "output"

    @property
    def commands(self):
        """The commands in it, without $ and without what is said about them after two spaces."""
        found = (COMMAND.match(line) for line in self.text.split("\n"))
        whole = [re.split(r"  +", match[1])[0].strip() for match in found if match]
        return [part.strip() for line in whole for part in line.split(" && ")]


def _is_program(text):
    """Whether text is Python that does something, and not a word or a number that happens to be valid."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(part, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Assign | ast.Call)
        for statement in body
        for part in ast.walk(statement)
    )


def blocks(page):
    """The blocks of a page in order: fenced ones, and those indented by four spaces."""
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    found, at = [], 0
    while at < len(lines):
        fence = re.match(r"\s*```(\w*)", lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            found.append(Block(page, at + 2, fence[1], textwrap.dedent("\n".join(lines[at + 1 : end]))))
            at = end + 1
        elif lines[at].startswith("    "):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(Block(page, at + 1, "", textwrap.dedent("\n".join(lines[at:end])).rstrip()))
            at = end
        else:
            at += 1
    return found


def inline_commands(page):
    """Commands in the running text, between back quotes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [match for match in re.findall(r"`([^`\n]+)`", text) if COMMAND.match(match)]


# ---- Commands --------------------------------------------------------------------------------------------


class Parsed(BaseException):
    """The command line was understood. Not an Exception, so that nothing takes it for a failure."""


def run(command):
    """One command, in this process; returns its exit status."""
    words = shlex.split(command)
    try:
        if words[:2] == ["python", "train.py"]:
            return program.main(words[2:])
        if words[0] == "python" and words[1].endswith(".py"):
            # A program of the repository that belongs to no package; what it adds to sys.path goes
            spec = importlib.util.spec_from_file_location(Path(words[1]).stem, ROOT / words[1])
            module, before = importlib.util.module_from_spec(spec), list(sys.path)
            try:
                spec.loader.exec_module(module)
            finally:
                sys.path[:] = before
            return module.main(words[2:])
        assert words[:2] == ["python", "-m"], f"do not know how to run: {shlex.join(words)}"
        name = words[2] + (".__main__" if (ROOT / words[2].replace(".", "/")).is_dir() else "")
        return importlib.import_module(name).main(words[3:])
    except SystemExit as stop:  # --help, or arguments that were not understood
        return stop.code or 0


def parse(command):
    """Have the command's own parser read its arguments, and end there; returns whether it understood."""
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self, *args, **kwargs):
        _, unknown = original(self, *args, **kwargs)
        if not unknown:
            raise Parsed
        return original(self, *args, **kwargs)  # parse_args will complain of them

    argparse.ArgumentParser.parse_known_args = parse_known_args
    try:
        run(command)
    except Parsed:
        return True
    finally:
        argparse.ArgumentParser.parse_known_args = original
    return False


# ---- Examples --------------------------------------------------------------------------------------------


class Checker(doctest.OutputChecker):
    """Compares what an example prints with the page. example.py stands for the page's own lines of code."""

    def check_output(self, want, got, flags):
        return super().check_output(want, in_print(got), flags)


def in_print(text):
    """What an example printed, as a page shows it."""
    return re.sub(r"<doctest [^>]*>", "example.py", text)


def run_python(page):
    """Run the fenced blocks of Python of a page, in order; returns the names that they define."""
    names = {"__name__": "page"}
    programs = [block for block in blocks(page) if block.language == "python"]
    for number, block in enumerate(programs, 1):
        file = f"example{number if number > 1 else ''}.py"
        linecache.cache[file] = (len(block.text), None, block.text.splitlines(True), file)
        exec(compile(block.text, file, "exec"), names)
    return names


def check_examples(page):
    """Run the examples of a page as one session, after its blocks of Python: (failed, tried)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, run_python(page), Path(page).name, page, 0)
    runner = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS)
    return runner.run(test)


def rewrite_examples(page):
    """Put what the examples print now into the page. Read the difference before keeping it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names, lines = run_python(page), text.split("\n")
    changes = []
    for number, example in enumerate(doctest.DocTestParser().get_examples(text)):
        file = f"<doctest {Path(page).name}[{number}]>"
        linecache.cache[file] = (len(example.source), None, example.source.splitlines(True), file)
        begin = example.lineno + example.source.count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):  # an error goes to the caller
            exec(compile(example.source, file, "single"), names)
        got = in_print(printed.getvalue())
        if doctest.OutputChecker().check_output(example.want, got, doctest.ELLIPSIS):
            got = example.want  # with its own ...
        shown = [" " * example.indent + (line or "<BLANKLINE>") for line in got.splitlines()]
        changes.append((begin, begin + example.want.count("\n"), shown))
    for begin, end, printed in reversed(changes):
        lines[begin:end] = printed
    (ROOT / page).write_text("\n".join(lines), encoding="utf-8")
