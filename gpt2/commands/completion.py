"""Print a shell completion script for `gpt2`: its commands, flags and choices.

    source <(gpt2 completion bash)                                        in ~/.bashrc
    source <(gpt2 completion zsh)                                         in ~/.zshrc
    gpt2 completion fish > ~/.config/fish/completions/gpt2.fish

Completing does not start Python. By hand, as shtab offers the `choices` of argparse alone, and settings have
theirs elsewhere. Write the script again after an update.
"""

import argparse
import importlib
from collections.abc import Iterator
from typing import NamedTuple

from gpt2 import cli
from gpt2.__main__ import commands, module_of
from gpt2.model import RELEASED
from gpt2.train.settings import PRESETS

SHELLS = ("bash", "zsh", "fish")

# Flags that take other values too, such as a path: the names to offer
NAMES = {
    "--preset": tuple(PRESETS),
    "--tokenizer": ("auto", "gpt2", "byte", "char"),
    "--train": ("all", "lora:8", "adapter", "last:2", "biases"),
    "--init": RELEASED,
    "--kernels": ("fastest", "own", "Haswell", "Zen", "SkylakeX"),
}


class Flag(NamedTuple):
    """A flag of a command: its name without --, its possible values, and its line of help.

    takes   whether it takes a value: one of `choices`, or anything if there are none or it is in NAMES
    """

    name: str
    choices: tuple[str, ...]
    takes: bool
    about: str


class Words(NamedTuple):
    """What may follow a command: its flags, and the choices of its positional arguments."""

    about: str
    flags: list[Flag]
    choices: list[str]


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    return importlib.import_module(module_of(name)).parser()


def words(name: str, about: str) -> Words:
    """The words that can follow `gpt2 NAME`."""
    flags, choices = [], []
    for action in parser_of(name)._actions:
        allowed = tuple(map(str, action.choices or _listed(action.metavar)))
        if not action.option_strings:
            choices += allowed
        for option in action.option_strings:
            if option.startswith("--"):
                offered = allowed or NAMES.get(option, ()) if action.nargs != 0 else allowed
                flags.append(Flag(option[2:], offered, action.nargs != 0, (action.help or "").split(";")[0]))
    return Words(about, flags, choices)


def _listed(metavar):
    """The choices of a setting, from its metavar: own|llm.c. One in capitals is a placeholder."""
    return metavar.split("|") if isinstance(metavar, str) and "|" in metavar and metavar.islower() else ()


def everything() -> dict[str, Words]:
    """Command -> the words that may follow it."""
    return {name: words(name, about) for name, about in commands().items()}


def bash(table: dict[str, Words]) -> str:
    """A script for bash."""
    return "\n".join([*_function(table), "complete -o default -o bashdefault -F _gpt2 gpt2", ""])


def zsh(table: dict[str, Words]) -> str:
    """A script for zsh, which can read bash's."""
    start = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
    return "\n".join([*start, *_function(table), "complete -o default -F _gpt2 gpt2", ""])


def _function(table) -> Iterator[str]:
    """The shell function for bash and zsh. Without a match the shell completes file names."""
    yield "_gpt2() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    words="{" ".join([*table, "--help", "--version"])}"'
    yield '  else case "${COMP_WORDS[1]} $prev" in'
    for name, command in table.items():
        for flag in command.flags:
            if flag.takes:
                yield f"    '{name} --{flag.name}') words=\"{' '.join(flag.choices)}\" ;;"
    yield '    *) case "${COMP_WORDS[1]}" in'
    for name, command in table.items():
        flags = " ".join(f"--{flag.name}" for flag in command.flags)
        begins = '[ "${cur#-}" = "$cur" ]'
        yield f'      {name}) words="{" ".join(command.choices)}"; {begins} || words="{flags}" ;;'
    yield "      esac ;;"
    yield "    esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"


def fish(table: dict[str, Words]) -> str:
    """A script for fish."""
    lines = []
    for name, command in table.items():
        lines.append(f"complete -c gpt2 -n __fish_use_subcommand -a {name} -d {_quoted(command.about)}")
        here = f"complete -c gpt2 -n '__fish_seen_subcommand_from {name}'"
        if command.choices:
            lines.append(f"{here} -a {_quoted(' '.join(command.choices))}")
        for flag in command.flags:
            only = "-r" if f"--{flag.name}" in NAMES else "-x"
            takes = " -r" if flag.takes else ""
            if flag.choices:
                takes = f" {only} -a {_quoted(' '.join(flag.choices))}"
            lines.append(f"{here} -l {flag.name}{takes} -d {_quoted(flag.about)}")
    return "\n".join(lines) + "\n"


def _quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("%%", "%") + "'"


EXAMPLES = (
    ("source <(gpt2 completion bash)", "in ~/.bashrc"),
    ("source <(gpt2 completion zsh)", "in ~/.zshrc"),
    ("gpt2 completion fish > ~/.config/fish/completions/gpt2.fish", "once"),
)


def parser() -> cli.Parser:
    """The flags of `gpt2 completion`."""
    about = "Print a shell completion script for `gpt2`: its commands, flags and choices."
    command = cli.Parser("completion", about, EXAMPLES)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return command


def _run(args):
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](everything()), end="")


main = cli.command(parser, _run)
