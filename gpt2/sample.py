"""Text from a trained model, one token at a time.

    python -m gpt2.sample --run runs/shakespeare-1 --prompt "ROMEO:"

Keys and values of earlier positions are kept, so a token costs one position's products and O(T) attention,
not another pass over the text. GPT-2's positions are absolute: once block_size positions are full, every
position of a moved window would change. The window therefore drops its older half and reads the newer half
again, which over the next block_size / 2 tokens comes to one more position's work per token.
"""

import argparse
import math
import sys

import numpy as np

from gpt2.errors import UserError
from gpt2.layers import gelu_forward, layernorm_forward, matmul_forward


class Decoder:
    """A model that reads tokens step by step and remembers the keys and values of what it read.

    model   gpt2.model.GPT2; only its params and config are used
    batch   B, sequences read side by side
    """

    def __init__(self, model, batch=1):
        config = model.config
        heads = (batch, config.n_head, config.block_size, config.n_embd // config.n_head)
        self.config = config
        self.params = model.params
        self.keys = np.empty((config.n_layer, *heads), config.dtype)
        self.values = np.empty((config.n_layer, *heads), config.dtype)
        self.length = 0  # positions read

    def read(self, tokens, last_only=False):
        """Read tokens (B, n) after what was read before; return logits (B, n, V), one row per new token.

        last_only   only the row of the last token is wanted: (B, 1, V); the head is a third of the work

        Raises ValueError where that makes more than block_size positions.
        """
        tokens = np.asarray(tokens)
        t0, t1 = self.length, self.length + tokens.shape[1]
        if t1 > self.config.block_size:
            raise ValueError(f"Decoder.read: {t1} positions, block_size is {self.config.block_size}")
        p = self.params
        x = p["wte"][tokens] + p["wpe"][t0:t1]  # (B, n, C)
        for l in range(self.config.n_layer):
            ln1 = layernorm_forward(x, p["ln1w"][l], p["ln1b"][l])[0]
            qkv = matmul_forward(ln1, p["qkvw"][l], p["qkvb"][l])[0]
            x = x + matmul_forward(self._attend(qkv, l), p["attprojw"][l], p["attprojb"][l])[0]
            ln2 = layernorm_forward(x, p["ln2w"][l], p["ln2b"][l])[0]
            fc = gelu_forward(matmul_forward(ln2, p["fcw"][l], p["fcb"][l])[0])[0]
            x = x + matmul_forward(fc, p["fcprojw"][l], p["fcprojb"][l])[0]
        self.length = t1
        x = x[:, -1:] if last_only else x
        x = layernorm_forward(x, p["lnfw"], p["lnfb"])[0]
        return matmul_forward(x, p["wte"], None)[0]

    def _attend(self, qkv, l):
        """Attention of n new positions over all positions up to their own: qkv (B, n, 3C) -> (B, n, C)."""
        B, n, C3 = qkv.shape
        NH = self.config.n_head
        HS = C3 // 3 // NH
        t0, t1 = self.length, self.length + n
        q, k, v = qkv.reshape(B, n, 3, NH, HS).transpose(2, 0, 3, 1, 4)  # each (B, NH, n, HS)
        self.keys[l, :, :, t0:t1] = k
        self.values[l, :, :, t0:t1] = v
        scores = q @ self.keys[l, :, :, :t1].swapaxes(-1, -2) * (1.0 / math.sqrt(HS))  # (B, NH, n, t1)
        if n > 1:  # a single new position may see everything
            scores = np.where(np.tri(n, t1, t0, dtype=bool), scores, -np.inf)
        scores -= scores.max(axis=-1, keepdims=True)
        att = np.exp(scores)
        att /= att.sum(axis=-1, keepdims=True)
        return (att @ self.values[l, :, :, :t1]).transpose(0, 2, 1, 3).reshape(B, n, C3 // 3)


def generate(model, tokens, max_tokens=100, temperature=1.0, top_k=0, top_p=1.0, seed=0):
    """Continue `tokens`: yields token ids, one at a time, for a model's own vocabulary.

    tokens        prompt, at least one id; of a prompt longer than the window its end is used
    max_tokens    how many to yield
    temperature   logits are divided by it; 0 takes the likeliest token always
    top_k         choose among the k likeliest tokens; 0 for all of them
    top_p         choose among the likeliest tokens that together have this probability (Holtzman et al. 2020)
    seed          the same seed and settings give the same text; or a numpy.random.Generator

    Raises UserError where an argument is out of range.
    """
    _check(model, tokens, max_tokens, temperature, top_k, top_p)
    return _continue(model, [int(t) for t in tokens], max_tokens, temperature, top_k, top_p,
                     np.random.default_rng(seed))


def _continue(model, window, max_tokens, temperature, top_k, top_p, rng):
    """The generator behind `generate`, its arguments checked."""
    block = model.config.block_size
    decoder = Decoder(model)
    unread = window[-block:]
    window = list(unread)
    for _ in range(max_tokens):
        if decoder.length + len(unread) > block:
            unread = window = window[-max(1, block // 2):]  # forget the older half, read the newer one again
            decoder.length = 0
        logits = decoder.read([unread], last_only=True)[0, -1]  # (V,)
        token = choose(logits, temperature, top_k, top_p, rng)
        yield token
        unread = [token]
        window = [*window, token]


def choose(logits, temperature, top_k, top_p, rng):
    """Draw a token id from logits (V,)."""
    if not np.isfinite(logits).all():
        raise UserError("the model's logits are not finite; its parameters are damaged, or training diverged")
    if temperature == 0:
        return int(np.argmax(logits))
    probs = _probabilities(logits, temperature, top_k, top_p)
    return int(rng.choice(len(probs), p=probs))


def _probabilities(logits, temperature, top_k, top_p):
    """Softmax of logits / temperature in float64, (V,), with what top_k and top_p leave out set to zero."""
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    if 0 < top_k < len(scaled):
        kept = np.argpartition(-scaled, top_k - 1)[:top_k]
        scaled = np.where(np.isin(np.arange(len(scaled)), kept), scaled, -np.inf)
    probs = np.exp(scaled)
    probs /= probs.sum()
    if top_p < 1.0:
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]  # probability of everything likelier
        probs[order[before >= top_p]] = 0.0  # the likeliest token has nothing before it and always stays
        probs /= probs.sum()
    return probs


def _check(model, tokens, max_tokens, temperature, top_k, top_p):
    if len(tokens) == 0:
        raise UserError("generate: the prompt is empty, expected at least one token")
    V = model.config.vocab_size
    for token in tokens:
        if not 0 <= token < V:
            raise UserError(f"generate: the prompt contains token {token}, expected ids from 0 to {V - 1}")
    if max_tokens < 0:
        raise UserError(f"max_tokens is {max_tokens}, expected 0 or more")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise UserError(f"temperature is {temperature}, expected 0 or more")
    if top_k < 0:
        raise UserError(f"top_k is {top_k}, expected 1 or more, or 0 for all tokens")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p is {top_p}, expected more than 0 and at most 1")


# ---- The command -------------------------------------------------------------------------------------------


def _parser():
    parser = argparse.ArgumentParser(prog="python -m gpt2.sample", description="Text from a trained model.",
                                     allow_abbrev=False)
    add = parser.add_argument
    add("--run", default="", help="the run's folder (default: the newest in runs/)")
    add("--checkpoint", default="best", choices=["best", "last"], help="which weights (default: %(default)s)")
    add("--prompt", default="", help="text to continue (default: the start of a text)")
    add("--max-tokens", type=int, default=200, help="tokens to make (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="0: always the likeliest token (default: %(default)s)")
    add("--top-k", type=int, default=200, help="among the k likeliest; 0: all (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="among the likeliest that make up p (default: %(default)s)")
    add("--seed", type=int, default=0, help="the same seed gives the same text (default: %(default)s)")
    return parser


def _run(args):
    from gpt2 import checkpoint, runs, tokenizer

    run = runs.existing(args.run)
    path = run / (runs.BEST if args.checkpoint == "best" else runs.LAST)
    if not path.exists():
        path = run / runs.LAST  # a run too young to have been validated
    model, _ = checkpoint.load_model(path)
    words = tokenizer.load(run / runs.TOKENIZER)
    if words.vocab_size != model.config.vocab_size:
        raise UserError(f"{run}: the tokenizer has {words.vocab_size} tokens, the model "
                        f"{model.config.vocab_size}; they are not of one run")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: expected 0 or more")
    prompt = words.encode(args.prompt) if args.prompt else [words.start]
    tokens = generate(model, prompt, args.max_tokens, args.temperature, args.top_k, args.top_p, args.seed)
    print(args.prompt, end="", flush=True)
    for text in words.stream(tokens):
        print(text, end="", flush=True)
    print()


def main(argv=None):
    args = _parser().parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # '?' where a console lacks the character
    try:
        _run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stderr.close()
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
