"""The table of ops (table.py) and its rows, one file a family."""

from . import elementwise, shape
from .table import OPS, Op, apply, as_node, const, evaluate, infer, input_node, row

__all__ = ["OPS", "Op", "apply", "as_node", "const", "evaluate", "infer", "input_node", "row", "elementwise", "shape"]
