"""Conversations: examples with questions and answers, of which the answers alone are learnt.

A line of a .jsonl file has the fields `prompt` and `completion`, or `messages`, a list of objects with `role`
(system, user or assistant) and `content`. A template makes text of a message. What the assistant says is an
answer, to the end of its message: the targets in it count, and all others are -1.

An example takes a row of T targets, padded at its end, or shares it with others if they are packed: every
target belongs to the example of its input. A longer one is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.sources import JsonLine, field_of, is_jsonl, lines
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokens import Epochs
from gpt2.errors import UserError, counted, option_error, os_errors
from gpt2.storage.files import replacing

DEFAULT = "<|{role}|>\n{content}<|end|>\n"
ANSWERS = "assistant"  # the role whose messages are learnt
IGNORED = -1


class Template:
    """The text of a message, with the placeholders {role} and {content}; \\n and \\t may be typed in it.

    end   the text at which an answer ends
    """

    def __init__(self, text: str = "") -> None:
        self.text = (text or DEFAULT).replace("\\n", "\n").replace("\\t", "\t")
        self.before, found, self.after = self.text.partition("{content}")
        if not found or "{content}" in self.after:
            raise option_error("template", f"is {self.text!r}: expected the placeholder {{content}} once")
        self.end = self.after.strip() or self.after
        if not self.end:
            raise option_error("template", f"is {self.text!r}: nothing in it says where a message ends")

    def segments(self, messages: Iterable[Mapping[str, str]]) -> list[tuple[str, bool]]:
        """(text, whether it is an answer) of some messages; texts that are none follow one another as one."""
        found, other = [], ""
        for message in messages:
            other += self.opening(message["role"])
            text = message["content"] + self.after.replace("{role}", message["role"])
            if message["role"] == ANSWERS:
                found += [(other, False), (text, True)]
                other = ""
            else:
                other += text
        return [*found, (other, False)] if other else found

    def opening(self, role: str = ANSWERS) -> str:
        return self.before.replace("{role}", role)

    def prompt(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> np.ndarray:
        """The tokens after which an answer follows, cut into tokens as examples are."""
        *answers, (last, _) = self.segments(messages)
        texts = [*(text for text, _ in answers), last + self.opening()]
        return np.concatenate([tokenizer.encode(text) for text in texts if text])


def are_in(paths: Sequence[Path]) -> bool:
    """Whether the first line of some files is a conversation."""
    if not (paths and is_jsonl(paths[0])):
        return False
    first = next(lines(paths[0]))
    return "messages" in first or ("prompt" in first and "text" not in first)


def messages_of(line: JsonLine) -> list[dict[str, str]]:
    """The messages of a line. Raises UserError, which names it, for one that has none or no answer."""
    if "messages" not in line:
        return [
            {"role": "user", "content": field_of(line, "prompt")},
            {"role": ANSWERS, "content": field_of(line, "completion")},
        ]
    messages = line["messages"]
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UserError(f"{line.place}: the field 'messages' is not a list of objects")
    found = []
    for number, message in enumerate(messages):
        message = JsonLine(message)
        message.place = f"{line.place}: message {number}"
        found.append({name: field_of(message, name) for name in ("role", "content")})
    if all(message["role"] != ANSWERS for message in found):
        raise UserError(f"{line.place}: no message has the role {ANSWERS!r}, so there is no answer to learn")
    return found


def tokens_of(
    messages: Iterable[Mapping[str, str]], template: Template, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of an example, and whether each is part of an answer. The end of text follows, if any."""
    pairs = [(tokenizer.encode(text), counts) for text, counts in template.segments(messages) if text]
    if tokenizer.end_of_text is not None:
        pairs.append((np.array([tokenizer.end_of_text]), True))
    ids, counts = zip(*((ids, np.full(len(ids), counts)) for ids, counts in pairs))
    return np.concatenate(ids), np.concatenate(counts)


def write_index(path: Path, lengths: Sequence[int], counts: Sequence[np.ndarray]) -> None:
    """Write the index of examples whose tokens lie in a token file: their lengths, and which tokens count."""
    with os_errors(f"cannot write {path}"), replacing(path) as file:
        np.savez(file, lengths=np.array(lengths, np.int64), counts=np.packbits(np.concatenate(counts)))


class Examples:
    """Examples, one after the other.

    tokens, lengths, counts   of all of them: (count,) integers; tokens of each example; whether a token
                              counts as a target, (count,) bool
    pack                      whether several examples may share a row
    fill                      the token of inputs after the last example of a row
    """

    def __init__(
        self, tokens: Any, lengths: np.ndarray, counts: np.ndarray, pack: bool = False, fill: int = 0
    ) -> None:
        self.tokens, self.lengths, self.counts, self.pack, self.fill = tokens, lengths, counts, pack, fill
        self.starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, conversations: Iterable[Any], template: Template, tokenizer: Tokenizer) -> Examples:
        """Those of some conversations, each a list of messages."""
        ids, counts = zip(*(tokens_of(messages, template, tokenizer) for messages in conversations))
        lengths = np.array([len(one) for one in ids])
        return cls(np.concatenate(ids), lengths, np.concatenate(counts), fill=tokenizer.start)

    @classmethod
    def read(cls, tokens: Any, index: Path, pack: bool, fill: int) -> Examples:
        """Those whose tokens lie in a token file, and the rest in an index file."""
        with np.load(index, allow_pickle=False) as arrays:
            counts = np.unpackbits(arrays["counts"], count=len(tokens)).astype(bool)
            return cls(tokens, arrays["lengths"], counts, pack, fill)

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, T: int) -> list[list[int]]:
        """The examples of each row of T targets, in the order of the file, without those whose answer begins
        after a row. Raises UserError if none is left."""
        rows, room = [], 0
        for i, n in enumerate(self._targets(T)):
            if n == 0:
                continue
            if self.pack and n <= room:
                rows[-1].append(i)
            else:
                rows.append([i])
                room = T
            room -= n
        if not rows:
            raise option_error("block_size", f"is {T}: no conversation has an answer within so many tokens")
        return rows

    def _targets(self, T):
        """The targets that each example takes of a row; 0 for one that has no answer there."""
        first = [c[1 : T + 1].any() for c in np.split(self.counts, self.starts[1:])]
        return np.where(first, np.minimum(self.lengths - 1, T), 0)

    def batch(self, rows: Sequence[Sequence[int]], T: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of some rows, two (B, T) int32; a target that does not count is -1."""
        inputs = np.full((len(rows), T), self.fill, np.int32)
        targets = np.full((len(rows), T), IGNORED, np.int32)
        for b, row in enumerate(rows):
            at = 0
            for i in row:
                n = min(int(self.lengths[i]) - 1, T)
                span = slice(self.starts[i], self.starts[i] + n + 1)
                tokens, counts = np.asarray(self.tokens[span], np.int32), self.counts[span]
                inputs[b, at : at + n] = tokens[:-1]
                targets[b, at : at + n] = np.where(counts[1:], tokens[1:], IGNORED)
                at += n
        return inputs, targets

    def summary(self, T: int) -> list[str]:
        """What becomes of examples that are longer than a row: a line, or none."""
        long = self.lengths > T + 1
        out = int(np.count_nonzero(self._targets(T) == 0))
        if not (long.any() or out):
            return []
        cut = int(np.count_nonzero(long & (self._targets(T) > 0)))
        return [
            f"of {counted(len(self.lengths), 'conversation')} {cut} are cut to {T + 1} tokens, and {out} "
            "left out, as no answer begins within them; --block-size sets the length"
        ]


class ExampleEpochs(Epochs):
    """Batches of rows of examples: every row once an epoch, in a new order for each."""

    def __init__(self, examples: Examples, B: int, T: int, seed: int = 0) -> None:
        self.rows = examples.rows(T)
        super().__init__(np.zeros(T + 1), B, T, seed)  # a text for its checks, replaced below
        self.examples, self.pieces, self.shifts = examples, len(self.rows), 1

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = range(self.begin + k * self.B, self.begin + (k + 1) * self.B)
        rows = [self.rows[self._place(*divmod(n, self.pieces))[1]] for n in numbers]
        return self.examples.batch(rows, self.T)


def evenly(examples: Examples, B: int, T: int, batches: int = 0) -> Any:
    """Batches for evaluation, as gpt2.data.tokens.evenly cuts a text: rows instead of sequences."""
    rows = examples.rows(T)
    if 0 < batches * B < len(rows):
        rows = [rows[i * len(rows) // (batches * B)] for i in range(batches * B)]
    for first in range(0, len(rows), B):
        yield examples.batch(rows[first : first + B], T)
