"""Every file that this project reads, how to read it, and how to spoil it.

Reading a spoilt file may succeed, where no check could tell, or raise UserError in one line. All else is a
surprise: another exception, a warning, a second line, more memory than the file's size allows, or no end.
"""

import hashlib
import json
import math
import random
import re
import signal
import struct
import threading
import tracemalloc
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpt2.commands.convert import state_of
from gpt2.data import huggingface as tokenizer_files
from gpt2.data import sources, stored, tokenizer
from gpt2.data.tokenizer_json import BYTE_LEVEL
from gpt2.data.tokens import Loader, read_tokens, write_tokens
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.adapters import lora
from gpt2.storage import metrics, runs
from gpt2.train.flags import read_toml, table, to_toml
from gpt2.train.settings import Settings
from gpt2.weights import checkpoint, huggingface, llmc, peft, pretrained

CONFIG = GPT2Config(vocab_size=257, block_size=8, n_layer=2, n_head=2, n_embd=4)

# A file may be read into some 60 times its size: "[]," is three bytes, an empty list 56 and its place in
# another one 8. What a tokenizer of 256 bytes and a model of this CONFIG take comes on top: 1.15 to 1.19 MB.
TIMES, ON_TOP = 64, 5 << 18
SECONDS = 10.0  # of processor time before reading counts as endless


# ---- Kinds of files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A kind of file.

    name    of the kind
    file    its name in a folder
    make    folder -> None; writes the sound file and what has to lie beside it
    read    folder -> anything
    sealed  whether a checksum is in it, so that every change has to be noticed
    mend    bytes -> bytes; puts right what protects a spoilt file from being looked at, such as a checksum
    """

    name: str
    file: str
    make: Any
    read: Any
    sealed: bool = False
    mend: Any = None


def model():
    model = GPT2(CONFIG, seed=3)
    model.flat_params += np.random.default_rng(4).standard_normal(model.flat_params.size).astype(np.float32)
    return model


def words():
    ranks = [bytes([b]) for b in range(256)]
    return tokenizer.Tokenizer("bpe:256", tokenizer.GPT2_PIECES, ranks, {tokenizer.END_OF_TEXT: 256})


def save_checkpoint(path):
    m = model()
    state = {**checkpoint.model_state(m), "step": 3, "loader": {"seed": 1, "position": 2}, "best": 1.5}
    tokens, kept = checkpoint.tokenizer_contents(words())
    checkpoint.save(path, {**checkpoint.model_arrays(m), **tokens}, {**state, **kept})


def save_state(path):
    x, y = np.random.default_rng(5).integers(0, 257, (2, 2, 3)).astype(np.int32)
    llmc.write_state(path, state_of(model(), x, y), CONFIG)


def use_weights(path):
    """Read the weights of a file or folder as --init does, and use them once."""
    found = pretrained.find(str(path))
    m = found.model()
    assert np.isfinite(m.flat_params).all(), "weights that are not finite were taken"
    if path.suffix == ".safetensors":
        found.tokenizer()
    if found.config.n_embd <= 64:
        m.forward(np.zeros((1, 1), int))


def use_tokens(path):
    tokens = read_tokens(path)
    Loader(tokens, 2, 4).next_batch()
    int(tokens.max())


def use_tokenizer(load):
    def read(path):
        made = load(path)
        if made is not None:
            made.decode(made.encode("ab"))
            made.decode([made.start, made.vocab_size - 1])

    return read


def use_settings(path):
    settings = Settings(**read_toml(path, Settings))
    to_toml(settings), table(settings)


def use_text(path):
    text = "".join(sources.pieces(path))
    tokenizer.byte().encode(text), tokenizer.char(text).encode(text)


def save_metrics(folder):
    (folder / runs.SETTINGS).write_text("steps = 4\n")
    lines = [
        {"step": 0, "val_loss": 5.5},
        *({"step": i, "loss": 5.0 / i, "lr": 1e-3, "seconds": 0.01} for i in range(1, 9)),
        {"step": 8, "sample": "To be\n"},
    ]
    (folder / runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def use_metrics(folder):
    read = metrics.read(folder)
    for what in read.values:
        metrics.smoothed(read.get(what)[1], 10)


def hub(folder):
    m = model()
    huggingface.write(folder, m.params, CONFIG, words())


def in_two_files(folder):
    """As transformers writes large models: an index, and the tensors in several files."""
    import safetensors.numpy

    hub(folder)
    tensors = safetensors.numpy.load_file(folder / huggingface.WEIGHTS)
    (folder / huggingface.WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"1.safetensors": names[::2], "2.safetensors": names[1::2]}
    for file, its in parts.items():
        safetensors.numpy.save_file({name: tensors[name] for name in its}, folder / file)
    index = {"weight_map": {name: file for file, its in parts.items() for name in its}}
    (folder / huggingface.INDEX).write_text(json.dumps(index))


def all_in_one(folder):
    hub(folder)
    write_all_in_one(folder, words())
    for name in (tokenizer_files.VOCAB, tokenizer_files.MERGES):
        (folder / name).unlink()


def write_all_in_one(folder, words):
    """A tokenizer.json of these words."""
    ids = {huggingface.spell(token): i for i, token in enumerate(words.ranks)}
    merges = [[*map(huggingface.spell, pair)] for pair in huggingface.merges(words)]
    special = [{"content": text, "id": i, "special": True} for text, i in words.special.items()]
    content = {
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
        "added_tokens": special,
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
    }
    (folder / tokenizer_files.ALL_IN_ONE).write_text(json.dumps(content))


def adapter(folder):
    """A folder of peft, and its base in it."""
    hub(folder / "base")
    peft.write(folder, lora(model(), rank=2), str(folder / "base"))


def write_bin(path, stored="float32"):
    llmc.write(path, model().params, CONFIG, stored)


def of_file(name, file, write, read, **more):
    """A kind of file that has nothing beside it: write(path) and read(path)."""
    return Subject(name, file, lambda place: write(place / file), lambda place: read(place / file), **more)


def subjects():
    """All kinds of files, those that need the safetensors package last."""
    saved = "a.safetensors", save_checkpoint, use_weights
    word_file = use_tokenizer(tokenizer_files.read)
    return [
        of_file("checkpoint", *saved, sealed=True),
        of_file("checkpoint, signed", *saved, mend=sign),
        of_file("llm.c model", "m.bin", write_bin, use_weights),
        of_file("llm.c model, bfloat16", "m.bin", partial(write_bin, stored="bfloat16"), use_weights),
        of_file("llm.c state", "state.bin", save_state, lambda path: llmc.read_state(path, CONFIG)),
        of_file(
            "llm.c tokenizer",
            "t.bin",
            lambda path: llmc.write_tokenizer(path, words()),
            use_tokenizer(llmc.read_tokenizer),
        ),
        of_file("tokens", "a.bin", lambda path: write_tokens(path, np.arange(100) * 7), use_tokens),
        of_file("tokenizer", "t.json", lambda path: words().save(path), use_tokenizer(stored.load)),
        of_file("settings", "a.toml", lambda path: path.write_text(to_toml(Settings())), use_settings),
        Subject("metrics", runs.METRICS, save_metrics, use_metrics),
        of_file("text", "a.txt", lambda path: path.write_text("To be, naïve\n" * 9, "utf-8"), use_text),
        Subject("vocab.json", tokenizer_files.VOCAB, hub, word_file),
        Subject("tokenizer.json", tokenizer_files.ALL_IN_ONE, all_in_one, word_file),
        Subject("config.json", huggingface.CONFIG, hub, use_weights),
        Subject("adapter_config.json", peft.CONFIG, adapter, use_weights),
        Subject("safetensors", huggingface.WEIGHTS, hub, use_weights),
        Subject("safetensors, index", huggingface.INDEX, in_two_files, use_weights),
    ]


def sign(content):
    """A checkpoint's bytes with the checksum that they should have, where the place for it can be found."""
    found = re.search(rb'"sha256": "([^"]*)"', content)
    if not found:
        return content
    zeros = content[: found.start(1)] + checkpoint.NO_DIGEST.encode() + content[found.end(1) :]
    if content[:8] == struct.pack("<Q", 0):
        return content
    digest = hashlib.sha256(zeros).hexdigest().encode()
    return content[: found.start(1)] + digest + content[found.end(1) :]


# ---- Kinds of damage -------------------------------------------------------------------------------------

NUMBERS = [
    0, 1, -1, 2, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**40, 2**53, 2**62,
    2**63 - 1, -(2**63), 2**64 - 1,
]  # fmt: skip
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4e38, -3.4e38]
TEXTS = [
    "", "-1", "1e999", "-1e999", "NaN", "Infinity", "null", "true", "[]", "{}", '""', "9" * 400, "9" * 5000,
    "[" * 3000, '{"a":' * 2000, "1.5", "../../etc/passwd", "..", ".", "/etc/passwd", "C:\\x", "\\u0000",
    "\\ud800", "\0", "\r", "\n", "\x1b[2J", "\ufeff", "e\u0301", "a" * 3000, "'''", '"', "\\", ",", ":",
    "=", "1979-05-27", "0x10", "1_000", "-0", "1e400", "[[a]]", "[a.b.c]",
]  # fmt: skip
VALUES = [
    None, True, False, 0, -1, 1.5, -0.0, 2**31, 2**40, 2**63, -(2**63), 10**30, 10**400, math.nan, math.inf,
    "", "..", "../../etc/passwd", "/etc/passwd", "a\0b", "\ud800", "\n\x1b[2J", "9" * 500, "wte.weight",
    "F32", "BF16", [], [[]], [0], [-1], [2**62, 2**62], [1] * 100, {}, {"a": {}}, "float64", "object", "O",
]  # fmt: skip


def spoil(content, draw):
    """The bytes with one to three things wrong, by random.Random `draw`."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(WAYS)(bytearray(content), draw)
    return bytes(content)


def place(content, draw):
    """A place in the file; half of the time near its beginning, where headers are."""
    return draw.randrange(min(len(content), 64) if draw.random() < 0.5 and content else len(content) or 1)


def change_bytes(content, draw):
    """Bits, bytes, a whole or a real number in the place of others; parts cut out, doubled, or put behind."""
    kind = draw.choice("bits bytes number real cut lengthen take double".split())
    at = place(content, draw)
    if kind == "bits":
        for _ in range(draw.choice((1, 1, 2, 8)) if content else 0):
            content[place(content, draw)] ^= 1 << draw.randrange(8)
    elif kind == "bytes":
        new = draw.choice((bytes(draw.randrange(1, 9)), b"\xff" * draw.randrange(1, 9), draw.randbytes(4)))
        content[at : at + len(new)] = new
    elif kind == "number":
        at, number = at // 4 * 4, draw.choice(NUMBERS)
        size, code = draw.choice(((4, "I"), (8, "Q")))
        content[at : at + size] = struct.pack("<" + code, number % (1 << 8 * size))
    elif kind == "real":
        at = draw.randrange(len(content) // 4 + 1) * 4
        content[at : at + 4] = struct.pack("<f", draw.choice(FLOATS))
    elif kind == "cut":
        return content[:at]
    elif kind == "lengthen":
        more = b"\0", b"\n", b"{}", draw.randbytes(7), bytes(4096), content[:99], content
        return content + draw.choice(more)
    elif kind == "take":
        del content[at : at + draw.choice((1, 2, 4, 8, 100))]
    else:
        content[at:at] = content[at : at + draw.choice((1, 4, 8, 50, 1000))] * draw.choice((1, 1, 3))
    return content


def put_text(content, draw):
    """A piece of text in the place of a word or a number, or between two of them."""
    new = draw.choice(TEXTS).encode("utf-8", "surrogatepass")
    found = list(re.finditer(rb"-?\d[\d.eE+-]*|\"[^\"]*\"|\w+", content[:20_000]))
    if found and draw.random() < 0.8:
        word = draw.choice(found)
        content[word.start() : word.end()] = new
    else:
        at = place(content, draw)
        content[at:at] = new
    return content


def change_json(content, draw):
    """Another value, or another name, somewhere in the JSON: the whole file, a line, or a header behind its
    length."""
    if len(content) > 8 and content[8:9] == b"{":
        length = struct.unpack("<Q", content[:8])[0]
        if length > len(content):
            return content
        text = changed(content[8 : 8 + length], draw)
        return struct.pack("<Q", len(text)) + text + content[8 + length :]
    whole = changed(content, draw)
    if whole != content:
        return whole
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = changed(lines[at], draw)
    return b"\n".join(lines)


def changed(text, draw):
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    places = []

    def visit(holder):
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in items:
            places.append((holder, key))
            if isinstance(inner, dict | list):
                visit(inner)
            elif isinstance(inner, str) and inner.startswith("{"):  # a checkpoint's state
                places.append((holder, key))

    if not isinstance(value, dict | list) or not value:
        return json.dumps(draw.choice(VALUES)).encode()
    visit(value)
    # first the kind of place, by its depth in the file, so that few names count as much as many
    holder, key = draw.choice(places[:12] if draw.random() < 0.5 else places)
    if isinstance(holder[key], str) and holder[key].startswith("{") and draw.random() < 0.8:
        holder[key] = changed(holder[key].encode(), draw).decode()
    elif isinstance(holder, dict) and draw.random() < 0.3:
        inner = holder.pop(key)
        if draw.random() < 0.7:
            new = draw.choice(VALUES)
            holder[new if isinstance(new, str) else json.dumps(new)] = inner
    elif draw.random() < 0.2 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] += draw.choice((-1, 1, 4, -4, 2**32))
    else:
        holder[key] = draw.choice(VALUES)
    return json.dumps(value).encode()


WAYS = [change_bytes] * 8 + [put_text] * 2 + [change_json] * 3


# ---- Outcomes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """kind: read, refused or surprise; text: the error's, or what was surprising; peak: bytes."""

    kind: str
    text: str = ""
    peak: int = 0


class Hangs(BaseException):
    pass


@contextmanager
def time_limit(seconds):
    """Raise Hangs after so long, where the system can. A process that has to wait is not to blame for it, so
    what counts is the time that it computes."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise Hangs

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(subject, folder, content, sound=None):
    """Read the folder with `content` as its file. sound: what the file was, for one that is sealed.

    Memory counts if it is taken twice: other threads of the process may take some at any time.
    """
    came = _once(subject, folder, content, sound)
    if came.peak > _most(content):
        came = _once(subject, folder, content, sound)
    if came.peak > _most(content):
        text = f"{came.peak:,} bytes of memory for a file of {len(content):,}; then: {came.text}"
        return replace(came, kind="surprise", text=text)
    return came


def _most(content):
    return TIMES * len(content) + ON_TOP


def _once(subject, folder, content, sound):
    (folder / subject.file).write_bytes(content)
    tracemalloc.start()
    try:
        with time_limit(SECONDS), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("error")
            subject.read(folder)
        kind, text = "read", ""
    except UserError as error:
        kind, text = "refused", str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # tiktoken's panics are not of class Exception
        kind, text = "surprise", f"{type(error).__name__}: {error}"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if kind == "refused" and (len(text.splitlines()) != 1 or not text.isprintable()):
        kind, text = "surprise", f"not one line of text: {text!r}"
    if kind == "read" and subject.sealed and content != sound:
        kind, text = "surprise", "a change that was not noticed"
    return Outcome(kind, text, peak)


def fuzz(subject, folder, count, seed):
    """Yields (number, content, Outcome) for `count` spoilt files of one kind."""
    subject.make(folder)
    sound = (folder / subject.file).read_bytes()
    subject.read(folder)  # what is imported and compiled only once does not count
    first = outcome(subject, folder, sound, sound)
    if first.kind != "read":
        yield -1, sound, Outcome("surprise", f"the sound file: {first.text}")
    for number in range(count):
        content = spoil(sound, random.Random(f"{subject.name} {seed} {number}"))
        if subject.mend:
            content = subject.mend(content)
        yield number, content, outcome(subject, folder, content, sound)
