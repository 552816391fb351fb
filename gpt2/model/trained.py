"""What is trained of a model: which tensors, from which block on, and which gradients that takes."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpt2.errors import OptionError
from gpt2.model.config import BLOCK_PLACES, PLACES

if TYPE_CHECKING:
    from gpt2.model.description import Description


class Trained(dict[str, int]):
    """The tensors that are trained: name -> the first block that is; 0 outside of the blocks.

    d   Description of the model, whose `tuning` says what is trained: a kind, less what is frozen by name
    """

    def __init__(self, d: Description):
        self.d, told = d, d.tuning
        told.check_names([p.name for p in d.table])
        super().__init__({name: n for name, n in self._of_kind().items() if name not in told.frozen})
        if not self:
            text = f"{told.summary()}: nothing is left to train"
            raise OptionError(f"train: {text}", f"--train {text}")

    def _of_kind(self) -> dict[str, int]:
        d, told, names = self.d, self.d.tuning, [p.name for p in self.d.table]
        if told.kind == "lora":
            return dict.fromkeys(d.adapters, 0)
        if told.kind == "biases":
            biases = {place.tensors.get("bias") for place in PLACES.values()}
            return {name: 0 for name in names if name in biases}
        if told.kind != "last":
            return dict.fromkeys(names, 0)
        L = d.config.n_layer
        if told.number > L:
            text = f"the model has {L} block{'s' * (L > 1)}"
            raise told.wrong(text)
        first = {name: 0 for name in d.calls["lnf"].tensors} | dict.fromkeys(d.in_block, L - told.number)
        return {name: first[name] for name in names if name in first}

    @property
    def everything(self) -> bool:
        """Whether all of the model is trained."""
        return len(self) == len(self.d.table) and not any(self.values())

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of what is trained, in order: of the blocks, those that are."""
        return tuple(
            (name, (shape[0] - self[name], *shape[1:]) if name in self.d.in_block else shape)
            for name, shape in self.d.shapes
            if name in self
        )

    @cached_property
    def frozen_shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The same of what is not trained: whole tensors, and those of the first blocks."""
        kept = [(name, shape) for name, shape in self.d.shapes if name not in self]
        first = [(name, (self[name], *shape[1:])) for name, shape in self.d.shapes if self.get(name)]
        return (*kept, *first)

    @property
    def count(self) -> int:
        """How many numbers are trained."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def decayed(self) -> tuple[str, ...]:
        """Tensors that weight decay applies to."""
        return tuple(p.name for p in self.d.table if p.decays and p.name in self)

    def at(self, name: str | None, l: Any) -> bool:
        """Whether a tensor is trained; l: its slice of this block, ... outside of the blocks."""
        return name in self and (l is ... or l >= self[name])

    def wanted(self, place: str, l: Any) -> tuple[bool, ...] | None:
        """For each input of the layer at a place whether its gradient is wanted; None: all are.

        l, of its block, or ... ; place is "block" for a user's block.
        """
        return None if self.everything else self._wanted[place, l]

    @cached_property
    def _wanted(self) -> dict[tuple[str, Any], tuple[bool, ...] | None]:
        """(place, block) -> wanted. A layer's input is wanted where anything before it is trained."""
        d = self.d
        found: dict[tuple[str, Any], tuple[bool, ...] | None] = {}

        def visit(place, names, l, *inputs):
            """Whether the output depends on what is trained. An input is None where it is of integers."""
            wanted = (*inputs, *(None if name is None else self.at(name, l) for name in names))
            full = all(w is None or w for w in wanted)
            found[place, l] = None if full else tuple(map(bool, wanted))
            return any(wanted)

        def at(place, l, *inputs):
            return visit(place, d.calls[place].tensors, l, *inputs)

        x = at("encoder", ..., None)
        for l in range(d.config.n_layer):
            if d.block is not None:
                x = visit("block", d.block_tensors, l, x)
                continue
            for branch, join in ((BLOCK_PLACES[:4], "residual1"), (BLOCK_PLACES[5:9], "residual2")):
                y = x
                for place in branch:
                    y = at(place, l, y)
                x = at(join, l, x, y)
        x = at("head", ..., at("lnf", ..., x))
        at("loss", ..., x, None)
        return found
