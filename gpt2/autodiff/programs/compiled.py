"""Compiled: a program, with what it takes from outside and when it may be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph import Node
from ..record.draws import redraw
from ..reuse.guard import Guard
from .wiring import Arguments, Wiring


@dataclass
class Compiled:
    """A program for one combination of argument types."""

    wiring: Wiring
    program: Any
    outside: list
    guard: Guard
    # condition(leaves, outside): whether it may be used for these arguments
    conditions: list[Callable[[Sequence, Sequence], bool]] = field(default_factory=list)
    draws: list = field(default_factory=list)  # as in a Recording
    inputs: Sequence[Node] = ()  # of the recorded graph
    entries: dict = field(default_factory=dict)  # structure and types of `out` -> fast entry

    def accepts(self, call: Arguments) -> bool:
        """Whether it may be used for a call with arguments of these types."""
        return all(condition(call.leaves, self.outside) for condition in self.conditions)

    def drawn(self, leaves: list) -> list:
        """The operands from outside, with fresh random numbers."""
        if not self.draws:
            return self.outside
        n = len(self.inputs) - len(self.outside)  # the leaves of f: a call of ad.jvp has tangents besides
        operands = [*leaves[:n], *self.outside]
        redraw(self.draws, self.inputs, operands)
        return operands[n:]

    def let_draws_go(self) -> None:
        """Let the numbers go that were drawn while recording, as each later call draws its own."""
        n = len(self.inputs) - len(self.outside)
        for k, draw in self.draws:
            self.outside[k - n] = np.broadcast_to(np.zeros((), draw.node.dtype), draw.node.shape)
            draw.value = None
