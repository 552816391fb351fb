"""Commands that programs print can be run as printed, in the shell that started the program."""

import ast
import os
import re
import shlex
import subprocess
import sys
import venv

import pytest

from gpt2 import __main__ as commands
from gpt2 import hints
from tests.support import small_run
from tests.support.small_run import FLAGS, ROOT, posix

SHORT = [*FLAGS, "--steps", "2", "--data", "my.txt", "--out"]


# ---- The command for each way to start a program -----------------------------------------------------------


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(argv0, interpreter, path, executable): as if a program had been started so, in tmp_path."""

    def start(argv0, interpreter="python", path="venv/bin", executable="venv/bin/python"):
        monkeypatch.chdir(tmp_path)
        for file in ("venv/bin/python", "venv/bin/gpt2", "other/python", "other/gpt2"):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("")
            (tmp_path / file).chmod(0o755)
        monkeypatch.setattr(hints, "STARTED", argv0)
        monkeypatch.setattr(sys, "orig_argv", [interpreter, argv0])
        monkeypatch.setattr(sys, "executable", str(tmp_path / executable))
        monkeypatch.setenv("PATH", str(tmp_path / path))

    return start


@posix
def test_command_is_spelled_as_the_shell_finds_it(started, tmp_path):
    absolute = f"{tmp_path}/venv/bin/gpt2"
    started(absolute)
    assert hints.typed("gpt2 sample --run x") == "gpt2 sample --run x"
    started(absolute, path="other")  # where another gpt2 is found
    assert hints.typed("gpt2 sample") == f"{absolute} sample"
    started("venv/bin/gpt2", path="nothing")
    assert hints.typed("gpt2 --help") == "venv/bin/gpt2 --help"


@posix
@pytest.mark.parametrize(
    "called, path, printed",
    [
        ("python", "venv/bin", "python"),
        ("venv/bin/python", "nothing", "venv/bin/python"),
        ("./venv/bin/python", "other", "./venv/bin/python"),
        ("python", "other", "{folder}/venv/bin/python"),  # the name finds another one
        ("", "nothing", "{folder}/venv/bin/python"),  # embedded in a program
    ],
)
def test_interpreter_is_spelled_as_it_was_called(started, tmp_path, called, path, printed):
    train = str(ROOT / "train.py")
    printed = printed.format(folder=tmp_path)
    started(train, called, path)
    assert hints.typed("gpt2 train --resume a") == f"{printed} {train} --resume a"
    assert hints.typed("gpt2 sample").endswith(f"{printed} -m gpt2 sample")
    assert hints.install("a", "b") == f"{printed} -m pip install a b"
    started("mine.py", called, path)  # a user's program
    assert hints.typed("gpt2 train").endswith(f"{printed} -m gpt2 train")


@posix
def test_checkout_that_is_not_installed_is_put_on_pythonpath(started, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [hints.PathFinder])
    monkeypatch.setattr(sys, "path", [str(ROOT), "/nowhere"])
    monkeypatch.setenv("PYTHONPATH", "a folder")
    started(str(ROOT / "train.py"))
    assert hints.typed("gpt2 sample") == f"PYTHONPATH='{ROOT}:a folder' python -m gpt2 sample"
    monkeypatch.setattr(sys, "path", ["/nowhere", str(ROOT)])
    assert hints.typed("gpt2 sample") == "python -m gpt2 sample"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("`gpt2 data x` writes such; gpt2 data", "`{data} x` writes such; gpt2 data"),
        ("    gpt2 data x", "    {data} x"),
        ("source <(gpt2 data bash)", "source <({data} bash)"),
        ("--preset gpt2 --dry-run", "--preset gpt2 --dry-run"),
        ("gpt2", "gpt2"),
    ],
)
def test_commands_in_a_text_are_respelled(started, text, expected):
    started("mine.py")
    assert hints.typed(text) == expected.format(data=hints.typed("gpt2 data"))


@posix
@pytest.mark.parametrize(
    "name", ["a", "with space", "it's", "-x", "naïve", "$HOME;ls", "a\x1b[31m\nb'\\", "\udcff\u202e"]
)
def test_quoted_name_is_printable_and_reaches_the_program(name):
    word = hints.quoted(name)
    assert word.isprintable() and not word.startswith("-")
    command = [bash(), "-c", f"printf %s {word}"]
    received = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
    assert received.removeprefix(b"./") == os.fsencode(name)


def bash():
    """The path of bash, or a skip."""
    paths = [path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)]
    return paths[0] if paths else pytest.skip("needs bash")


COMMAND = re.compile(rf"gpt2 (?:{'|'.join(commands.commands())})\b|python -m |pip install |python train")
PARSED = ("EXAMPLES", "NOTE", "ABOUT")  # texts that gpt2.cli.Parser passes on to `typed`


def test_each_command_in_a_message_goes_through_hints():
    for path in [*(ROOT / "gpt2").rglob("*.py"), *(ROOT / "examples").glob("*.py"), ROOT / "train.py"]:
        source = path.read_text(encoding="utf-8")
        if COMMAND.search(source) and path.name != "hints.py":
            tree = ast.parse(source)
            allowed = {id(inner) for node in ast.walk(tree) if is_respelled(node) for inner in ast.walk(node)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed:
                    assert not COMMAND.search(node.value), (path, node.lineno, node.value)


def is_respelled(node):
    """Whether it is a call of `typed`, a text for a parser, or a docstring."""
    if isinstance(node, ast.Assign):
        return getattr(node.targets[0], "id", "") in (*PARSED, "USAGE")
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "typed"


# ---- Running the printed commands ------------------------------------------------------------------------


class Shell:
    """A shell in a folder, whose PATH has one more folder than /usr/bin and /bin."""

    def __init__(self, folder, path, **variables):
        self.folder = folder
        self.environment = small_run.environment(PATH=f"{path}:/usr/bin:/bin")
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "COLUMNS"):
            self.environment.pop(name, None)
        self.environment.update(variables)

    def run(self, line, status=0):
        """What a command line prints on standard output and standard error."""
        done = small_run.run([bash(), "-c", line], cwd=self.folder, env=self.environment)
        assert done.returncode == status, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr


# As pip writes it if a path has a space
SCRIPT = """#!/bin/sh
'''exec' '{python}' "$0" "$@"
' '''
from gpt2.__main__ import main
raise SystemExit(main())
"""


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """A user's home: a virtual environment with our packages, the command gpt2, and a checkout."""
    home = tmp_path_factory.mktemp("a home")
    venv.create(home / ".venv", with_pip=False)
    site = next((home / ".venv" / "lib").glob("python*")) / "site-packages"
    packages = [path for path in sys.path[1:] if path.endswith("site-packages")]
    (site / "packages.pth").write_text("\n".join(packages) + "\n")
    script = home / ".venv" / "bin" / "gpt2"
    script.write_text(SCRIPT.format(python=script.parent / "python"))
    script.chmod(0o755)
    checkout = home / "checkout"
    checkout.mkdir()
    for name in ("gpt2", "data", "train.py"):
        (checkout / name).symlink_to(ROOT / name)
    (home / "my.txt").write_text("to be or not to be, that is the question\n" * 200)
    (checkout / "my.txt").symlink_to(home / "my.txt")
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to("/bin/false")  # another python is first on PATH
    return home


def shell_of(machine, way):
    """(the shell, the words before the flags) for one of WAYS."""
    folder, first, start, installed = WAYS[way]
    variables = {"PYTHONPATH": str(machine / "checkout")} if installed else {}
    return Shell(machine / folder, machine / first, **variables), start


# Ways to start it: the folder, what is first on PATH, the words before the flags, whether gpt2 is installed
WAYS = {
    "checkout": ("checkout", "bin", "../.venv/bin/python train.py", False),
    "activated": ("checkout", ".venv/bin", "python train.py", False),
    "from elsewhere": (".", "bin", ".venv/bin/python checkout/train.py", False),
    "command": (".", ".venv/bin", "gpt2 train", True),
    "command by path": (".", "bin", ".venv/bin/gpt2 train", True),
    "module": ("checkout", "bin", "../.venv/bin/python -m gpt2 train", False),
}


@posix
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_commands_printed_by_a_run_can_be_run(machine, way, tmp_path):
    shell, start = shell_of(machine, way)
    out = shlex.quote(str(tmp_path / "my run"))
    text = shell.run(f"{start} {' '.join(SHORT)} {out}")
    printed = re.findall(r"(?m)^(?:more text|train on|try next, [^:]*): +(.*)$", text)
    assert len(printed) == 3
    trains = way in ("checkout", "command")  # elsewhere it is enough that the printed words find the program
    for command in printed:
        shell.run(f"{command} {'--max-tokens 3' if 'sample' in command else '' if trains else '--help'}")
    if trains:
        assert "has done its 4 steps" in shell.run(printed[1], status=2)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "from elsewhere"])
def test_commands_in_help_and_errors_can_be_run(machine, way):
    shell, start = shell_of(machine, way)
    text = shell.run(f"{start} --help").replace(" \\\n", " ")
    examples = re.findall(r"(?m)^  (\S.*)$", text.partition("\nexamples:\n")[2])
    program = examples[0].partition(" --")[0]
    assert len(examples) == 7 and all(command.startswith(program) for command in examples)
    for command in examples if way == "checkout" else examples[:1]:
        assert "usage: " in shell.run(f"{command} --help")
    sample = re.search(r"(?m)^  (.*) sample --help|^  (.*-m gpt2)\.sample --help", shell.run(overview(start)))
    for words, expected in (
        ("sample --run ''", "train one with: (.*)"),
        ("explain model gelu", "only by itself and as text: (.*)"),
        ("convert gpt2 --write-state x", "`(.*?)` writes such files"),
        ("xyzzy", "; (.*) lists what there is"),
    ):
        text = shell.run(f"{sample[1] or sample[2]} {words}", status=2)
        (command,) = re.findall(expected, text)
        assert "usage: " in shell.run(f"{command} --help") or "xyzzy" in words


def overview(start):
    """The command that lists all commands, for a way to start training."""
    return re.sub(r" train$", "", re.sub(r"\S*train.py", "-m gpt2", start))
