"""What a layer is: a name and two plain functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, repr=False)
class Layer:
    """A forward function and its backward, with one contract for every layer.

    forward(*inputs, **static) -> (out, saved)          saved is a tuple: whatever this backward needs
    backward(dout, saved, **static) -> tuple            one gradient per input, in the order of the inputs;
                                                        None for an integer input or an absent one

    Neither writes to its arguments, and results have the dtype of the inputs (float32 or float64).
    kind says who wrote the backward: "manual" is a person, "auto" the compiler.
    """

    name: str
    forward: Callable
    backward: Callable
    kind: str = "manual"

    def __repr__(self) -> str:
        forward = getattr(self.forward, "__name__", None) or f"{self.name}_forward"
        return f"<Layer {self.name}: {forward}, backward {self.kind}>"
