"""How well a model predicts a text: nats per token, perplexity, bits per byte.

The end-of-text token precedes the first token; if the tokenizer has none, the first token is not predicted,
and its bytes do not count. Of conversations the answers alone are predicted, cut as in training.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gpt2 import cli
from gpt2.commands.sample import template_of_run
from gpt2.data import conversations, corpora, sources
from gpt2.data.conversations import Examples, Template
from gpt2.data.documents import arrays_of
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokens import largest, read_tokens
from gpt2.errors import UserError, option_error, printable
from gpt2.layers import crossentropy_forward
from gpt2.model.gpt2 import GPT2
from gpt2.weights import pretrained

LOGITS_AT_ONCE = 1 << 26  # numbers; 256 MiB in float32


@dataclass(frozen=True)
class Score:
    """The result of `evaluate`.

    tokens, bytes     predicted, and how many bytes of UTF-8 these tokens stand for
    nats_per_token    mean loss
    perplexity        e to the power of that: the number of equally likely tokens with this loss
    bits_per_byte     the text's size after compression by this model, in bits, over its size in bytes
    """

    tokens: int
    bytes: int
    nats_per_token: float
    perplexity: float
    bits_per_byte: float


def windows(count: int, T: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Cut `count` predictions into windows of at most T: yields (start, stop, first).

    A window reads the tokens from start to stop - 1 and predicts those after each; the predictions from
    `first` on count. Each counts once, and is made from at least T - stride + 1 tokens, if there are so many.
    """
    counted = 0
    while counted < count:
        # the first window has nothing before it, so all of it is new
        stop = min(count, T if counted == 0 else counted + stride)
        start = max(0, stop - T)
        yield start, stop, counted
        counted = stop


def token_losses(model: GPT2, tokens: np.ndarray, stride: int = 0) -> np.ndarray:
    """The loss of every token after the first: (len(tokens) - 1,) float64, nats.

    tokens   (count,) integers, count from 2
    stride   new tokens in a window, from 1 to block_size; 0 for block_size
    """
    T = model.config.block_size
    stride = stride or T
    if not 1 <= stride <= T:
        raise option_error("stride", f"is {stride}, expected 1 to block_size, {T}, or 0 for block_size")
    losses = np.empty(len(tokens) - 1)
    at_once = _rows_at_once(model)
    of_one_length = groupby(windows(len(losses), T, stride), key=lambda cut: cut[1] - cut[0])
    groups = [list(cuts) for _, cuts in of_one_length]
    for batch in [cuts[i : i + at_once] for cuts in groups for i in range(0, len(cuts), at_once)]:
        inputs = np.stack([tokens[start:stop] for start, stop, _ in batch]).astype(np.int64)
        targets = np.stack([tokens[start + 1 : stop + 1] for start, stop, _ in batch]).astype(np.int64)
        batch_losses, _ = crossentropy_forward(model.forward(inputs), targets)  # (B, T)
        for (start, stop, first), row in zip(batch, batch_losses):
            losses[first:stop] = row[first - start :]
    return losses


def evaluate(model: GPT2, tokenizer: Tokenizer, tokens: ArrayLike, stride: int = 0) -> Score:
    """The Score of a model on tokens (count,)."""
    tokens = np.asarray(tokens)
    end = tokenizer.end_of_text
    if len(tokens) < (2 if end is None else 1):
        raise UserError(f"the text has {len(tokens)} tokens, so there is none to predict; use a longer one")
    predicted = tokens if end is not None else tokens[1:]
    size = len(tokenizer.decode_bytes(predicted[predicted != end]))  # end of text has no bytes
    if end is not None:
        tokens = np.concatenate([[end], tokens])
    return _score(token_losses(model, tokens, stride), size)


def evaluate_answers(model: GPT2, tokenizer: Tokenizer, examples: Examples) -> Score:
    """The Score of a model on the answers of conversations, from the rows that training validates on."""
    T, losses, answers = model.config.block_size, [], []
    for inputs, targets in conversations.evenly(examples, _rows_at_once(model), T):
        batch_losses, _ = crossentropy_forward(model.forward(inputs), targets)  # (B, T)
        counts = targets != conversations.IGNORED
        losses.append(batch_losses[counts])
        answers.append(targets[counts])
    ids = np.concatenate(answers)
    size = len(tokenizer.decode_bytes(ids[ids != tokenizer.end_of_text]))
    return _score(np.concatenate(losses).astype(float), size)


def _score(losses, size):
    mean = float(losses.mean())
    perplexity = math.exp(mean) if mean < 700 else math.inf
    bits = float(losses.sum()) / math.log(2.0)
    return Score(len(losses), size, mean, perplexity, bits / size if size else math.inf)


def _rows_at_once(model):
    return max(1, LOGITS_AT_ONCE // (model.config.block_size * model.config.vocab_size))


def read_data(path: str | Path, tokenizer: Tokenizer, template: str = "") -> np.ndarray | Examples:
    """The tokens of a corpus, of texts in files, or of token files (X.bin); Examples of conversations."""
    if str(path).endswith(".bin"):
        tokens = read_tokens(sources.files_of(str(path)))
        if (most := largest(tokens)) >= tokenizer.vocab_size:
            raise UserError(
                f"--data {path}: holds token {most}, the tokenizer {tokenizer.name} has "
                f"0 to {tokenizer.vocab_size - 1}; the file was made with another one"
            )
        return tokens
    _, text = corpora.text_of(str(path), [])
    if text.paths:
        messages = map(conversations.messages_of, chain(*map(sources.lines, text.paths)))
        return Examples.of(messages, Template(template), tokenizer)
    small = np.min_scalar_type(tokenizer.vocab_size)
    return np.concatenate([a.astype(small) for a in arrays_of(text.pieces(), tokenizer)])


EXAMPLES = (
    ("gpt2 evaluate --data my.txt", "the newest run in runs/, on a text"),
    ("gpt2 evaluate --run runs/mine --data tinyshakespeare", "a run, on a named corpus"),
    ("gpt2 evaluate --init gpt2 --data my.txt --stride 512 --json", "GPT-2 itself, with more context"),
)
ABOUT = """How well a model predicts a text: nats per token, perplexity, bits per byte.

The text is cut into windows of block_size tokens. Each token is predicted once, from what stands before it
in its window. With --stride S a window begins S tokens after the one before it, and only its new tokens
count: that takes block_size / S times as long and gives a better figure. Of conversations (.jsonl) the
answers alone count, by the template of the run.

Nats per token compare models of one tokenizer; bits per byte compare any two."""


def parser() -> cli.Parser:
    command = cli.Parser("evaluate", ABOUT, EXAMPLES)
    add = command.add_argument
    about = "a text, a token file (X.bin), tinyshakespeare or stdlib"
    add("--data", required=True, metavar="FILE", help=about)
    cli.add_weights(command)
    add("--stride", type=int, default=0, metavar="S", help="new tokens in a window (default: block_size)")
    add("--json", action="store_true", help="print the figures as JSON")
    return command


def _run(args):
    notes: list[str] = []
    model, tokenizer = pretrained.load(args.run, args.init, args.checkpoint, args.layers, say=notes.append)
    data = read_data(args.data, tokenizer, template_of_run(args))
    if isinstance(data, Examples):
        if args.stride:
            raise UserError("--stride: conversations have no windows; leave it out")
        notes += data.summary(model.config.block_size)
        score = evaluate_answers(model, tokenizer, data)
    else:
        score = evaluate(model, tokenizer, data, args.stride)
    for line in notes:
        cli.tell(line)
    if args.json:
        print(json.dumps(asdict(score)))
        return
    sizes = f"{score.tokens:,} tokens, {score.bytes:,} bytes"
    print(f"{printable(args.data)}: {sizes}, tokenizer {tokenizer.name}")
    print(f"nats per token  {score.nats_per_token:.4f}")
    print(f"perplexity      {score.perplexity:.2f}")
    print(f"bits per byte   {score.bits_per_byte:.4f}")


main = cli.command(parser, _run)
