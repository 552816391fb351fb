"""What a recorded value says to code that asks for its type, or writes it as text.

`type(x)` cannot answer as the value does that x stands for: it is refused. A number that is made of the text
of a value leaves the record, and is checked as one that is taken from the value itself.
"""

from __future__ import annotations

import dis
import sys
import weakref
from types import FrameType
from typing import Any

import numpy as np

from .. import errors
from ..atoms import NUMBER_TYPES
from . import source_lines
from .recorder import Recorder


class RecordedType(type):
    """The type of Recorded, which refuses type(x) == float, type(x) in (float, int), table[type(x)],
    type(x).__name__, str(type(x)).
    """

    # not __getattribute__, for which NumPy would call Python at each operation
    __name__ = property(lambda cls: _name_of_type(cls, sys._getframe(1)))  # type: ignore[assignment]
    __mro__ = property(lambda cls: _name_of_type(cls, sys._getframe(1)) and type.mro(cls))  # type: ignore

    def __eq__(cls, other):
        if cls is not other and isinstance(other, type) and other in _STOOD_FOR:
            check_type_not_asked(sys._getframe(1))
        return cls is other

    def __hash__(cls):
        frame = sys._getframe(1)
        if source_lines.is_inside(frame.f_code.co_filename):
            return type.__hash__(cls)
        instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        # not NumPy's C, which looks for the type of what is written into its arrays; from 2.5 on, of indices
        by_numpy = instruction.startswith(("STORE", "CALL", "PRECALL", "BINARY"))
        if "type" in frame.f_code.co_names or not by_numpy:
            check_type_not_asked(frame)
        return type.__hash__(cls)

    def __repr__(cls):
        check_type_not_asked(sys._getframe(1))
        return type.__repr__(cls)


def _name_of_type(cls: type, frame: FrameType) -> str:
    if "ATTR" in dis.opname[frame.f_code.co_code[frame.f_lasti]]:  # not C, which asks for its warnings
        check_type_not_asked(frame)
    return "Recorded"


def check_type_not_asked(frame: FrameType) -> None:
    """Raise if the user's code in this frame looks at type(x)."""
    file = frame.f_code.co_filename
    if not source_lines.is_foreign(file) and not source_lines.is_of_scipy(file):
        raise errors.type_unknown(source_lines.here())


_STOOD_FOR = frozenset({np.ndarray, *NUMBER_TYPES})


class Digits(str):
    """The text of a recorded value: float(text) is checked as float(value) is."""

    run: weakref.ref[Recorder]
    k: int  # the index of the value in rec.texts

    @classmethod
    def of(cls, recorded: Any, text: str) -> str:
        result, rec = cls(text), recorded._rec
        rec.texts.append(recorded)  # held there: a text must not keep the recording alive
        result.run, result.k = weakref.ref(rec), len(rec.texts) - 1
        return result

    def __reduce__(self):
        return str, (str.__str__(self),)

    def __float__(self):
        return self._converted(float)

    def __int__(self):
        return self._converted(int)

    def _converted(self, kind: type) -> Any:
        rec = self.run()
        if rec is not None and rec.active:
            kind(rec.texts[self.k])
        return kind(str.__str__(self))
