"""autograd.numpy.numpy_boxes: ArrayBox, for isinstance(x, ArrayBox)."""

from typing import Any

from ..tracer import Box

__all__ = ["ArrayBox", "Box"]


class ArrayBox(Box):
    """The class of recorded values, for isinstance."""

    @classmethod
    def register(cls, value_type: Any) -> None:
        name = getattr(value_type, "__name__", value_type)
        raise NotImplementedError(
            f"autograd.numpy.numpy_boxes.ArrayBox.register({name}): arrays are recorded as they are, and "
            "other classes take a Box of their own, or are trees (docs/autodiff.md)"
        )
