"""autograd.numpy.numpy_boxes: what isinstance(x, ArrayBox) asks for."""

from typing import Any

from ..tracer import Box

__all__ = ["ArrayBox", "Box"]


class ArrayBox(Box):
    """A value under observation: an array or a number."""

    @classmethod
    def register(cls, value_type: Any) -> None:
        Box.register(value_type)
