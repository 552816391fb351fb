"""Values and files as text in reports."""

from __future__ import annotations

import os

import numpy as np

from ..graph import Node

SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}


def text_of(n: Node, depth: int = 2) -> str:
    """A value as text: its name in the source, or a short formula."""
    if n.name:
        return n.name
    if n.op == "const":
        return f"{n.value:g}" if not n.shape and np.isrealobj(n.value) else "a constant"
    if depth == 0 or not n.args:
        return "..."
    parts = [text_of(a, depth - 1) for a in n.args]
    if n.op in ("broadcast", "reshape"):
        return parts[0]
    if n.op in SIGNS and len(parts) == 2:
        return f"({parts[0]} {SIGNS[n.op]} {parts[1]})"
    return f"{n.op}({', '.join(parts)})"


def file_name(path: str) -> str:
    """A source file without its folder. A notebook's cell runs from a file of ipykernel named by a number."""
    folder, name = os.path.split(path)
    return "notebook cell" if os.path.basename(folder).startswith("ipykernel_") else name
