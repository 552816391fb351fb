"""Files of llm.c: checkpoints, debug states and tokenizers. (Its token files: gpt2.data.tokens.)

Each begins with 256 int32, little-endian; the rest of the header is zero:

    checkpoint   20240326, version, maxT, V, L, NH, C, Vp   then the sixteen tensors in the order of
                 gpt2.model.parameter_table; version 3 as float32, version 5 as bfloat16
    debug state  20240327, version 2, B, T                  then inputs and targets (B, T) as int32, logits
                 (B, T, V), the loss, and the gradients of the sixteen tensors, all as float32
    tokenizer    20240328, version 2, tokens, end of text   then for each token its length, a byte, and its
                 bytes; version 1 leaves out the end of text, which is GPT-2's

wte has Vp rows in both: V, and zeros up to a multiple of 128.

Files are not trusted: the header is compared with the size of the file before anything is allocated.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt2.data.tokenizer import ANY_CHARACTER, END_OF_TEXT, GPT2_PIECES, Tokenizer, name_of
from gpt2.errors import UserError, os_errors
from gpt2.model.config import GPT2Config, parameter_table
from gpt2.storage.files import write_atomically, write_together
from gpt2.weights import bfloat16

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
CHECKPOINT, STATE, TOKENIZER = 20240326, 20240327, 20240328
VERSIONS = {3: "float32", 5: "bfloat16"}  # of a checkpoint
PADDING = 128  # V is padded to a multiple of this, for fast matrix products
CHUNK = 1 << 22  # numbers converted at a time: 16 MiB of float32


def padded(vocab_size: int) -> int:
    """Vp: V rounded up to a multiple of 128."""
    return -(-vocab_size // PADDING) * PADDING


# ---- Checkpoints ---------------------------------------------------------------------------------------


class Header(NamedTuple):
    config: GPT2Config
    padded_vocab_size: int  # Vp
    stored: str  # float32 or bfloat16


def read_header(path: str | Path, dtype: str = "float32") -> Header:
    """The Header of a checkpoint, with `dtype` in its config. Raises UserError for any other file."""
    with _opened(path, CHECKPOINT, "checkpoint", 7) as (_, size, numbers):
        version, maxT, V, L, NH, C, Vp = numbers
    if version not in VERSIONS:
        raise UserError(
            f"{path}: version {version} of llm.c's checkpoints, expected 3 (float32) or 5 "
            "(bfloat16); write it again with the present train_gpt2.py"
        )
    try:
        config = GPT2Config(V, maxT, L, NH, C, dtype)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if Vp < V:
        raise UserError(f"{path}: the padded vocabulary has {Vp} tokens, fewer than the vocabulary, {V}")
    item = 4 if VERSIONS[version] == "float32" else 2
    expected = HEADER_BYTES + item * (config.num_parameters + (Vp - V) * C)
    if size != expected:
        raise UserError(
            f"{path}: the header promises {expected:,} bytes (V={V} padded to {Vp}, maxT={maxT}, "
            f"L={L}, C={C}, {VERSIONS[version]}), the file has {size:,}"
        )
    return Header(config, Vp, VERSIONS[version])


def read_config(path: str | Path, dtype: str = "float32") -> GPT2Config:
    return read_header(path, dtype).config


def read_views(path: str | Path, config: GPT2Config) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of each of the sixteen tensors: read-only views of the file, or copies of bfloat16."""
    path = Path(path)
    header = read_header(path, config.dtype)
    if header.config != config:
        raise UserError(f"{path}: holds {header.config}, expected {config}")
    content = np.memmap(path, np.uint8, "r", offset=HEADER_BYTES).view(np.ndarray)
    numbers = content.view("<f4" if header.stored == "float32" else "<u2")
    start = 0
    for name, shape in parameter_table(config):
        stop = start + math.prod(shape)
        tensor = numbers[start:stop].reshape(shape)
        yield name, tensor if header.stored == "float32" else bfloat16.to_float32(tensor)
        padding = (header.padded_vocab_size - config.vocab_size) * config.n_embd if name == "wte" else 0
        start = stop + padding


def write(
    path: str | Path,
    params: Mapping[str, np.ndarray],
    config: GPT2Config,
    stored: str = "float32",
    tokenizer: Tokenizer | None = None,
) -> list[Path]:
    """Write a checkpoint, and a tokenizer beside it, both or neither; returns the paths.

    stored   float32 (version 3) or bfloat16 (version 5)

    Raises UserError if a tokenizer of other weights would remain beside these.
    """
    path, beside = Path(path), tokenizer_beside(path)
    if tokenizer is None and beside.exists():
        raise UserError(f"{beside}: belongs to other weights; remove it, or write these under another name")
    version = next(version for version, name in VERSIONS.items() if name == stored)
    sizes = config.block_size, config.vocab_size, config.n_layer, config.n_head, config.n_embd
    header = [CHECKPOINT, version, *sizes, padded(config.vocab_size)]
    contents = {path: _parts(header, _tensor_parts(params, config, stored))}
    if tokenizer is not None:
        contents[beside] = _token_parts(beside, tokenizer)
    write_together(contents)
    return list(contents)


def tokenizer_beside(path: str | Path) -> Path:
    path = Path(path)
    return path.with_name(f"{path.stem}_tokenizer.bin")


def _tensor_parts(tensors, config, stored):
    """The bytes of the sixteen tensors, wte with its rows of padding."""
    for name, _ in parameter_table(config):
        yield from _number_parts(tensors[name], stored)
        if name == "wte":
            rows = padded(config.vocab_size) - config.vocab_size
            yield bytes(rows * config.n_embd * (4 if stored == "float32" else 2))


# ---- Debug states ----------------------------------------------------------------------------------------


@dataclass
class State:
    """A batch, with the results of another program.

    inputs, targets  (B, T) int32
    logits           (B, T, V) float32
    loss             mean, nats per token
    grads            name -> gradient of the loss, float32, as model.grads
    """

    inputs: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    loss: float
    grads: dict


def read_state(path: str | Path, config: GPT2Config) -> State:
    """The State in a file, for a model of this config, which the file does not contain."""
    V, C = config.vocab_size, config.n_embd
    with _opened(path, STATE, "debug state", 3) as (file, size, (version, B, T)):
        if version != 2:
            raise UserError(f"{path}: version {version} of llm.c's debug states, expected 2")
        if B < 1 or T < 1 or T > config.block_size:
            raise UserError(f"{path}: a batch of B={B}, T={T}, the model reads at most {config.block_size}")
        # The file does not contain Vp either: bytes beyond V rows are padding
        unpadded = HEADER_BYTES + 4 * (2 * B * T + B * T * V + 1 + config.num_parameters)
        extra, rest = divmod(size - unpadded, 4 * C)
        if rest or extra not in (0, padded(V) - V):
            expected = unpadded + 4 * C * (padded(V) - V)
            raise UserError(
                f"{path}: {size:,} bytes, a state of B={B}, T={T} for a model of V={V}, C={C}, "
                f"L={config.n_layer} has {expected:,}; is it of this model?"
            )
        content = file.read(size - HEADER_BYTES)
    at = 0

    def read(shape, dtype="<f4"):
        nonlocal at
        begin, at = at, at + 4 * math.prod(shape)
        return np.frombuffer(content[begin:at], dtype).reshape(shape).copy()

    inputs, targets = read((B, T), "<i4"), read((B, T), "<i4")
    for name, ids in (("inputs", inputs), ("targets", targets)):
        if ids.min() < 0 or ids.max() >= V:
            raise UserError(
                f"{path}: {name} hold tokens from {ids.min()} to {ids.max()}, the model has 0 to {V - 1}"
            )
    logits, loss = read((B, T, V)), float(read(()))
    grads = {}
    for name, shape in parameter_table(config):
        grads[name] = read(shape)
        if name == "wte":
            at += 4 * C * extra
    return State(inputs, targets, logits, loss, grads)


def write_state(path: str | Path, state: State, config: GPT2Config) -> None:
    """Write a State of a model of this config, atomically."""
    B, T = state.inputs.shape

    def body():
        yield from (_little(array, "<i4") for array in (state.inputs, state.targets))
        yield from _number_parts(state.logits, "float32")
        yield np.array(state.loss, "<f4").tobytes()
        yield from _tensor_parts(state.grads, config, "float32")

    write_atomically(path, _parts([STATE, 2, B, T], body()))


# ---- Tokenizers ------------------------------------------------------------------------------------------


def read_tokenizer(path: str | Path) -> Tokenizer:
    with _opened(path, TOKENIZER, "tokenizer", 3) as (file, size, (version, count, end)):
        if version not in (1, 2):
            raise UserError(f"{path}: version {version} of llm.c's tokenizers, expected 1 or 2")
        content = file.read(size - HEADER_BYTES)
    tokens = []
    at = 0
    while at < len(content) and len(tokens) < count:
        length = content[at]
        tokens.append(content[at + 1 : at + 1 + length])
        at += 1 + length
    if len(tokens) != count or at != len(content):  # at > len(content): the last token is cut short
        raise UserError(
            f"{path}: the header promises {count} tokens, the file of {size:,} bytes has "
            f"{'more' if at < len(content) else 'fewer'}"
        )
    # Before version 2 the end of text was always GPT-2's. A vocabulary without one, such as bytes, has in
    # its place the token that text begins with, for llm.c's sampling
    special = {}
    if tokens and tokens[-1] == END_OF_TEXT.encode():
        if version == 2 and end != count - 1:
            raise UserError(f"{path}: end of text is token {end}, expected the last one, {count - 1}")
        special = {END_OF_TEXT: count - 1}
        tokens.pop()
    singles = [bytes([b]) for b in range(256)]
    if sorted(tokens[:256]) != singles:
        text = "the first 256 tokens are not the 256 bytes, expected a vocabulary like GPT-2's"
        raise UserError(f"{path}: {text}")
    if len(set(tokens)) != len(tokens) or b"" in tokens:
        raise UserError(f"{path}: a token is empty or repeated")
    if tokens == singles and not special:
        return Tokenizer("byte", ANY_CHARACTER, tokens)
    return Tokenizer(name_of(tokens), GPT2_PIECES, tokens, special)


def write_tokenizer(path: str | Path, tokenizer: Tokenizer) -> None:
    """Write the tokens of a Tokenizer, atomically. Raises UserError for a token of more than 255 bytes."""
    write_atomically(path, _token_parts(path, tokenizer))


def _token_parts(path, tokenizer):
    tokens = [*tokenizer.ranks, *(text.encode() for text in tokenizer.special)]
    longest = max(map(len, tokens))
    if longest > 255:
        raise UserError(f"{path}: a token has {longest} bytes, llm.c's tokenizer files hold at most 255")
    body = b"".join(bytes([len(token)]) + token for token in tokens)
    return _parts([TOKENIZER, 2, len(tokens), tokenizer.start], [body])


# ---- Bytes -----------------------------------------------------------------------------------------------


@contextmanager
def _opened(path, magic, kind, count):
    """(file behind its header, its size in bytes, the first `count` numbers after the magic one)."""
    with os_errors(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER_BYTES:
            text = f"llm.c's {kind} files begin with a header of {HEADER_BYTES}"
            raise UserError(f"{path}: {size} bytes, {text}")
        header = np.frombuffer(file.read(HEADER_BYTES), "<i4")
        if header[0] != magic:
            raise UserError(f"{path}: begins with {header[0]}, llm.c's {kind} files begin with {magic}")
        yield file, size, [int(n) for n in header[1 : 1 + count]]


def _parts(header, body):
    """The bytes of a file: the header, then `body`."""
    numbers = np.zeros(HEADER_INTS, "<i4")
    numbers[: len(header)] = header
    yield numbers.tobytes()
    yield from body


def _number_parts(array, stored):
    """The bytes of an array in pieces, as float32 or bfloat16."""
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        yield _little(bfloat16.from_float32(part), "<u2") if stored == "bfloat16" else _little(part, "<f4")


def _little(array, kind):
    return np.ascontiguousarray(array, kind).tobytes()
