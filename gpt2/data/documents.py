"""The documents of a corpus: measured, cut in two, and encoded on threads, a piece at a time.

A document comes in pieces of text; None stands between two documents.
"""

import hashlib
import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpt2.data.tokenizer import Tokenizer, cut_safely
from gpt2.errors import UserError, printable

LONG = 20_000_000  # characters of a text from which on a log gets a line
DELAY = 1.0  # seconds after which a terminal gets a progress line
TOGETHER = 1 << 17  # characters that a thread encodes in one go


class Documents:
    """Documents that are read in pieces, repeatedly, and never held as a whole.

    name            of its corpus
    files           (name, read) of each file: read returns its pieces again at each call, None between two
                    documents
    paths           of files of conversations, whose lines `files` has as documents; else none
    length          in characters
    borders         positions in it at which a document ends, but for the last
    digests         of each file, the SHA-256 of its UTF-8
    """

    def __init__(self, name: str, files: Sequence[tuple[str, Callable]], paths: Sequence[Path] = ()) -> None:
        self.name, self.files, self.paths = name, files, paths
        self.length, self.borders = 0, array("q")
        self.digests: list[str] = []
        for piece in with_progress(self.name, self.pieces(), "reading"):
            if piece is None:
                self.borders.append(self.length)
            else:
                self.length += len(piece)

    @property
    def digest(self) -> str:
        several = hashlib.sha256("\n".join(self.digests).encode()).hexdigest()
        return self.digests[0] if len(self.digests) == 1 else several

    def summary(self) -> list[list[str]]:
        """[name, SHA-256] of each file, if there are several."""
        several = len(self.files) > 1
        return [[name, digest] for (name, _), digest in zip(self.files, self.digests)] if several else []

    def pieces(self) -> Iterator[str | None]:
        """All pieces; raises UserError at the end of a file that has changed since the first reading."""
        for number, (name, read) in enumerate(self.files):
            if number:
                yield None
            sha256 = hashlib.sha256()
            for piece in read():
                sha256.update(b"\xff" if piece is None else piece.encode())
                yield piece
            if number == len(self.digests):
                self.digests.append(sha256.hexdigest())
            elif self.digests[number] != sha256.hexdigest():
                place = name if len(self.files) > 1 else self.name
                raise UserError(f"--data {place}: the file changed while it was read; start again")

    def cut(self, share: float) -> int:
        """The position at which the last `share` begins; the border nearest to it, if there are any."""
        at = int(self.length * (1 - share))
        return min(self.borders, key=lambda border: abs(border - at)) if self.borders else at

    def halves(self, cut: int, task: str) -> tuple[Iterator[str | None], Iterator[str | None]]:
        """The pieces before a position and those after it, to be read one after the other."""
        pieces, rest = with_progress(self.name, self.pieces(), task, self.length), []

        def first():
            position = 0
            for piece in pieces if cut else ():
                if piece is None or position + len(piece) < cut:
                    position += len(piece or "")
                    yield piece
                    continue
                yield piece[: cut - position]
                rest.append(piece[cut - position :])
                return

        def second():
            inside = False
            for piece in chain(rest, pieces):
                if inside or piece:  # the border at which it begins is none of its own
                    inside = True
                    yield piece

        return first(), second()


def with_progress(
    name: str, pieces: Iterable[str | None], task: str, total: int | None = None
) -> Iterator[str | None]:
    """The pieces, with a progress bar on a terminal; elsewhere a long text is announced once."""
    label = f"{task} {printable(name)}"
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal and total and total >= LONG:
        print(f"{label}: {total:,} characters", file=sys.stderr, flush=True)
    units = {"total": total, "unit": "B", "unit_scale": True}
    with tqdm(desc=label, delay=DELAY, leave=False, disable=not is_terminal, **units) as bar:
        for piece in pieces:
            yield piece
            bar.update(len(piece or ""))


def arrays_of(pieces: Iterable[str | None], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of some documents, in consecutive arrays, encoded on as many threads as there are cores.

    Documents are joined by the end of text, or by a line break if the tokenizer has no such token.
    """
    end = tokenizer.end_of_text
    border = np.array([end]) if end is not None else None

    def encode(chunks):
        joint = tokenizer.encode("\n") if border is None and None in chunks else border
        return np.concatenate([joint if chunk is None else tokenizer.encode(chunk) for chunk in chunks])

    if type(tokenizer) is not Tokenizer:  # a tokenizer of other programs may not be cut into chunks
        for is_border, part in groupby(pieces, lambda piece: piece is None):
            borders = ([None] for _ in part)
            yield from map(encode, borders) if is_border else tokenizer.encode_stream(part)  # noqa: B031
        return
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        pending: deque = deque()
        for chunks in _together(pieces, tokenizer):
            pending.append(pool.submit(encode, chunks))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _together(pieces, tokenizer):
    """Lists of pieces that can be encoded one by one, of some TOGETHER characters."""
    together, size = [], 0
    for is_border, part in groupby(pieces, lambda piece: piece is None):
        whole = is_border or tokenizer.by_character
        for chunk in part if whole else cut_safely(part):  # noqa: B031  # one of the two runs
            together.append(chunk)
            size += len(chunk or "") + 1
            if size >= TOGETHER:
                yield together
                together, size = [], 0
    if together:
        yield together
