"""Restores state on any exit, also if Ctrl-C or another signal comes while it is restored.

    with undoing(undo), undoing(undo):
        change()

`undo` runs when the block is left, also if nothing has been changed. The second of the two runs it again if
an exception came while the first did, so it must be idempotent.
"""

from __future__ import annotations

from collections.abc import Callable


class undoing:
    __slots__ = ("undo",)

    def __init__(self, undo: Callable[[], object]):
        self.undo = undo

    def __enter__(self) -> None:
        """Nothing is changed yet."""

    def __exit__(self, *error: object) -> None:
        self.undo()
