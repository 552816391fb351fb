"""Residual connection: the sum of the stream and a branch. He et al. 2015."""

from gpt2.layers.layer import Array, Layer


def residual_forward(a: Array, b: Array) -> tuple[Array, tuple]:
    """out = a + b, of equal shapes. Saved: nothing."""
    if a.shape != b.shape:
        raise ValueError(f"residual_forward: b has shape {b.shape}, expected {a.shape} to match a")
    return a + b, ()


def residual_backward(dout: Array, saved: tuple) -> tuple[Array, Array]:
    """Gradient of residual_forward: da, db. Each is dout itself, not a copy."""
    return dout, dout


LAYER = Layer("residual", residual_forward, residual_backward, by_position=True)
