"""A file with layers or a block of one's own, as `--layers my_layers.py` names it.

    LAYERS = {"attention": rope}       layers or forward functions, by the name of the layer that they replace
    BLOCK = Block(...)                 a block in place of GPT-2's

A run, and whatever is saved of its model, keep the path and the SHA-256 of the file. It is read again from
there, and refused where it is gone or has changed: another formula would make another model of the weights.
"""

import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2.errors import UserError, reason


@dataclass(frozen=True)
class OwnFile:
    """A file with own layers: its absolute path, and the SHA-256 of what was in it."""

    path: str
    sha256: str

    @classmethod
    def at(cls, path: str | Path) -> "OwnFile":
        """The file at `path` as it is now. Raises UserError where it cannot be read."""
        found = str(Path(path).absolute())
        return cls(found, _sha256(_content(found)))

    @property
    def name(self) -> str:
        return Path(self.path).name

    def contents(self) -> tuple[Mapping[str, Any], Any]:
        """(LAYERS, BLOCK) of the file, {} and None where it has no such name. Its code is run.

        Raises UserError where the file is missing, has changed, or fails.
        """
        content = _content(self.path)
        if _sha256(content) != self.sha256:
            raise UserError(
                f"{self.path}: has changed since the run was begun with its layers; put back what was in it, "
                "or begin a new run"
            )
        module = types.ModuleType(f"own_{self.sha256[:12]}")
        module.__file__ = self.path
        sys.modules[module.__name__] = module  # where dataclasses and pickles look for it
        try:
            exec(compile(content, self.path, "exec"), vars(module))
        except Exception as error:
            what = error.msg if isinstance(error, SyntaxError) else reason(error)
            raise UserError(f"{self._line(error)}: {type(error).__name__}: {what}") from None
        layers, block = vars(module).get("LAYERS", {}), vars(module).get("BLOCK")
        if not isinstance(layers, Mapping) or (not layers and block is None):
            raise UserError(
                f"{self.path}: expected LAYERS = {{'gelu': my_gelu_forward}}, which says what layer is "
                "replaced and by what forward function or Layer; or BLOCK, or both"
            )
        return layers, block

    def _line(self, error):
        if isinstance(error, SyntaxError):
            return f"{self.path}:{error.lineno}"
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return f"{self.path}:{lines[-1]}" if lines else self.path


def _sha256(content):
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _content(path):
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: own layers cannot be read from here: {reason(error)}; --layers names their file"
        ) from None
