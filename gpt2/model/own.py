"""A user's file of layers or a block, for `--layers my_layers.py`.

    LAYERS = {"attention": rope}       layers or forward functions, by the name of the layer that they replace
    BLOCK = Block(...)                 a block in place of GPT-2's

A run and its saved models store the path and the SHA-256 of the file. Loading them reads it again, and fails
if it is missing or has changed: with another formula the weights would be another model.

Its code runs if the user names the file. If only a checkpoint or a run's settings name it, which may come
from anybody, it runs only if this user has trained with this very file on this machine: the user's cache
folder has a record of that.
"""

import hashlib
import json
import os
import stat
import sys
import traceback
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2.errors import UserError, reason


@dataclass(frozen=True)
class OwnFile:
    """A file with own layers.

    path     absolute
    sha256   of its content
    named    by the user, rather than by a file that may come from anybody
    """

    path: str
    sha256: str
    named: bool = field(default=False, compare=False)

    @classmethod
    def at(cls, path: str | Path) -> "OwnFile":
        """The file at `path`, which the user names, as it is now. Raises UserError if it cannot be read."""
        absolute = str(Path(path).absolute())
        return cls(absolute, hashlib.sha256(_content(absolute)).hexdigest(), named=True)

    def remember(self) -> None:
        """Record, if possible, that this user has trained with the file on this machine."""
        with suppress(OSError, UserError):
            if self.sha256 not in trained_with(self.path):
                record = _record(self.path)
                record.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
                with os.fdopen(os.open(record, flags, 0o600), "wb") as file:
                    file.write(f"\n{self.sha256} {json.dumps(self.path)}\n".encode())

    def contents(self) -> tuple[Mapping[str, Any], Any]:
        """Run the file; returns its (LAYERS, BLOCK), by default {} and None.

        Raises UserError if the file is missing, has changed, fails, or may not be run.
        """
        if not self.named and self.sha256 not in trained_with(self.path):
            raise not_named(self.path)
        content = _content(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise changed(self.path)
        module = types.ModuleType(f"own_{self.sha256[:12]}")
        module.__file__ = self.path
        sys.modules[module.__name__] = module  # where dataclasses and pickles look for it
        try:
            exec(compile(content, self.path, "exec"), vars(module))
        except (Exception, SystemExit) as error:
            if isinstance(error, SyntaxError):
                message, lines = error.msg, [error.lineno]
            else:
                frames = traceback.extract_tb(error.__traceback__)
                message, lines = reason(error), [f.lineno for f in frames if f.filename == self.path]
            where = f"{self.path}:{lines[-1]}" if lines else self.path
            raise UserError(f"{where}: {type(error).__name__}: {message}") from None
        layers, block = vars(module).get("LAYERS", {}), vars(module).get("BLOCK")
        if not isinstance(layers, Mapping) or (not layers and block is None):
            raise UserError(
                f"{self.path}: expected LAYERS = {{'gelu': my_gelu_forward}}, from the layer to replace to a "
                "forward function or Layer; or BLOCK, or both"
            )
        return layers, block


def check_trained_with(path: str) -> None:
    """Raise UserError unless this user has trained with the file at `path`, as it is now, on this machine."""
    path = str(Path(path).absolute())
    if not (known := trained_with(path)):
        raise not_named(path)
    if OwnFile.at(path).sha256 not in known:
        raise changed(path)


def not_named(path: str) -> UserError:
    """The UserError for a file of layers that another file names, but not the user."""
    return UserError(
        f"{path}: own layers; their code runs only if you have trained with them on this machine, or name "
        "the file: read it, then give it with --layers (layers= in Python)"
    )


def changed(path: str) -> UserError:
    """The UserError for a file of layers that has changed."""
    return UserError(f"{path}: has changed since the run began; restore it, or begin a new run")


def trained_with(path: str) -> list[str]:
    """The SHA-256 of each version of the file at `path` that this user has trained with on this machine."""
    try:
        with open(_record(path), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != _user() or (os.name == "posix" and status.st_mode & 0o022):
                return []  # another user could have written it
            lines = [line.split(" ", 1) for line in file.read().decode(errors="replace").splitlines()]
    except (OSError, UserError):
        return []
    return [line[0] for line in lines if line[1:] == [json.dumps(path)]]


def _record(path):
    """The file that records what this user has trained with at a path."""
    from gpt2.storage.download import cache_folder  # with urllib

    return cache_folder() / "layers" / hashlib.sha256(json.dumps([_user(), path]).encode()).hexdigest()


def _user():
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _content(path):
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("not a regular file")
            return file.read()
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: own layers cannot be read from here: {reason(error)}; --layers names their file"
        ) from None


def _without_waiting(path, flags):
    """Open a file without blocking on a named pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
