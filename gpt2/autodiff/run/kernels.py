"""Functions that emitted programs call: work on several threads, products, taking and adding rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import threads


def run_blocks(body: Callable, blocks: tuple, scratch: tuple, alone: bool = False) -> None:
    """body(k, *block, *scratch arrays) for every block, on all threads or on the caller's alone.

    scratch[t] belongs to thread t: (rows in a block, arrays of that many rows, arrays for a shorter last
    block). The blocks are handed out one by one, so a thread that is held up does fewer of them.
    """
    todo = iter(enumerate(blocks))  # next() on it is atomic under the interpreter lock

    def job(thread: int) -> None:
        if thread >= len(scratch):  # there were fewer threads when this call began
            return
        size, full, last = scratch[thread]
        for k, block in todo:
            body(k, *block, *(full if block[-1] - block[-2] == size else last))

    if alone or len(blocks) == 1:
        job(0)
    else:
        threads.run_on_threads(job)


PIECE = 1 << 16  # elements of a piece; two threads lose with smaller ones
MOST_PIECES = 8


def spread(function: Callable, out: np.ndarray, *args: np.ndarray | float) -> None:
    """function(*args, out=out), which goes element by element, in pieces along one axis and on all threads.

    For ops that are in no region with others. The pieces are the same for any number of threads.
    """
    count = min(MOST_PIECES, out.size // PIECE)
    if count < 2 or not all(_reads_its_own(x, out) for x in args):
        function(*args, out=out)
        return
    outermost = sorted(range(out.ndim), key=lambda a: -out.strides[a])  # in memory
    axis = next((a for a in outermost if out.shape[a] >= count), int(np.argmax(out.shape)))
    length = out.shape[axis]
    size = -(-length // count)
    if size == 1 and out.strides[axis] == out.itemsize:  # columns: slow, and of np.negative wrong (`negated`)
        function(*args, out=out)
        return
    before = (slice(None),) * axis
    todo = iter([slice(i, i + size) for i in range(0, length, size)])

    def part(x: np.ndarray | float, s: slice) -> np.ndarray | float:
        if not isinstance(x, np.ndarray):
            return x
        at = x.ndim - (out.ndim - axis)  # axes are counted from the last one, as NumPy broadcasts them
        return x[(slice(None),) * at + (s,)] if at >= 0 and x.shape[at] == length else x

    def job(thread: int) -> None:
        for s in todo:
            function(*[part(x, s) for x in args], out=out[(*before, s)])

    threads.run_on_threads(job)


def _reads_its_own(x: np.ndarray | float, out: np.ndarray) -> bool:
    """Whether no piece of `out` is written before another piece has read it as a part of x."""
    if not isinstance(x, np.ndarray) or not np.may_share_memory(x, out):
        return True
    addresses = [a.__array_interface__["data"][0] for a in (x, out)]
    return x.shape == out.shape and x.strides == out.strides and addresses[0] == addresses[1]


def negated(x: np.ndarray, *, out: np.ndarray) -> np.ndarray:
    """np.negative(x, out=out), at the same bits, for an out with gaps in memory: NumPy 2.4.6 reads wrong
    elements of x there (2.5.5 does not), where x has strides of 16 bytes, or of 64 if its elements have 8.
    """
    return np.subtract(0, x, out=out) if out.dtype.kind == "u" else np.multiply(x, -1, out=out)


def copied(x: np.ndarray, out: np.ndarray) -> None:
    """np.copyto(out, x), with its arguments in the order of a ufunc's."""
    np.copyto(out, x)


def take_rows(table: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[...] = table[index], without the temporary array that NumPy's indexing makes."""
    index = np.asarray(index)  # a constant may be a plain number
    if index.size and index.dtype.kind in "iu" and index.min() >= 0 and index.max() < len(table):
        # indices are in range, and only "clip" writes straight to out
        np.take(table, index, axis=0, out=out, mode="clip")
    else:
        out[...] = table[index]  # negative indices, and NumPy's own error for those out of range


def add_rows(table: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """np.add.at(table, index, rows): a loop of row additions takes a seventh of its time."""
    rows = rows.reshape(np.size(index), rows.shape[-1])  # one for each index, also where that is one number
    for k, t in enumerate(np.ravel(index).tolist()):
        table[t] += rows[k]


def add_numbers(table: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """np.add.at(table, index, values) for a table of zeros: np.bincount takes a quarter of its time."""
    index = np.ravel(index)
    if index.size and index.dtype.kind == "i" and index.min() >= 0 and index.max() < len(table):
        values = np.broadcast_to(values, index.shape) if np.ndim(values) == 0 else np.ravel(values)
        table[...] = np.bincount(index, values, len(table))
    else:
        np.add.at(table, index, np.ravel(values))


def add_along(x: np.ndarray, index: np.ndarray, values: np.ndarray, axis: int) -> None:
    """Add values to x at index along one axis; repeated indices add up."""
    grid = list(np.ogrid[tuple(slice(n) for n in x.shape)])  # beside which index may have length 1
    grid[axis] = index
    if index.shape[axis] == 1:
        x[tuple(grid)] += values  # one entry in each row: nothing is hit twice
    else:
        np.add.at(x, tuple(grid), values)


def share_among(
    g: np.ndarray, chosen: np.ndarray, extreme: np.ndarray, out: np.ndarray, axes: tuple[int, ...]
) -> None:
    """out = where(chosen, g / count of the chosen along axes, 0.0), and nan for the count where the extreme
    is nan.

    Where each row has one that is chosen, as most have, that one gets all: nothing is counted nor divided.
    """
    rows = extreme.size
    last = axes == tuple(range(out.ndim - len(axes), out.ndim))
    if rows and last and out.flags.c_contiguous and not np.isnan(np.minimum.reduce(extreme, axis=None)):
        places = np.flatnonzero(chosen)
        if len(places) == rows:
            beyond = places - np.arange(0, out.size, out.size // rows)  # the beginning of the k-th row
            if beyond.min() >= 0 and beyond.max() < out.size // rows:
                out.fill(0.0)
                out.reshape(-1)[places] = g.reshape(-1)
                return
    count = np.add.reduce(chosen, axis=axes, keepdims=True).astype(out.dtype)
    share = g / np.where(np.isnan(extreme), out.dtype.type(np.nan), count)
    out.fill(0.0)
    np.copyto(out, share, where=chosen)
