"""Remembers choices made by measuring: for the process and, once a folder is named, on this machine.

A file holds an object for each machine, {machine: {key: [value, day]}}. Choices affect speed and not results,
so a file that is unreadable or damaged counts as empty, and an unwritable one is ignored. What was measured
while the machine was busy should not be kept.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

_folder: Path | None = None
_all: list[Choices] = []


def remember(folder: str | os.PathLike) -> None:
    """Keep what the compiler measures once for a machine (how products may be split) in files, from now on.

    folder   a path; it is made when there is something to keep. A later process that calls remember(folder)
             on the same machine, with the same NumPy, need not measure again

    Never raises: an unwritable folder is ignored, a damaged file counts as empty.

        >>> ad.remember("timings")
    """
    global _folder
    _folder = Path(folder)
    for choices in _all:
        choices.read()


def forget() -> None:
    """Drop all choices, and write none: for tests and measurements."""
    global _folder
    _folder = None
    for choices in _all:
        choices.clear()


class Choices:
    """Choices of one kind.

    name      of the file
    values    texts that may be chosen, anything else in the file is ignored; None: any text
    software  () -> a text of what choices depend on, besides the key, the processor and NumPy
    days      after which it is measured again; None: never

    A key is a tuple whose items, written as texts, tell it from all others, in any process.

        >>> sides = ad.Choices("sides", ("left", "right"))
        >>> sides.get(("a task", 3)) is None
        True
    """

    def __init__(
        self, name: str, values: tuple[str, ...] | None, software: Callable = str, days: int | None = None
    ):
        self.name, self.values, self.software = name, values, software
        self.days = days
        self.by_key: dict[tuple, str] = {}
        self.own: dict[str, list] = {}  # (choice, day) of those of this process that are to be kept
        self.earlier: dict[str, str] = {}  # choices of the file
        self.lock = threading.Lock()
        _all.append(self)
        self.read()

    def get(self, key: tuple) -> str | None:
        """The choice for this key; None where there is none, or where it should be measured again."""
        value = self.by_key.get(key)
        if value is None and self.earlier:
            value = self.earlier.get(_text(key))
            if value is not None:
                self.by_key[key] = value  # the text of the key takes time
        return value

    def put(self, key: tuple, value: str, keep: bool = True) -> None:
        """Choose, and write it to the file if a folder is named and the choice is to be kept."""
        with self.lock:
            self.by_key[key] = value
            if keep:
                self.own[_text(key)] = [value, today()]
                self._save()

    def clear(self) -> None:
        self.by_key.clear()
        self.own.clear()
        self.earlier = {}

    def machine(self) -> str:
        """The machine and the software that the choices depend on besides their keys."""
        cores, version = f"{os.cpu_count()} cores", f"numpy {_version()}"
        parts = platform.machine(), processor(), cores, version, self.software()
        return " ".join(filter(None, parts))

    def read(self) -> None:
        """Read the choices of earlier processes; those of this one stay."""
        if _folder is not None:
            stored = self._stored(_folder / self.name)
            known = stored.get(self.machine(), {}) if stored else {}
            self.earlier = {}
            for key, entry in known.items():
                match entry:
                    case [str(value), int(day)] if self.values is None or value in self.values:
                        if self.days is None or 0 <= today() - day < self.days:
                            self.earlier[key] = value

    def _stored(self, path: Path) -> dict[str, dict]:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # the last where brackets are nested without end
            return {}
        fine = isinstance(stored, dict) and all(isinstance(v, dict) for v in stored.values())
        return stored if fine else {}

    def _save(self) -> None:
        if _folder is None:
            return
        path = _folder / self.name
        stored = self._stored(path)  # with what other processes found meanwhile
        stored.setdefault(self.machine(), {}).update(self.own)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, json.dumps(stored, indent=1))
            self.own.clear()


def today() -> int:
    return int(time.time() // 86400)


@cache
def _version() -> str:
    """NumPy's version, without importing it: a choice may be about how to load it."""
    try:
        return importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(key: tuple) -> str:
    return " ".join(map(str, key))


def _write(path: Path, text: str) -> None:
    """Write a file atomically; delete temporary files of killed processes."""
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - 60:
                left.unlink()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@cache
def processor() -> str:
    """The processor's name; empty if the system does not name it.

    >>> isinstance(ad.processor(), str)
    True
    """
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
        for line in info:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
