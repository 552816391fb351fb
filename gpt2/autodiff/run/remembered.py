"""Keeps what was chosen by measuring: for the process and, once a folder is named, on this machine.

    ways = Choices("products.json", ("rows", "columns"))
    ways.get(key)        what was chosen for this key, by this process or an earlier one; None: measure it
    ways.put(key, way)   what a measurement came to; keep=False: for this process alone
    remember(folder)     of all choices: read the files in this folder, and write to them what is chosen
    forget()

A file holds an object for each machine, {machine: {key: [value, votes, day]}}. Choices decide how fast a
program is and not whether it is right, so a file that cannot be read, or is damaged, counts as empty, and one
that cannot be written is done without.

No measurement is trusted for ever: it may have met the machine at a bad time. A choice is used without
measuring once as many processes as it asks for have come to it, each on its own; one that comes to another
takes a vote away. After so many days it is measured again.
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
    """Keep what the compiler chooses by measuring (how products are split) in files, from now on.

    folder   a path; it is made when there is something to keep. A later process that calls remember(folder)
             on the same machine, with the same NumPy, need not measure again

    Never raises: a folder that cannot be written to is done without, a damaged file counts as empty.

        >>> ad.remember("timings")
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
    values    what may be chosen, texts, and anything else in the file is passed over; None: any text
    software  () -> the text of what they depend on, besides the key, the processor and NumPy
    sure      votes from which on an earlier choice is used without measuring
    days      after which it is measured again; None: never

    A key is a tuple whose items, written as texts, tell it from all others, in any process.

        >>> sides = ad.Choices("sides", ("left", "right"))
        >>> sides.get(("a task", 3)) is None
        True
    """

    def __init__(
        self,
        name: str,
        values: tuple[str, ...] | None,
        software: Callable[[], str] = str,
        sure: int = 1,
        days: int | None = None,
    ):
        self.name, self.values, self.software = name, values, software
        self.sure, self.days = sure, days
        self.made: dict[tuple, str] = {}
        self.unwritten: dict[str, str] = {}  # of those made here: what is to go to the file
        self.earlier: dict[str, str] = {}  # of the file, where it can be trusted
        self.lock = threading.Lock()
        _all.append(self)
        self.read()

    def get(self, key: tuple) -> str | None:
        """The choice for this key; None where there is none, or where it should be measured again."""
        value = self.made.get(key)
        if value is None and self.earlier:
            value = self.earlier.get(_text(key))
            if value is not None:
                self.made[key] = value  # the next time without the text
        return value

    def put(self, key: tuple, value: str, keep: bool = True) -> None:
        """Choose, and write it down where a folder is named and the choice is good enough to keep."""
        with self.lock:
            self.made[key] = value
            if keep:
                self.unwritten[_text(key)] = value
                self._save()

    def clear(self) -> None:
        """Forget all choices of this kind."""
        self.made.clear()
        self.unwritten.clear()
        self.earlier = {}

    def machine(self) -> str:
        """The machine and the software that the choices depend on besides their keys."""
        parts = (
            platform.machine(),
            processor(),
            f"{os.cpu_count()} cores",
            f"numpy {_version()}",
            self.software(),
        )
        return " ".join(filter(None, parts))

    def read(self) -> None:
        """Take up what earlier processes found; what this one has chosen stays."""
        if _folder is not None:
            found = self._stored(_folder / self.name)
            known = found.get(self.machine(), {}) if found else {}
            votes = {key: self._vote(entry) for key, entry in known.items()}
            self.earlier = {key: vote[0] for key, vote in votes.items() if vote and self._trusted(*vote)}

    def _vote(self, entry) -> tuple[str, int, int] | None:
        """(value, votes, day) of what a file holds; None for something else."""
        match entry:
            case [str(value), int(votes), int(day)] if self.values is None or value in self.values:
                return value, votes, day
        return None

    def _trusted(self, value: str, votes: int, day: int) -> bool:
        return votes >= self.sure and (self.days is None or 0 <= today() - day < self.days)

    def _counted(self, entry, value: str) -> list:
        """An entry of the file once another process has come to `value`."""
        before = self._vote(entry)
        if before is None:
            return [value, 1, today()]
        kept, votes, _ = before
        if kept == value:
            return [value, min(votes + 1, self.sure), today()]
        return [kept, votes - 1, today()] if votes > 1 else [value, 1, today()]

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
        entries = stored.setdefault(self.machine(), {})
        for key, value in self.unwritten.items():
            entries[key] = self._counted(entries.get(key), value)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, json.dumps(stored, indent=1))
        except OSError:
            return
        self.unwritten.clear()


def today() -> int:
    """The day, as a number."""
    return int(time.time() // 86400)


@cache
def _version() -> str:
    """NumPy's version, without importing it: what it does when it is loaded may be what is to be chosen."""
    try:
        return importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(key: tuple) -> str:
    return " ".join(map(str, key))


def _write(path: Path, text: str) -> None:
    """All of it or nothing: who reads meanwhile finds the old file. What a killed writer left goes."""
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
    """The processor's name, as far as the system tells it; empty where it does not.

    >>> isinstance(ad.processor(), str)
    True
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
