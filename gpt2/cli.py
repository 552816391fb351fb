"""Command lines: a parser that suggests the nearest flag after a typing error, and text that fits a terminal.

Nothing here imports NumPy: the flags of a training run are read before NumPy starts its threads.
"""

import argparse
import io
import os
import re
import shutil
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from gpt2.errors import UserError, exit_status, nearest, printable, suggestion
from gpt2.hints import quoted, typed
from gpt2.output import painted

PAGE = 80  # characters: --help and messages are no wider, however wide the terminal is
WIDE = 180  # the width assumed for a pipe or a file
NARROW = 40  # the least width of a column of source
WHOLE_WORDS: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}  # for textwrap

# A flag, and its names in other programs, accepted if a command has no flag of that name
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "--lr": ("--learning-rate",),
    "--min-lr": ("--min-learning-rate", "--learning-rate-min"),
    "--steps": ("--max-iters", "--max-steps", "--num-steps", "--iterations"),
    "--warmup": ("--warmup-iters", "--warmup-steps"),
    "--batch-size": ("--per-device-train-batch-size",),
    "--block-size": ("--sequence-length", "--seq-len", "--context-length"),
    "--accumulate": ("--gradient-accumulation-steps", "--grad-accum"),
    "--clip": ("--grad-clip", "--max-grad-norm"),
    "--n-layer": ("--n-layers", "--num-layers"),
    "--n-head": ("--heads", "--n-heads", "--num-heads"),
    "--n-embd": ("--channels", "--hidden-size", "--n-embed", "--d-model"),
    "--eval-every": ("--eval-interval",),
    "--log-every": ("--log-interval",),
    "--out": ("--out-dir", "--output", "--output-dir"),
    "--max-tokens": ("--max-new-tokens", "--length", "--num-tokens"),
    "--samples": ("--num-samples", "--n-samples"),
    "--prompt": ("--start",),
    "--init": ("--init-from",),
    "--parallel": ("--distributed",),
    "--workers": ("--num-workers", "--processes"),
}


class Page(argparse.RawDescriptionHelpFormatter):
    """argparse's help, at most PAGE characters wide."""

    def __init__(self, prog: str, **options: Any):
        options["width"] = min(width(PAGE), PAGE) - 1
        super().__init__(prog, max_help_position=26, **options)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """The flag and its choices, a|b, which are broken after a bar into lines that fit."""
        lines, room = [""], self._width - self._current_indent
        for piece in re.findall(r"[^|]*\|?", super()._format_action_invocation(action)):
            if len(lines[-1] + piece) > room:
                lines.append(" " * 6)
            lines[-1] += piece
        return ("\n" + " " * self._current_indent).join(lines)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError and suggests the nearest flag or choice.

    name       of the command: "sample" for `gpt2 sample`
    about      what it does; paragraphs are filled, indented lines stay as they are
    examples   (command line, what it does) pairs, shown at the end of --help
    note       text shown before the examples

    A flag may be written with _ or with -, or by its name in other programs (SYNONYMS). It is never
    abbreviated.
    """

    def __init__(
        self,
        name: str,
        about: str = "",
        examples: Iterable[tuple[str, str]] = (),
        note: str = "",
        **options: Any,
    ):
        options = {"prog": typed(f"gpt2 {name}"), "formatter_class": Page, "allow_abbrev": False, **options}
        super().__init__(description=filled(typed(about)), **options)
        self.color = False  # argparse's own colours, from Python 3.14 on; those below serve all versions
        self.examples = tuple(examples)
        self.note = note

    def format_help(self) -> str:
        """The text of --help, in colour where it goes to a terminal."""
        parts = [super().format_help().rstrip()]
        if self.note:
            parts.append(filled(typed(self.note)))
        if self.examples:
            parts.append("examples:\n" + "\n".join(example_lines(self.examples)))
        text = "\n\n".join(parts) + "\n"
        text = re.sub(r"(?m)^(\w[^\n]*):$", lambda m: painted(m[0], "bold"), text)
        return re.sub(r"(?m)^( {2,4})(--?[\w-]+)", lambda m: m[1] + painted(m[2], "blue"), text)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required") and self.examples:
            message += f"; for example: {typed(self.examples[0][0])}"
        raise UserError(message)

    def long_flags(self) -> list[str]:
        """All --flags."""
        return [s for action in self._actions for s in action.option_strings if s.startswith("--")]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [self.canonical_flag(word) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise UserError(f"unknown argument {unknown[0]}; --help lists what there is")
        return parsed

    def canonical_flag(self, word: str) -> str:
        """A word of the command line as this parser spells it. Raises UserError for an unknown flag."""
        if not word.startswith("--") or word == "--" or " " in word.partition("=")[0]:
            return word
        name, equals, value = word.partition("=")
        name, flags = name.replace("_", "-"), self.long_flags()
        if name not in flags:
            other = {s: flag for flag in flags for s in SYNONYMS.get(flag, ())}
            if name not in other:
                raise UserError(f"unknown argument {word}{nearest(name, flags, other)}")
            name = other[name]
        return name + equals + value

    def _check_value(self, action, value):
        """argparse's hook for `choices`."""
        choices = action.choices
        if choices is None or value in choices:
            return
        names = [str(choice) for choice in choices]
        text = f"{value!r} is not one of {', '.join(names)}{suggestion(str(value), names)}"
        if str(value).endswith(".py") and "--layers" in self.long_flags():
            text += f"; a file of own layers is named by --layers {quoted(value)}"
        raise argparse.ArgumentError(action, text)


def run(parser: argparse.ArgumentParser, work: Callable[..., int | None], argv: Sequence[str] | None) -> int:
    """Parse the command line and call work(arguments). Returns the exit status; an error is one line."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # '?' where a console lacks the character
    return exit_status(lambda: work(parser.parse_args(argv)))


def command(
    parser: Callable[[], argparse.ArgumentParser], work: Callable[..., int | None]
) -> Callable[..., int]:
    """main(argv) of a command, which calls `run` with the result of parser()."""

    def main(argv: Sequence[str] | None = None) -> int:
        return run(parser(), work, argv)

    return main


def add_weights(command: argparse.ArgumentParser) -> None:
    """The flags that name a model, for gpt2.weights.pretrained.load."""
    add = command.add_argument
    add("--run", default="", help="the run's folder (default: the newest in runs/)")
    add("--checkpoint", default="best", choices=["best", "last"], help="which weights (default: %(default)s)")
    add("--init", default="", metavar="WEIGHTS", help="weights of another kind instead: gpt2, ..., or a path")
    add("--layers", metavar="FILE.py", help="the model's own layers, if their file has moved")


def tell(line: str) -> None:
    """Print on standard error: standard output is for the result."""
    print(printable(line), file=sys.stderr)


# ---- Text ------------------------------------------------------------------------------------------------


def width(otherwise: int = WIDE) -> int:
    """Characters in a line of the terminal; `otherwise` if the output goes to a file or a pipe."""
    known = bool(os.environ.get("COLUMNS")) or (sys.stdout is not None and sys.stdout.isatty())
    return shutil.get_terminal_size((otherwise, 24)).columns if known else otherwise


def fitted(text: str) -> str:
    """A line, wrapped with a hanging indent if the terminal is too narrow for it."""
    columns = width(0)
    if not columns or len(text) < columns:
        return text
    return textwrap.fill(text, columns - 1, subsequent_indent=" " * 6, **WHOLE_WORDS)


def filled(text: str, columns: int = PAGE - 1) -> str:
    """Paragraphs broken into lines of at most `columns` characters; indented ones are kept as they are."""
    parts = []
    for paragraph in textwrap.dedent(text).strip("\n").split("\n\n"):
        indented = paragraph.startswith(" ")
        parts.append(paragraph if indented else textwrap.fill(" ".join(paragraph.split()), columns))
    return "\n\n".join(parts)


def example_lines(examples: Iterable[tuple[str, str]]) -> list[str]:
    """Examples as lines of at most PAGE characters: the command, and what it does below it."""
    lines = []
    for command, about in examples:
        lines.append(" ")
        for word in re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", typed(command)):
            if len(lines[-1]) + len(word) > PAGE - 5 and lines[-1].strip():
                lines[-1] += " \\"  # a shell reads the lines as one
                lines.append("     ")
            lines[-1] += f" {word}"
        lines += textwrap.wrap(about, PAGE - 5, initial_indent="      ", subsequent_indent="      ")
    return lines


def side_by_side(texts: Sequence[tuple[str, str]], columns: int) -> list[str]:
    """(title, source) pairs as lines: in columns if `columns` characters are enough, else stacked."""
    gap = 3  # " | "
    each = (columns - gap * (len(texts) - 1)) // len(texts)
    if each < NARROW:
        lines: list[str] = []
        for title, source in texts:
            head = f"---- {title} ".ljust(min(columns, 66), "-")
            lines += [head, "", *wrapped_code(source, columns - 1), ""]
        return lines[:-1]
    sides = []
    for title, source in texts:
        # wrapped once more: a long string is no code
        code = [part for line in wrapped_code(source, each) for part in wrapped(line, each)]
        sides.append([title, "-" * each, *code])
    height = max(map(len, sides))
    sides = [side + [""] * (height - len(side)) for side in sides]
    return [" | ".join(f"{cell:{each}}" for cell in row).rstrip() for row in zip(*sides)]


def wrapped_code(source: str, columns: int) -> list[str]:
    """Lines of Python, long ones wrapped so that they still run: between tokens, with a backslash outside of
    brackets, and inside of them also at a blank of a text, which becomes two texts. Comments go above their
    line. What is no Python is wrapped as it is."""
    try:
        tokens = [*tokenize.generate_tokens(io.StringIO(source.rstrip() + "\n").readline)]
    except (tokenize.TokenError, SyntaxError):
        return wrapped(source, columns)
    places: dict[int, list[Break]] = {}
    comments, in_strings, depth, in_f_string, opened = {}, set(), 0, 0, None
    for t in tokens:
        kind, line = tokenize.tok_name[t.type], t.start[0]
        depth -= t.string in (")", "]", "}") and kind == "OP" and not in_f_string
        in_f_string -= kind == "FSTRING_END"
        if kind == "COMMENT":
            comments[line] = t.start[1]
        elif not in_f_string:
            if kind != "FSTRING_END":
                places.setdefault(line, []).append(Break(t.start[1], depth))
                opened = t
            if depth and kind in ("STRING", "FSTRING_END") and t.end[0] == opened.start[0]:
                places[line] += _in_text(t.line, opened.start[1], t.end[1], depth)
        in_f_string += kind == "FSTRING_START"
        depth += t.string in ("(", "[", "{") and kind == "OP" and not in_f_string
        if kind == "STRING":
            is_docstring = t.string.endswith('"""') and t.line.strip() == t.string
            in_strings.update(range(line, t.end[0] + 1) if t.end[0] > line or is_docstring else ())
    lines: list[str] = []
    for number, line in enumerate(source.rstrip().split("\n"), 1):
        if len(line) <= columns:
            lines.append(line)
        elif number in in_strings:
            lines += wrapped(line, columns)
        else:
            lines += _wrapped_statement(line, columns, places.get(number, []), comments.get(number))
    return lines


class Break(NamedTuple):
    """Where a line may be wrapped: a column, the depth of brackets there, and what ends and begins a text."""

    at: int
    depth: int
    end: str = ""
    begin: str = ""


def _in_text(line: str, start: int, end: int, depth: int) -> Iterator[Break]:
    """The places in a text, after blanks that are in no replacement field. The text stands in one line."""
    opening = re.match("[a-zA-Z]*[\"']", line[start:end])
    if opening is None or line[start:end].endswith(opening[0][-1] * 3):
        return
    level = 0
    for k in range(start + len(opening[0]), end - 2):
        level += (line[k] == "{") - (line[k] == "}")
        if line[k] == " " and level == 0:
            yield Break(k + 1, depth, opening[0][-1], opening[0])


def _wrapped_statement(line: str, columns: int, places: list[Break], comment: int | None) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    lines = []
    if comment is not None:
        lines = textwrap.wrap(line[comment:], columns, initial_indent=indent, subsequent_indent=f"{indent}# ")
        line = line[:comment].rstrip()
    begin, hanging = 0, ""
    while len(hanging) + len(line) - begin > columns:
        room = columns - len(hanging) + begin
        fitting = [
            place
            for place in places
            if len(indent) < place.at <= room - 2 * (place.depth == 0) - len(place.end)
            and place.at > begin
            and line[place.at - 1] in " ([{"
        ]
        fitting = [place for place in fitting if not place.end] or fitting
        if not fitting:
            break
        best = max(fitting, key=lambda place: place.at - 12 * (place.depth + (line[place.at - 1] != " ")))
        part = hanging + line[begin : best.at]
        lines.append(part + best.end if best.end else part.rstrip() + (" \\" if best.depth == 0 else ""))
        begin, hanging = best.at, indent + " " * 8 + best.begin
    return [*lines, hanging + line[begin:]] if line.strip() else lines


def wrapped(source: str, columns: int) -> list[str]:
    """Lines of source, long ones wrapped with a hanging indent."""
    lines = []
    for line in source.rstrip().split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + " " * 8
        wraps = len(line) > columns
        lines += textwrap.wrap(line, columns, subsequent_indent=indent, **WHOLE_WORDS) if wraps else [line]
    return lines
