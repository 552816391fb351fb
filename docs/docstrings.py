"""Docstrings as Markdown, for the pages of the reference: mkdocs.yml names `Docstrings` for that.

In the source a docstring is plain text: paragraphs, lines that name an argument and say what it is,

    config    GPT2Config
    seed      of the initial parameters; None leaves
              them zero

and examples after >>>. Here the lines become a list, and the examples a block of code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the tests of this file need none
    Extension = object  # type: ignore[assignment,misc]

# An argument's name, or a few of them, and after two spaces what it is
ROW = re.compile(r"(?P<name>\S+(?:,? \S+)*?) {2,}(?P<words>\S.*)$")


def entries(text: str) -> str:
    """A page with an entry, `::: name`, for each name in paragraphs of names alone: `ad.grad` `ad.vjp`."""
    parts = text.split("\n\n")
    for i, part in enumerate(parts):
        names = part.split()
        if names and all(re.fullmatch(r"`(?:ad|gpt2)\.[\w.]+`", name) for name in names):
            dotted = (re.sub(r"^ad\.", "gpt2.autodiff.", name.strip("`")) for name in names)
            parts[i] = "\n\n".join(f"::: {name}" for name in dotted)
    return "\n\n".join(parts)


def markdown(text: str) -> str:
    """A docstring, without the indentation of its source, as Markdown."""
    return "\n\n".join(_block(lines) for lines in _blocks(text))


def _blocks(text: str) -> list[list[str]]:
    """Paragraphs; blocks of code that follow each other stay together over empty lines."""
    found: list[list[str]] = [[]]
    for line in text.rstrip().split("\n"):
        if line.strip():
            found[-1].append(line)
        else:
            found.append([])
    merged: list[list[str]] = []
    for block in filter(None, found):
        if merged and _is_code(block) and _is_code(merged[-1]):
            merged[-1] += ["", *block]
        else:
            merged.append(block)
    return merged


def _is_code(lines: list[str]) -> bool:
    return lines[0].startswith(">>> ") or all(line.startswith("    ") or not line for line in lines)


def _block(lines: list[str]) -> str:
    if _is_code(lines):
        bare = textwrap.dedent("\n".join(lines)).replace("<BLANKLINE>", "")
        return f"```{'pycon' if bare.startswith('>>>') else 'text'}\n{bare}\n```"
    rows = _rows(lines)
    if rows is None:
        return escaped("\n".join(lines))
    return "\n".join(f"- `{name}`: {escaped(words)}" for name, words in rows)


def _rows(lines: list[str]) -> list[tuple[str, str]] | None:
    """(name, words) of a block whose every line names something, or goes on with the line before."""
    found: list[tuple[str, str]] = []
    for line in lines:
        row = ROW.match(line)
        if row and not line.startswith(" "):
            found.append((row["name"], row["words"]))
        elif line.startswith("  ") and found:
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
        else:
            return None
    return found


def escaped(text: str) -> str:
    """Plain text whose signs mean nothing in Markdown; what stands between backquotes is left alone."""
    parts = re.split(r"(`[^`\n]+`)", text)
    parts[::2] = [re.sub(r"([*\[\]<>_|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


class Docstrings(Extension):  # type: ignore[misc,valid-type]
    """Hands each docstring to `markdown` when the page's objects are read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
