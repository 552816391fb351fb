"""Token files and the batches drawn from them.

A token file is llm.c's: a header of 256 int32 (magic, version, count of tokens, zeros), then the tokens,
everything little-endian. There are two kinds: that of GPT-2, and that of Llama 3 for vocabularies above
65,536 (as llm.c's `write_datafile`). nanoGPT's files are tokens of uint16 without a header.

Files are read through memory maps, so a corpus costs no memory: `Shards` joins several, and gives back the
pages that it has read.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpt2.errors import OptionError, UserError, counted, option_error, os_errors
from gpt2.hints import typed
from gpt2.storage.files import replacing

# dtype of the tokens -> magic and version
FORMATS = {"<u2": (20240520, 1), "<u4": (20240801, 7)}
MAGIC = FORMATS["<u2"][0]
HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
MOST = (1 << 31) - 1  # tokens: the header counts them in an int32
BLOCK = 1 << 24  # tokens that are looked at together
RELEASE = 1 << 9  # sequences read between two releases: each touches up to 64 KiB of pages


def write_tokens(path: str | Path, tokens: ArrayLike) -> None:
    """Write token ids (integers from 0) to `path` as a token file, atomically: as uint16 if they fit."""
    tokens = np.asarray(tokens)
    write_token_stream(path, [tokens], int(tokens.max(initial=0)) + 1)


def write_token_stream(path: str | Path, arrays: Iterable[np.ndarray], vocab_size: int = 1 << 16) -> None:
    """Write the tokens of many arrays as one token file: memory is that of one array.

    vocab_size   ids are below it; above 65,536 they are stored as uint32
    """
    path, bits = Path(path), 16 if vocab_size <= 1 << 16 else 32
    dtype = f"<u{bits // 8}"
    header = np.zeros(HEADER_INTS, dtype="<i4")
    count = 0
    with os_errors(f"cannot write {path}"), replacing(path) as file:
        file.write(header.tobytes())  # replaced below
        for tokens in arrays:
            if tokens.size and not (0 <= int(tokens.min()) and int(tokens.max()) < 1 << bits):
                raise UserError(
                    f"{path}: token ids run from {tokens.min()} to {tokens.max()}, a token file of "
                    f"uint{bits} holds 0..{(1 << bits) - 1}"
                )
            file.write(tokens.astype(dtype).tobytes())
            count += tokens.size
            if count > MOST:
                raise UserError(f"{path}: a token file holds at most {MOST:,} tokens; take a shorter text")
        header[:3] = *FORMATS[dtype], count
        file.seek(0)
        file.write(header.tobytes())


def read_tokens(path: str | Path | Sequence[Path], raw: bool = False) -> Any:
    """The tokens of a token file: a read-only memory map, uint16 or uint32, (count,). Of several files, or of
    a large one, Shards.

    raw   the files have no header, as nanoGPT writes them

    Raises UserError if a file is missing, is not a token file, or holds another number of tokens than its
    header says.
    """
    parts = [_mapped(Path(p), raw) for p in ([path] if isinstance(path, str | Path) else path)]
    return parts[0] if len(parts) == 1 and len(parts[0]) < 4 * BLOCK else Shards(parts)


def _mapped(path, raw):
    with os_errors(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = np.frombuffer(file.read(HEADER_BYTES), dtype=np.uint8)
    if raw:
        if size == 0 or size % 2:
            raise UserError(f"{path}: {size} bytes, expected tokens of 2 bytes each, without a header")
        return np.memmap(path, dtype="<u2", mode="r")
    hint = typed("`gpt2 data` makes token files of a text")
    if header.size < HEADER_BYTES:
        raise UserError(f"{path}: {size} bytes, a token file has a header of {HEADER_BYTES}; {hint}")
    magic, version, count = (int(n) for n in header.view("<i4")[:3])
    dtype = next((dtype for dtype, (first, _) in FORMATS.items() if first == magic), None)
    if dtype is None:
        raise UserError(f"{path}: the file begins with {magic}, a token file begins with {MAGIC}; {hint}")
    if version != FORMATS[dtype][1]:
        raise UserError(f"{path}: version {version} of the token file format, expected {FORMATS[dtype][1]}")
    width = np.dtype(dtype).itemsize
    if count < 0 or size != HEADER_BYTES + width * count:
        raise UserError(
            f"{path}: the header promises {count} tokens, the file has {(size - HEADER_BYTES) / width:g}"
        )
    if count == 0:
        raise UserError(f"{path}: the file holds no tokens")
    return np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


class Shards:
    """The tokens of several files as one array (count,), of which slices and arrays of positions are read.

    parts   the tokens of each file
    edges   the position at which each begins, and the count of all
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = list(parts)
        self.edges = np.cumsum([0, *map(len, parts)])
        self.dtype = np.result_type(*parts)
        self.sequences = 0  # read since pages were released

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.parts, dtype=dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        positions = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        out = np.empty(positions.shape, self.dtype)
        which = np.searchsorted(self.edges, positions, side="right") - 1
        for k in np.unique(which):
            here = which == k
            out[here] = self.parts[k][positions[here] - self.edges[k]]
        self.sequences += len(out) if out.ndim else 1
        if self.sequences >= RELEASE:
            self.sequences = 0
            for part in self.parts:
                release(part)
        return out


def parts_of(tokens: Any) -> list[np.ndarray]:
    """The arrays of each file of some tokens."""
    return tokens.parts if isinstance(tokens, Shards) else [tokens]


def blocks(part: np.ndarray) -> Iterator[np.ndarray]:
    """An array of tokens in blocks: Ctrl-C works between them, and pages of a mapped file are released."""
    for start in range(0, len(part), BLOCK):
        yield part[start : start + BLOCK]
        release(part)


def release(part: np.ndarray) -> None:
    """Release the pages of a mapped file, which would count as memory of this process."""
    owner = part
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and not part.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def largest(tokens: Any) -> int:
    return max(int(block.max()) for part in parts_of(tokens) for block in blocks(part))


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
        self.shifts = min(T, len(tokens) - T * self.pieces)  # positions at which an epoch may begin
        self._drawn = None  # (seed, epoch, group) of the cached shift and order

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = range(self.begin + k * self.B, self.begin + (k + 1) * self.B)
        places = [self._place(*divmod(n, self.pieces)) for n in numbers]
        return take(self.tokens, [shift + self.T * place for shift, place in places], self.T)

    def state(self) -> dict[str, int]:
        return {**super().state(), "sequences": self.begin + self.position * self.B}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        batches = self.position * self.B
        sequences = int(state.get("sequences", batches))
        if sequences < 0:
            raise ValueError(f"Epochs.load_state: {dict(state)}, expected numbers from 0")
        self.begin = sequences - batches

    def _place(self, epoch, i):
        """(position at which an epoch begins, number in the text's own order) of its i-th sequence."""
        group, i = divmod(i, GROUP)
        if self._drawn != (self.seed, epoch, group):
            draw = np.random.default_rng([self.seed, epoch])
            self._shift = int(draw.integers(0, self.shifts))
            self._first, self._order = order_of(self.pieces, group, draw)
            self._drawn = self.seed, epoch, group
        return self._shift, self._first + int(self._order[i])


GROUP = 1 << 20  # sequences whose order is drawn, and kept in memory, together


def order_of(count: int, group: int, draw: np.random.Generator) -> tuple[int, np.ndarray]:
    """Of a random order of `count` sequences, the `group`-th GROUP: (first, order), where the sequences are
    first + order.

    Up to GROUP they are shuffled together. More are cut into groups of neighbours, which come in random
    order, but for the last and shorter one, and are shuffled within: the memory is that of one group.
    """
    whole = count // GROUP
    if whole == 0 or count == GROUP:
        return 0, draw.permutation(count)
    which = int(draw.permutation(whole)[group]) if group < whole else whole
    shuffled = np.random.default_rng([int(draw.integers(1 << 62)), which])
    return which * GROUP, shuffled.permutation(min(GROUP, count - which * GROUP))


def too_short(part: str, tokens: np.ndarray, T: int) -> OptionError:
    """The error for fewer tokens than one sequence of T needs."""
    has = f"the {part} has {counted(len(tokens), 'token')}, a sequence of"
    needs = f"{T} needs {T + 1}; use a longer text or a smaller --block-size"
    return OptionError(f"{has} block_size {needs}", f"{has} --block-size {needs}")


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
