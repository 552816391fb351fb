"""Products of matrices and tensors."""

from __future__ import annotations

import numpy as np

from .table import row

row("matmul", "multilinear", linear_in=(0, 1),  # both with at least two axes; leading axes broadcast
    infer=lambda a, b: ((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *_matrix_shape(a, b)),
                        np.result_type(a.dtype, b.dtype)),
    evaluate=np.matmul,
    code=lambda a, b: f"{a} @ {b}")


def _matrix_shape(a, b):
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: {a.shape} @ {b.shape}: the last axis of the first must have the length of the "
                         "second-last axis of the second")
    return a.shape[-2], b.shape[-1]


def split_subscripts(subscripts: str) -> tuple[list[str], str]:
    """'ij,jk->ik' -> (['ij', 'jk'], 'ik')."""
    ins, out = subscripts.split("->")
    return ins.split(","), out


def letter_sizes(subscripts: str, args) -> dict[str, int]:
    """The length of each letter's axis; 1 gives way to a longer one, as einsum broadcasts it."""
    sizes: dict[str, int] = {}
    for letters, x in zip(split_subscripts(subscripts)[0], args):
        for letter, n in zip(letters, x.shape):
            sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def _einsum_infer(*args, subscripts):
    sizes = letter_sizes(subscripts, args)
    return tuple(sizes[c] for c in split_subscripts(subscripts)[1]), np.result_type(*(a.dtype for a in args))


row("einsum", "multilinear",  # explicit output form, no ellipsis
    infer=_einsum_infer,
    evaluate=lambda *args, subscripts: np.einsum(subscripts, *args, optimize=True),
    code=lambda *args, subscripts: f"np.einsum({subscripts!r}, {', '.join(args)}, optimize=True)")
