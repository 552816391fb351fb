"""Keeps what was chosen by measuring: for the process and, once a folder is named, on this machine.

    ways = Choices("products.json", ("rows", "columns"))
    ways.get(key)        what was chosen for this key, by this process or an earlier one; None: measure it
    ways.put(key, way)
    remember(folder)     of all choices: read the files in this folder, and write to them what is chosen
    forget()

A file holds an object for each machine, {machine: {key: value}}. Choices decide how fast a program is and not
whether it is right, so a file that cannot be read, or is damaged, counts as empty, and one that cannot be
written is done without.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

_folder: Path | None = None
_all: list[Choices] = []


def remember(folder: str | os.PathLike) -> None:
    """Keep what the compiler chooses by measuring (how products are split) in files, from now on.

    folder   a path; it is made when there is something to keep. A later process that calls remember(folder)
             on the same machine, with the same NumPy, need not measure again

    Never raises: a folder that cannot be written to is done without, a damaged file counts as empty.
    """
    global _folder
    _folder = Path(folder)
    for choices in _all:
        choices.read()


def forget() -> None:
    """Choose anew, and write nothing: for tests and measurements."""
    global _folder
    _folder = None
    for choices in _all:
        choices.clear()


class Choices:
    """Choices of one kind.

    name      of the file
    values    what may be chosen, texts; anything else in the file is passed over
    software  () -> the text of what they depend on, besides the key, the processor and NumPy

    A key is a tuple whose items, written as texts, tell it from all others, in any process.
    """

    def __init__(self, name: str, values: tuple[str, ...], software: Callable[[], str] = str):
        self.name, self.values, self.software = name, values, software
        self.made: dict[tuple, str] = {}
        self.earlier: dict[str, str] = {}  # of the file
        self.lock = threading.Lock()
        _all.append(self)
        self.read()

    def get(self, key: tuple) -> str | None:
        """What was chosen for this key; None where nothing was."""
        value = self.made.get(key)
        if value is None and self.earlier:
            value = self.earlier.get(_text(key))
            if value is not None:
                self.made[key] = value  # the next time without the text
        return value

    def put(self, key: tuple, value: str) -> None:
        """Choose, and write it down where a folder is named."""
        with self.lock:
            self.made[key] = value
            self._save()

    def clear(self) -> None:
        """Forget all choices of this kind."""
        self.made.clear()
        self.earlier = {}

    def machine(self) -> str:
        """What the choices depend on besides their keys."""
        parts = (
            platform.machine(),
            processor(),
            f"{os.cpu_count()} cores",
            f"numpy {np.__version__}",
            self.software(),
        )
        return " ".join(filter(None, parts))

    def read(self) -> None:
        """Take up what earlier processes found; what this one has chosen stays."""
        if _folder is not None:
            found = self._stored(_folder / self.name)
            known = found.get(self.machine(), {}) if found else {}
            self.earlier = {key: value for key, value in known.items() if value in self.values}

    def _stored(self, path: Path) -> dict[str, dict]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # the last where brackets are nested without end
            return {}
        fine = isinstance(found, dict) and all(isinstance(v, dict) for v in found.values())
        return found if fine else {}

    def _save(self) -> None:
        if _folder is None:
            return
        path = _folder / self.name
        stored = self._stored(path)  # with what other processes found meanwhile
        stored.setdefault(self.machine(), {}).update({_text(k): v for k, v in self.made.items()})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, json.dumps(stored, indent=1))
        except OSError:
            pass


def _text(key: tuple) -> str:
    return " ".join(map(str, key))


def _write(path: Path, text: str) -> None:
    """All of it or nothing: who reads meanwhile finds the old file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@cache
def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
