"""Print what makes a shell complete `gpt2`: its commands, flags and choices.

    source <(gpt2 completion bash)                                        in ~/.bashrc
    source <(gpt2 completion zsh)                                         in ~/.zshrc
    gpt2 completion fish > ~/.config/fish/completions/gpt2.fish

The script holds all that it needs, so that completing starts no Python. After an update, make it again.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt2 import cli
from gpt2.__main__ import commands, module_of

SHELLS = ("bash", "zsh", "fish")


class Flag(NamedTuple):
    """A flag of a command: its name without --, what it may be followed by, and its line of help.

    takes   whether something follows it: one of `choices`, or anything where there are none
    """

    name: str
    choices: tuple[str, ...]
    takes: bool
    about: str


class Words(NamedTuple):
    """What may follow a command: its flags, and what it may be given without a flag."""

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
                flags.append(Flag(option[2:], allowed, action.nargs != 0, (action.help or "").split(";")[0]))
    return Words(about, flags, choices)


def _listed(metavar):
    """The choices of a setting, which stand in its metavar: own|llm.c. Capitals are to be replaced."""
    return metavar.split("|") if isinstance(metavar, str) and "|" in metavar and metavar.islower() else ()


def everything() -> dict[str, Words]:
    """Command -> what may follow it."""
    return {name: words(name, about) for name, about in commands().items()}


def bash(found: dict[str, Words]) -> str:
    """A script for bash."""
    return "\n".join([*_function(found), "complete -o default -o bashdefault -F _gpt2 gpt2", ""])


def zsh(found: dict[str, Words]) -> str:
    """A script for zsh, which can read bash's."""
    start = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
    return "\n".join([*start, *_function(found), "complete -o default -F _gpt2 gpt2", ""])


def _function(found) -> Iterator[str]:
    """The shell function that both use. Where it finds nothing the shell completes names of files."""
    yield "_gpt2() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    words="{" ".join([*found, "--help", "--version"])}"'
    yield '  else case "${COMP_WORDS[1]} $prev" in'
    for name, what in found.items():
        for flag in what.flags:
            if flag.takes:
                yield f"    '{name} --{flag.name}') words=\"{' '.join(flag.choices)}\" ;;"
    yield '    *) case "${COMP_WORDS[1]}" in'
    for name, what in found.items():
        flags = " ".join(f"--{flag.name}" for flag in what.flags)
        begins = '[ "${cur#-}" = "$cur" ]'
        yield f'      {name}) words="{" ".join(what.choices)}"; {begins} || words="{flags}" ;;'
    yield "      esac ;;"
    yield "    esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"


def fish(found: dict[str, Words]) -> str:
    """A script for fish."""
    lines = []
    for name, what in found.items():
        lines.append(f"complete -c gpt2 -n __fish_use_subcommand -a {name} -d {_quoted(what.about)}")
        here = f"complete -c gpt2 -n '__fish_seen_subcommand_from {name}'"
        if what.choices:
            lines.append(f"{here} -a {_quoted(' '.join(what.choices))}")
        for flag in what.flags:
            takes = (
                f" -x -a {_quoted(' '.join(flag.choices))}" if flag.choices else " -r" if flag.takes else ""
            )
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
    about = "Print what makes a shell complete `gpt2`: its commands, flags and choices."
    made = cli.Parser("completion", about, EXAMPLES)
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return made


def _run(args):
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](everything()), end="")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script of the shell that `argv` names. Returns the exit status."""
    return cli.run(parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
