"""bfloat16: the upper half of a float32, stored in uint16 as NumPy has no such type."""

import numpy as np


def from_float32(array: np.ndarray) -> np.ndarray:
    """array as bfloat16 bits, uint16 of the same shape, rounded to nearest with ties to even.

    Adds half of the lower part's range, minus one if the last kept bit is even, so that a carry does the
    rounding; above the largest number it carries into infinity, as it should. A nan becomes the quiet nan of
    its sign, as a carry could change it.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = ((bits >> 16) & 0x8000) | 0x7FC0
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def to_float32(bits: np.ndarray) -> np.ndarray:
    """The exact float32 values of bfloat16 bits (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
