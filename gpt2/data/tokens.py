"""Token files and the batches drawn from them.

A token file is llm.c's: a header of 256 int32 (magic, version, count of tokens, zeros), then the tokens,
everything little-endian. It is read through a memory map, so a corpus costs no memory. There are two kinds:
that of GPT-2, and that of Llama 3 for vocabularies above 65,536 (llm.c's dev/data/data_common.py).
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2.errors import OptionError, UserError, option_error, os_errors
from gpt2.hints import typed
from gpt2.storage.files import replacing

# dtype of the tokens -> magic and version
FORMATS = {"<u2": (20240520, 1), "<u4": (20240801, 7)}
MAGIC = FORMATS["<u2"][0]
HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
MOST = (1 << 31) - 1  # tokens: the header counts them in an int32


def write_tokens(path: str | Path, tokens: ArrayLike) -> None:
    """Write token ids (integers from 0) to `path` as a token file, atomically: as uint16 if they fit."""
    tokens = np.asarray(tokens)
    write_token_stream(path, [tokens], int(tokens.max(initial=0)) + 1)


def write_token_stream(path: str | Path, arrays: Iterable[np.ndarray], vocab_size: int = 1 << 16) -> None:
    """Write the tokens of many arrays as one token file: memory is that of one array.

    vocab_size   ids are below it; above 65,536 they are stored as uint32
    """
    path, dtype = Path(path), "<u2" if vocab_size <= 1 << 16 else "<u4"
    header = np.zeros(HEADER_INTS, dtype="<i4")
    count = 0
    with os_errors(f"cannot write {path}"), replacing(path) as file:
        file.write(header.tobytes())  # replaced below
        for tokens in arrays:
            _check_range(path, tokens, 8 * np.dtype(dtype).itemsize)
            file.write(tokens.astype(dtype).tobytes())
            count += tokens.size
            if count > MOST:
                raise UserError(f"{path}: a token file holds at most {MOST:,} tokens; take a shorter text")
        header[:3] = *FORMATS[dtype], count
        file.seek(0)
        file.write(header.tobytes())


def _hint():
    return typed("`gpt2 data` makes token files of a text")


def _check_range(path, tokens, bits):
    if tokens.size and not (0 <= int(tokens.min()) and int(tokens.max()) < 1 << bits):
        raise UserError(
            f"{path}: token ids run from {tokens.min()} to {tokens.max()}, a token file of uint{bits} holds "
            f"0..{(1 << bits) - 1}"
        )


def read_tokens(path: str | Path) -> np.memmap:
    """The tokens of a token file: a read-only memory map, uint16 or uint32, (count,).

    Raises UserError if the file is missing, is not a token file, or holds another number of tokens than its
    header says.
    """
    path = Path(path)
    with os_errors(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = np.frombuffer(file.read(HEADER_BYTES), dtype=np.uint8)
    if header.size < HEADER_BYTES:
        raise UserError(f"{path}: {size} bytes, a token file has a header of {HEADER_BYTES}; {_hint()}")
    magic, version, count = (int(n) for n in header.view("<i4")[:3])
    found = [(dtype, expected) for dtype, (first, expected) in FORMATS.items() if first == magic]
    if not found:
        raise UserError(f"{path}: the file begins with {magic}, a token file begins with {MAGIC}; {_hint()}")
    ((dtype, expected),) = found
    if version != expected:
        raise UserError(f"{path}: version {version} of the token file format, expected {expected}")
    width = np.dtype(dtype).itemsize
    if count < 0 or size != HEADER_BYTES + width * count:
        raise UserError(
            f"{path}: the header promises {count} tokens, the file has {(size - HEADER_BYTES) / width:g}"
        )
    if count == 0:
        raise UserError(f"{path}: the file holds no tokens")
    return np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


class Loader:
    """Batches of B sequences of T tokens, each at a random position of the corpus, as nanoGPT draws them.

    tokens    (count,) integers, count > T
    B, T      sequences in a batch, positions in a sequence
    seed      two loaders with one seed give the same batches

    Batch k is a function of the seed and k alone, so a position in the stream is one integer, and skipping
    ahead costs nothing.
    """

    def __init__(self, tokens: np.ndarray, B: int, T: int, seed: int = 0) -> None:
        if len(tokens) <= T:
            raise too_short("training text", tokens, T)
        if B < 1:
            raise option_error("batch_size", f"is {B}, expected 1 or more")
        self.tokens = tokens
        self.B = B
        self.T = T
        self.seed = seed
        self.position = 0  # batches drawn so far

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """The next batch: inputs (B, T) and targets (B, T), int32; a target is the token after its input."""
        batch = self.batch(self.position)
        self.position += 1
        return batch

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number k, wherever the loader stands."""
        draw = np.random.default_rng([self.seed, k])
        starts = draw.integers(0, len(self.tokens) - self.T, size=self.B)
        return take(self.tokens, starts, self.T)

    def state(self) -> dict[str, int]:
        """Where the loader stands, as plain numbers for a checkpoint."""
        return {"seed": self.seed, "position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state()` was taken. Raises ValueError for negative numbers."""
        self.seed = int(state.get("seed", self.seed))  # llm.c's order has none
        self.position = int(state["position"])
        if self.seed < 0 or self.position < 0:
            raise ValueError(f"Loader.load_state: {dict(state)}, expected numbers from 0")


class Epochs(Loader):
    """Batches that visit the corpus evenly: every token once an epoch, in a new order for each.

    An epoch cuts the corpus into sequences of T, beginning at a random position, so that the cuts fall
    elsewhere each time; the rest at the two ends, less than 2T tokens, is skipped.
    As many sequences at random positions would see 63 % of the corpus. A run resumed with batches of
    another size continues with the next sequence.
    """

    def __init__(self, tokens: np.ndarray, B: int, T: int, seed: int = 0) -> None:
        super().__init__(tokens, B, T, seed)
        self.begin = 0  # the sequence with which batch 0 began, had all been of this size
        self.pieces = max(1, (len(tokens) - 1) // T - 1)  # sequences in an epoch
        self._drawn = None  # (seed, epoch) of the cached shift and order

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number k, wherever the loader stands; it may reach into the next epoch."""
        numbers = range(self.begin + k * self.B, self.begin + (k + 1) * self.B)
        return take(self.tokens, [self._start(*divmod(n, self.pieces)) for n in numbers], self.T)

    def state(self) -> dict[str, int]:
        """Where the loader stands, as plain numbers for a checkpoint."""
        return {**super().state(), "sequences": self.begin + self.position * self.B}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state()` was taken; without "sequences", at its position."""
        super().load_state(state)
        batches = self.position * self.B
        sequences = int(state.get("sequences", batches))
        if sequences < 0:
            raise ValueError(f"Epochs.load_state: {dict(state)}, expected numbers from 0")
        self.begin = sequences - batches

    def _start(self, epoch, i):
        """The position at which sequence i of an epoch begins."""
        if self._drawn != (self.seed, epoch):
            draw = np.random.default_rng([self.seed, epoch])
            self._shift = int(draw.integers(0, min(self.T, len(self.tokens) - self.T * self.pieces)))
            self._order = draw.permutation(self.pieces)
            self._drawn = self.seed, epoch
        return self._shift + self.T * int(self._order[i])


def too_short(part: str, tokens: np.ndarray, T: int) -> OptionError:
    """The error for fewer tokens than one sequence of T needs."""

    has = f"{len(tokens)} token{'s' * (len(tokens) != 1)}"

    def text(block_size: str) -> str:
        return (
            f"the {part} has {has}, a sequence of {block_size} {T} needs {T + 1}; "
            "use a longer text or a smaller --block-size"
        )

    return OptionError(text("block_size"), text("--block-size"))


def take(tokens: np.ndarray, starts: ArrayLike, T: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of T tokens that begin at `starts` (B,), and the tokens after them: two (B, T) int32."""
    window = np.asarray(starts)[:, None] + np.arange(T + 1)  # (B, T + 1)
    taken = np.asarray(tokens[window], dtype=np.int32)
    return taken[:, :-1], taken[:, 1:]


def evenly(tokens: np.ndarray, B: int, T: int, batches: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches for evaluation, the same ones every time: yields inputs and targets, (b, T) int32 with b <= B.

    With batches=0 the whole of `tokens` is covered once in file order, in non-overlapping sequences (a last
    piece shorter than T is left out). Otherwise batches * B of these sequences, evenly spaced.
    """
    count = (len(tokens) - 1) // T
    if count < 1:
        raise too_short("validation split", tokens, T)
    chosen = np.arange(count)
    if 0 < batches * B < count:
        chosen = np.arange(batches * B) * count // (batches * B)
    for first in range(0, len(chosen), B):
        yield take(tokens, chosen[first : first + B] * T, T)
