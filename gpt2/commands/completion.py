"""Print a shell completion script for `gpt2`: its commands, flags and choices.

The package shtab writes it, from the parsers of all commands. Completing does not start Python. Write the
script again after an update.
"""

import argparse
import importlib

from gpt2 import cli
from gpt2.__main__ import commands, module_of
from gpt2.errors import UserError
from gpt2.hints import install
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


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    return importlib.import_module(module_of(name)).parser()


def script(shell: str) -> str:
    """The script for a shell: shtab's, from one parser of all commands with the choices to offer."""
    try:
        import shtab
    except ImportError:
        raise UserError(f"completion scripts need the package shtab: {install('shtab')}") from None
    whole = argparse.ArgumentParser("gpt2")
    whole.add_argument("--version", action="store_true", help="which version this is")
    each = whole.add_subparsers()
    for name, about in commands().items():
        command = parser_of(name)
        for action in command._actions:
            listed = str(action.metavar or "")  # own|llm.c; one in capitals is a placeholder
            names = listed.split("|") if "|" in listed and listed.islower() else None
            known = next((NAMES[flag] for flag in action.option_strings if flag in NAMES), None)
            action.choices = action.choices or names or (known if action.nargs != 0 else None)
            if action.nargs != 0 and not action.choices:
                vars(action)["complete"] = shtab.FILE
        each.add_parser(name, help=about, parents=[command], add_help=False)
    # Also for names that may be a path: bash completes file names if nothing else fits
    return shtab.complete(whole, shell).replace(
        "complete -o bashdefault", "complete -o default -o bashdefault"
    )


EXAMPLES = (
    ("source <(gpt2 completion bash)", "in ~/.bashrc"),
    ("gpt2 completion zsh > ~/.zfunc/_gpt2", "once, with ~/.zfunc in $fpath"),
    ("gpt2 completion fish > ~/.config/fish/completions/gpt2.fish", "once"),
)


def parser() -> cli.Parser:
    about = "Print a shell completion script for `gpt2`: its commands, flags and choices."
    command = cli.Parser("completion", about, EXAMPLES, "It needs the package shtab.")
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return command


def _run(args):
    print(script(args.shell))


main = cli.command(parser, _run)
