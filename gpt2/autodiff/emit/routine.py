"""Routine: a function that was emitted and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import hidden
from ..run.memory import Needs


@dataclass(eq=False)
class Routine:
    """A function that was emitted: function(*arguments, *results, memory)."""

    name: str
    source: str
    function: Callable
    needs: Needs

    @property
    def hidden(self) -> dict[str, int]:
        """The hidden values that it reads, by their names in its source."""
        return hidden_in(self.source, self.function.__globals__)


def hidden_in(source: str, env: dict) -> dict[str, int]:
    """The hidden values of a program, by their names in its source."""
    arrays = {name: v.index for name, v in env.items() if hidden.is_hidden(v)}
    return {**hidden.named_in(source), **arrays} if hidden.active() is not None else {}
