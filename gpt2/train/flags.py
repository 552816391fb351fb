"""Settings from a frozen dataclass: command-line flags, TOML, limits and printing.

    @dataclass(frozen=True)
    class Settings:
        steps: int = setting("optimisation", 500, "optimizer steps", minimum=1)

Each field has a default, a group, a line of help with its unit, and its limits. From these come the flags
(--steps, grouped in --help), the names that a TOML file may use, and the checks. This module needs no NumPy,
so that a program can read its settings before NumPy starts its threads.
"""

import argparse
import dataclasses
import json
import math
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt2.errors import UserError, nearest, printable, suggestion

EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def setting(
    group: str,
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
    fixed: bool = False,
    many: bool = False,
) -> Any:
    """A field of a settings class.

    group, help     for --help; help names the unit
    default         also gives the type: int, float, str or bool
    minimum, below  the range of a number: minimum <= x < below
    choices         the only values allowed
    fixed           a resumed run cannot change it
    many            several words on the command line, or a list in TOML, are joined by commas
    """
    limits = dict(minimum=minimum, below=below, choices=choices)
    facts = dict(group=group, help=help, fixed=fixed, many=many, **limits)
    return dataclasses.field(default=default, metadata=facts)


def flag(name: str) -> str:
    """The command-line spelling of a field's name."""
    return "--" + name.replace("_", "-")


def as_typed(name: str, value: Any) -> str:
    """A field with its value as on the command line: --steps 10, --no-bias."""
    if isinstance(value, bool):
        return flag(name) if value else f"--no-{flag(name)[2:]}"
    return f"{flag(name)} {value}"


def add_arguments(parser: argparse.ArgumentParser, cls: type) -> None:
    """Add a flag for every field of the settings class, in groups. Flags not given are not in the result."""
    groups = {}
    for field in dataclasses.fields(cls):
        group = field.metadata["group"]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        default = ("off", "on")[field.default] if isinstance(field.default, bool) else field.default
        shown = "" if default == "" else f" (default: {default})"
        options = dict(dest=field.name, default=argparse.SUPPRESS, help=field.metadata["help"] + shown)
        if field.type is bool or field.type == "bool":
            groups[group].add_argument(flag(field.name), action=argparse.BooleanOptionalAction, **options)
        else:
            metavar = "|".join(field.metadata["choices"] or ()) or field.name.split("_")[-1].upper()
            options.update(nargs="+" if field.metadata["many"] else None)
            groups[group].add_argument(flag(field.name), metavar=metavar, **options)


def parse(
    parser: argparse.ArgumentParser, cls: type, argv: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(given, other): the fields that `argv` sets, by name and of the right type, and the parser's own flags.

    Raises UserError for unknown flags, and for values that are wrong or out of range.
    """
    values = vars(parser.parse_args(argv))
    names = {field.name for field in dataclasses.fields(cls)}
    given = {name: convert(cls, name, v, flag(name)) for name, v in values.items() if name in names}
    return given, {name: value for name, value in values.items() if name not in names}


def read_toml(path: str | Path, cls: type) -> dict[str, Any]:
    """The fields that a TOML file sets, by name. Tables are allowed, without meaning.

    Raises UserError for a file that is missing or not TOML, and for unknown names, naming the nearest one.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows' editors write a mark
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, no UTF-8, a number of 5000 digits
        raise UserError(f"{path}: not a TOML file: {str(error).splitlines()[0]}") from None
    names = [field.name for field in dataclasses.fields(cls)]
    given = {}
    entries: list[tuple[str, Any]] = []
    for name, value in content.items():
        entries += value.items() if isinstance(value, dict) else [(name, value)]
    for name, value in entries:
        if isinstance(value, dict):
            raise UserError(f"{path}: table {name!r} inside a table; expected names and values")
        name = name.replace("-", "_")
        if name not in names:
            raise UserError(f"{path}: unknown setting {name!r}{nearest(name, names)}")
        if name in given:
            raise UserError(f"{path}: {name} is set twice")
        given[name] = convert(cls, name, value, f"{path}: {name}")
    return given


def convert(cls: type, name: str, value: Any, where: str) -> Any:
    """`value`, a str from the command line or a TOML value, as the type of the field, its limits checked."""
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    kind: Any = type(field.default)
    if field.metadata["many"] and isinstance(value, list) and all(isinstance(v, str) for v in value):
        if len(value) > 1 and any("," in v for v in value):
            raise UserError(f"{where}: one of several names has a comma; give a folder or a pattern")
        value = ",".join(value)
    number = isinstance(value, str | int | float) and not isinstance(value, bool)
    fits = isinstance(value, kind) if kind in (bool, str) else number
    try:
        if not fits or (kind is int and isinstance(value, float) and value != int(value)):
            raise ValueError
        value = kind(value)
    except (ValueError, OverflowError):
        raise UserError(f"{where}: expected {EXPECTED[kind]}, got {value!r}") from None
    if kind is str:
        check_text(where, value)
    _check_limits(field.metadata, value, where)
    return value


def check_text(where: str, text: str) -> None:
    """Raise UserError for bytes that are not UTF-8: Python passes them as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} {text}: not UTF-8 text (character {error.start})") from None


def check(settings: Any) -> None:
    """Raise UserError if a field of a settings object has the wrong type or is out of range."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, str) and not isinstance(field.default, str):  # convert would read it as a number
            raise UserError(f"{field.name}: expected {EXPECTED[type(field.default)]}, got {value!r}")
        convert(type(settings), field.name, value, field.name)


def _check_limits(limits, value, where):
    choices, minimum, below = limits["choices"], limits["minimum"], limits["below"]
    if choices and value not in choices:
        text = f"{where}: expected one of {', '.join(choices)}; got {value!r}"
        raise UserError(text + suggestion(str(value), choices))
    if minimum is not None and not (value >= minimum and math.isfinite(value)):
        raise UserError(f"{where}: expected {minimum} or more, got {value}")
    if below is not None and not value < below:
        raise UserError(f"{where}: expected less than {below}, got {value}")


def essence(settings: Any, main: Sequence[str], without: Sequence[str]) -> str:
    """The settings `main` and those that differ from their defaults, except `without`; 79 columns wide."""
    shown = {name: getattr(settings, name) for name in main}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in without and value != field.default:
            shown.setdefault(field.name, value)
    texts = [
        f"{name}={v:g}" if isinstance(v, float) else f"{name}={printable(v)}" for name, v in shown.items()
    ]
    return textwrap.fill(" ".join(texts), 79, break_on_hyphens=False, break_long_words=False)


def table(settings: Any) -> str:
    """The settings as text, one paragraph a group, at most 79 columns wide."""
    groups: dict[str, list[str]] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == "":
            continue
        shown = f"{value:g}" if isinstance(value, float) else printable(value)
        groups.setdefault(field.metadata["group"], []).append(f"{field.name}={shown}")
    width = max(len(group) for group in groups)
    fill = textwrap.TextWrapper(
        79, subsequent_indent=" " * (width + 2), break_on_hyphens=False, break_long_words=False
    ).fill
    return "\n".join(fill(f"{group:<{width}}  {' '.join(items)}") for group, items in groups.items())


def to_toml(settings: Any) -> str:
    """The settings as a TOML file that --config reads back."""
    lines = []
    group = None
    for field in dataclasses.fields(settings):
        if field.metadata["group"] != group:
            group = field.metadata["group"]
            lines.append(f"\n[{group}]" if lines else f"[{group}]")
        # JSON's numbers, words and escapes are TOML's, but that TOML escapes DEL
        value = json.dumps(getattr(settings, field.name), ensure_ascii=False).replace("\x7f", "\\u007f")
        lines.append(f"{field.name} = {value}")
    return "\n".join(lines) + "\n"
