"""Layer: a name and two plain functions, forward and backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Parameter:
    """A tensor that is trained.

    name     under which a layer or block gets it
    shape    per block, if it belongs to a block
    start    "normal": drawn with a deviation of 0.02; "residual": with 0.02 / sqrt(2 L), for projections into
             the residual stream of L blocks; "fan_in": with 1 / sqrt(3 C), C the last axis; or a number for
             all entries. By default "normal" for two axes or more, and 0 for a vector
    decayed  whether weight decay applies; by default if it has two axes or more
    """

    name: str
    shape: tuple[int, ...]
    start: str | float | None = None
    decayed: bool | None = None

    @property
    def starts(self) -> str | float:
        if self.start is not None:
            return self.start
        return "normal" if len(self.shape) > 1 else 0.0

    @property
    def decays(self) -> bool:
        return len(self.shape) > 1 if self.decayed is None else self.decayed


@dataclass(frozen=True, repr=False)
class Layer:
    """A forward function and its backward, with one contract for every layer.

    forward(*inputs, **static) -> (out, saved)          saved is a tuple: whatever this backward needs
    backward(dout, saved, **static) -> tuple            one gradient per input, in the order of the inputs;
                                                        None for an integer input or an absent one

    Neither writes to its arguments, and results have the dtype of the inputs (float32 or float64).
    kind says who wrote the backward: "manual" is a person, "auto" the compiler.

    For generation, which reads only the new positions of a text:

    by_position  each position depends on itself alone, so the forward can read new ones by themselves
    read         forward for new positions that look at earlier ones:
                 read(*inputs, kept, start, length, **static) -> out. The inputs are those of the positions
                 from `start` on; kept is a dict per layer and block, empty at first, for caches; there are
                 at most `length` positions

    parameters   for a layer with more tensors than the one it replaces: parameters(config) returns a list of
                 Parameter, named as the forward's arguments
    """

    name: str
    forward: Callable
    backward: Callable | None
    kind: str = "manual"
    by_position: bool = False
    read: Callable | None = None
    parameters: Callable[..., Sequence[Parameter]] | None = None

    def wanting(self, wanted: tuple[bool, ...]) -> "Layer":
        """The layer if only some gradients are wanted, a bool per input. As written it computes all."""
        return self

    def __repr__(self) -> str:
        forward = getattr(self.forward, "__name__", None) or f"{self.name}_forward"
        return f"<Layer {self.name}: {forward}, backward {self.kind}>"
