"""The table of ops (table.py) and its rows, one file a family."""

from . import elementwise, fft, index, linalg, matrix, reduce, shape, triangular  # noqa: F401  for their rows
from .table import OPS, Op, apply, as_node, const, evaluate, infer, input_node, row

__all__ = ["OPS", "Op", "apply", "as_node", "const", "evaluate", "infer", "input_node", "row"]
