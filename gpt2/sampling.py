"""Text from a model, one token at a time.

The model's own forward reads one position at a time (model/decoder.py). Keys and values of earlier ones are
cached, so a token costs one position's products and O(T) attention, not another pass over the text.
GPT-2's positions are absolute: once block_size positions are full, moving the window changes every position.
The window therefore drops its older half and reads the newer half again, which over the next block_size / 2
tokens comes to one more position's work per token.
"""

import math
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError, option_error
from gpt2.machine import free_memory, size
from gpt2.model.decoder import Decoder, SlowGeneration, slowness
from gpt2.model.gpt2 import GPT2


@overload
def generate(
    model: GPT2,
    tokens: str,
    max_tokens: int = ...,
    temperature: float = ...,
    top_k: int = ...,
    top_p: float = ...,
    seed: int | np.random.Generator = ...,
    *,
    stop: str | Iterable[str] = ...,
    tokenizer: Tokenizer | None = ...,
) -> str: ...
@overload
def generate(
    model: GPT2,
    tokens: Sequence[int] | np.ndarray,
    max_tokens: int = ...,
    temperature: float = ...,
    top_k: int = ...,
    top_p: float = ...,
    seed: int | np.random.Generator = ...,
) -> Iterator[int]: ...
def generate(
    model: GPT2,
    tokens: str | Sequence[int] | np.ndarray,
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | np.random.Generator = 0,
    *,
    stop: str | Iterable[str] = (),
    tokenizer: Tokenizer | None = None,
) -> str | Iterator[int]:
    """Continue a prompt: text with text, or token ids with token ids, yielded one at a time.

    tokens        a text, or at least one id; a prompt longer than the window is cut to its end
    max_tokens    how many to generate
    stop          for a text: a string, or several, that end it, and are left out
    tokenizer     for a text: the model's Tokenizer; by default the one loaded with the model
    temperature   logits are divided by it; 0 always takes the likeliest token
    top_k         choose among the k likeliest tokens; 0 for all of them
    top_p         choose among the likeliest tokens that together have this probability (Holtzman et al. 2020)
    seed          the same seed and settings give the same text; or a numpy.random.Generator

    Raises UserError if an argument is out of range.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, seed=0)
        >>> len(list(gpt2.generate(model, [1, 2, 3], max_tokens=5, temperature=0.8, top_k=10)))
        5
    """
    options: dict[str, Any] = dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if isinstance(tokens, str):
        encoding = tokenizer or model.tokenizer
        if encoding is None:
            raise UserError(
                "generate: this model has no tokenizer; pass one with tokenizer= (gpt2.load_tokenizer finds "
                "one), or token ids as the prompt"
            )
        (sample,) = write_samples(model, encoding, tokens, stop=stop, max_tokens=max_tokens, **options)
        return sample.text
    if tokenizer is not None or stop != ():
        raise UserError("generate: stop and tokenizer are for a text; the prompt is token ids")
    steps = generate_batch(model, tokens, 1, max_tokens, **options)
    return (int(ids[0]) for ids, _ in steps)


def generate_batch(
    model: GPT2,
    tokens: Sequence[int] | np.ndarray,
    samples: int,
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | np.random.Generator = 0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Continue `tokens` in several ways, as a batch: yields (ids, logits) for every new position.

    samples   B, how many; the first is what `generate` gives for the same seed
    ids       (B,) integers, one more token of each sample
    logits    (B, V), from which they were drawn

    The other arguments and errors are those of `generate`.
    """
    _check(model, tokens, max_tokens, temperature, top_k, top_p)
    check_samples(samples)
    c, free = model.config, free_memory(swap=True)
    positions = min(c.block_size, len(tokens) + max_tokens)
    # keys and values
    needed = samples * positions * 2 * c.n_layer * c.n_embd * np.dtype(c.dtype).itemsize
    if free is not None and needed > free:
        text = f"their keys and values take {size(needed)}, and {size(free)} are free; take fewer"
        raise option_error("samples", f"is {samples}: {text}")
    rngs = [np.random.default_rng(seed)]
    if samples > 1:
        if isinstance(seed, np.random.Generator):
            raise option_error(
                "samples", f"is {samples}: each has a seed of its own, so give a number as seed"
            )
        rngs += [np.random.default_rng([seed, i]) for i in range(1, samples)]
    window = np.tile([int(token) for token in tokens], (samples, 1))
    return _continue(model, window, max_tokens, rngs, temperature, top_k, top_p)


def _continue(model, window, max_tokens, rngs, temperature, top_k, top_p):
    """The generator behind `generate_batch`, its arguments checked. window (B, n): the prompt."""
    block = model.config.block_size
    decoder = Decoder(model, len(rngs))
    if decoder.slow:
        warnings.warn(slowness(decoder.slow), SlowGeneration, stacklevel=3)
    window = window[:, -block:]
    start, end = 0, window.shape[1]  # of what is still to be read
    text = np.empty((len(rngs), block + 1), np.int64)  # the window, and the tokens that come
    text[:, :end] = window
    draw = TokenDraw(model.config.vocab_size)
    for _ in range(max_tokens):
        if end > block:
            # forget the older half, read the newer one again
            newer = max(1, block // 2)
            text[:, :newer] = text[:, end - newer : end]
            start, end, decoder.length = 0, newer, 0
        logits = decoder.read(text[:, start:end], last_only=True)[:, -1]  # (B, V)
        ids = np.array([draw(row, temperature, top_k, top_p, rng) for row, rng in zip(logits, rngs)])
        yield ids, logits
        text[:, end] = ids
        start, end = end, end + 1


class TokenDraw:
    """Draws token ids from logits (V,) in preallocated memory: if top_p is 1, a draw allocates nothing."""

    def __init__(self, V: int) -> None:
        self.finite = np.empty(V, bool)
        self.probs, self.others = np.empty(V), np.empty(V)

    def __call__(
        self, logits: np.ndarray, temperature: float, top_k: int, top_p: float, rng: np.random.Generator
    ) -> int:
        """A token id; the settings as for `generate`."""
        if not np.isfinite(logits, out=self.finite).all():
            raise UserError(
                "the model's logits are not finite; its parameters are damaged, or training diverged"
            )
        if temperature == 0:
            return int(np.argmax(logits))
        # as rng.choice(V, p=probs) does, from the same random number
        below = np.cumsum(self.probabilities(logits, temperature, top_k, top_p), out=self.others)
        below /= below[-1]
        return int(below.searchsorted(rng.random(), side="right"))

    def probabilities(self, logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
        """Softmax of logits / temperature in float64, (V,), zero for tokens that top_k and top_p exclude. The
        next call overwrites it.
        """
        probs = self.probs
        np.copyto(probs, logits)
        probs -= probs.max()
        probs /= temperature
        if 0 < top_k < len(probs):
            self._keep(top_k)
        np.exp(probs, out=probs)
        probs /= probs.sum()
        if top_p < 1.0:
            order = np.argsort(-probs, kind="stable")
            before = np.cumsum(probs[order]) - probs[order]  # probability of everything likelier
            probs[order[before >= top_p]] = 0.0  # the likeliest has nothing before it and always stays
            probs /= probs.sum()
        return probs

    def _keep(self, k):
        """Set all but the k largest of probs to minus infinity."""
        probs, sorted_ = self.probs, self.others
        sorted_[...] = probs
        sorted_.partition(len(probs) - k)
        np.less(probs, sorted_[len(probs) - k], out=self.finite)
        if np.count_nonzero(self.finite) != len(probs) - k:  # ties with the k-th largest
            self.finite[...] = True
            self.finite[np.argpartition(-probs, k - 1)[:k]] = False
        np.copyto(probs, -np.inf, where=self.finite)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """The model's own log-probabilities (V,) float64 in nats: without temperature, top_k and top_p."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _check(model, tokens, max_tokens, temperature, top_k, top_p):
    try:
        ids = np.asarray([tokens[k] for k in range(len(tokens))])  # of bytes too
    except (TypeError, ValueError, KeyError):  # not a sequence, or rows of different lengths
        ids = np.empty((0, 0))
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UserError(f"generate: tokens is {reprlib.repr(tokens)}, expected a text or a list of token ids")
    if len(tokens) == 0:
        raise UserError("generate: the prompt is empty, expected at least one token")
    V = model.config.vocab_size
    for token in tokens:
        if not 0 <= token < V:
            raise UserError(f"generate: the prompt contains token {token}, expected ids from 0 to {V - 1}")
    check_options(max_tokens, temperature, top_k, top_p)


def check_samples(samples: int) -> None:
    if samples < 1:
        raise option_error("samples", f"is {samples}, expected 1 or more")


def check_options(max_tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    if max_tokens < 0:
        raise option_error("max_tokens", f"is {max_tokens}, expected 0 or more")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise option_error("temperature", f"is {temperature}, expected 0 or more")
    if top_k < 0:
        raise option_error("top_k", f"is {top_k}, expected 1 or more, or 0 for all tokens")
    if not 0 < top_p <= 1:
        raise option_error("top_p", f"is {top_p}, expected more than 0 and at most 1")


# ---- Stop strings ----------------------------------------------------------------------------------------


class Stop:
    """Cuts a stream of text at the first stop string; text is released once it cannot be part of one."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = [string for string in strings if string]
        self.pending = ""  # the end of the text so far, which may be the beginning of a stop string
        self.found = False

    def feed(self, text: str) -> str:
        """Take more text and return what can be shown; nothing after a stop string was found."""
        if self.found:
            return ""
        self.pending += text
        matches = [(at + len(s), at) for s in self.strings if (at := self.pending.find(s)) >= 0]
        if matches:  # the one that is complete first, however the text is cut into pieces
            self.found = True
            return self._release(min(matches)[1])
        longest = max((len(string) - 1 for string in self.strings), default=0)
        for count in range(min(longest, len(self.pending)), 0, -1):
            if any(string.startswith(self.pending[-count:]) for string in self.strings):
                return self._release(len(self.pending) - count)
        return self._release(len(self.pending))

    def close(self) -> str:
        """Return what is left after the last piece."""
        return "" if self.found else self._release(len(self.pending))

    def _release(self, count):
        shown, self.pending = self.pending[:count], self.pending[count:]
        return shown


@dataclass
class Sample:
    """One continuation.

    text       up to the stop string
    tokens     ids, up to the one that completes the stop string
    logprobs   of each token, nats, by the model itself: before temperature, top_k and top_p
    top        for each position its likeliest tokens, (id, logprob) pairs
    stopped    "stop" if a stop string was found, else "length"
    """

    text: str = ""
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    top: list = field(default_factory=list)
    stopped: str = "length"


def write_samples(
    model: GPT2,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int] | np.ndarray,
    samples: int = 1,
    stop: str | Iterable[str] = (),
    logprobs: int | None = None,
    show: Callable[[str], object] | None = None,
    **options: Any,
) -> list[Sample]:
    """Continue a prompt in `samples` ways; returns a list of Sample.

    tokenizer   the model's
    prompt    text, or token ids; if it is empty, the token that texts begin with
    stop      a string, or several, that end a sample
    logprobs  how many of the likeliest tokens to keep at each position; None: no log-probabilities at all
    show      called with each piece of the first sample's text as soon as it is known
    options   max_tokens, temperature, top_k, top_p, seed as for `generate`
    """
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    ids = ids if len(ids) else [tokenizer.start]
    steps = generate_batch(model, ids, samples, **options)
    results = [Sample() for _ in range(samples)]
    ends = [Stop([stop] if isinstance(stop, str) else stop) for _ in results]
    decoders = [tokenizer.decoder() for _ in results]

    def add_text(i: int, text: str) -> None:
        results[i].text += text
        if show is not None and i == 0 and text:
            show(text)

    for chosen, logits in steps:
        for i, sample in enumerate(results):
            if ends[i].found:
                continue  # its row is still computed with the others
            token = int(chosen[i])
            sample.tokens.append(token)
            if logprobs is not None:
                own = log_probabilities(logits[i])
                sample.logprobs.append(float(own[token]))
                if logprobs:
                    likeliest = np.argsort(-own, kind="stable")[:logprobs]
                    sample.top.append([(int(k), float(own[k])) for k in likeliest])
            add_text(i, ends[i].feed(decoders[i].feed(token)))
        if all(end.found for end in ends):
            break
    for i, sample in enumerate(results):
        add_text(i, ends[i].feed(decoders[i].close()) + ends[i].close())
        sample.stopped = "stop" if ends[i].found else "length"
    return results
