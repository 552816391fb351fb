"""Undoes what was changed, whatever happens: also where Ctrl-C or another signal strikes while it is undone.

    with undoing(undo), undoing(undo):
        change()

`undo` runs when the block is left, and by then nothing need have been changed. The second of the two runs it
again where an exception struck while the first one did, so it has to do no harm when it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable


class undoing:
    __slots__ = ("undo",)

    def __init__(self, undo: Callable[[], object]):
        self.undo = undo

    def __enter__(self) -> None:
        """What is to be undone has not begun."""

    def __exit__(self, *error: object) -> None:
        self.undo()
