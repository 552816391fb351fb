"""Time text generation by this engine and transformers, beside a copy of as many bytes as the weights.

    python -m bench.generate
    python -m bench.generate --model gpt2-medium --threads 1,2 --rounds 20

Both load the same random weights, cache keys and values, and choose the likeliest token, at batch 1. They
take turns in processes of their own; the result is the median of the ratios within a round. A token's time is
that of 1 + N tokens less that of one, divided by N, which excludes the prompt. The copy, timed in the same
rounds, is a bound: every token reads all weights.
"""

import math
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import gpt2
from bench.harness import contenders, program, rates, ratios
from bench.harness.contenders import Contender
from bench.harness.turns import Contest
from bench.harness.worker import Work
from gpt2 import autodiff as ad
from gpt2.data import tokenizer
from gpt2.errors import counted
from gpt2.model import GPT2Config

PROMPT = 16  # tokens
CONTENDERS = {
    "gpt2": Contender("gpt2", "bench.generate", "gpt2"),
    "transformers": Contender("transformers", "bench.generate", "transformers", "transformers"),
    "copy": Contender("as many bytes moved by a copy", "bench.generate", "copy"),
}


def ours(folder, threads):
    """generate(count) -> tokens, by gpt2.generate."""
    ad.set_threads(threads)
    model = gpt2.load(folder)
    start = prompt(model.config.vocab_size)
    return lambda count: list(gpt2.generate(model, start, count, temperature=0))


def transformers(folder, threads):
    """generate(count) -> tokens, by transformers' GPT2LMHeadModel."""
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    start = torch.tensor([prompt(model.config.vocab_size)])

    @torch.inference_mode()
    def generate(count):
        mask = torch.ones(1, PROMPT, dtype=torch.long)
        lengths = {"max_new_tokens": count, "min_new_tokens": count}
        out = model.generate(
            start, attention_mask=mask, do_sample=False, use_cache=True, pad_token_id=0, **lengths
        )
        return out[0, PROMPT:].tolist()

    return generate


def prompt(vocab_size):
    return np.random.default_rng(0).integers(0, vocab_size, PROMPT).tolist()


def work(module, variant, threads, folder, count):
    """The Work of a contender's process: seconds per token over `count` tokens, and the tokens."""
    if variant == "copy":
        ad.set_threads(threads)
        copy = rates.copy_of(4 * gpt2.load(folder).num_parameters // 2)

        def turn(steps):
            begin = time.perf_counter()
            for _ in range(count):
                copy()
            return {"times": {"token": [(time.perf_counter() - begin) / count]}, "tokens": []}

        return Work(turn)
    generate = {"gpt2": ours, "transformers": transformers}[variant](folder, threads)

    def turn(steps):
        times = []
        for n in (1, 1 + count):
            begin = time.perf_counter()
            tokens = generate(n)
            times.append(time.perf_counter() - begin)
        return {"times": {"token": [(times[1] - times[0]) / count]}, "tokens": tokens}

    return Work(turn)


# ---- The contest -----------------------------------------------------------------------------------------


def set_up(player, folder, count):
    """Take a first turn, which is not counted."""
    player.ask(do="work", make="bench.generate:work", folder=folder, count=count)
    return player.ask(do="turn", steps=1)


def measure(folder, threads, rounds, count):
    """One table as a dict: each contender's seconds per token by round, and whether the tokens agree."""
    with Contest(CONTENDERS, threads, partial(set_up, folder=folder, count=count)) as contest:
        contest.play(rounds, math.inf)
    texts = [facts["tokens"] for name, facts in contest.facts.items() if name != "copy"]
    return {
        "threads": threads,
        "seconds": {name: ratios.of_rounds(parts["token"]) for name, parts in contest.samples.items()},
        "same_tokens": all(tokens == texts[0] for tokens in texts),
        "absent": contest.absent,
        "load": contest.load,
    }


def as_text(result):
    seconds = result["seconds"]
    lines = [f"{counted(result['threads'], 'thread')}, milliseconds a token, medians"]
    for name, times in seconds.items():
        by = ratios.spread([a / b for a, b in zip(seconds["gpt2"], times)])["median"]
        ratio = f"   gpt2 takes {by:.2f} of it" if name != "gpt2" else ""
        lines.append(f"  {CONTENDERS[name].title:<42}{1e3 * ratios.spread(times)['median']:8.2f}{ratio}")
    if "transformers" in seconds:
        lines.append(f"  the same tokens: {'yes' if result['same_tokens'] else 'NO'}")
    lines += contenders.absences(result["absent"])
    return "\n".join([*lines, program.load_line(result["load"])])


def main(argv):
    parser = program.parser(
        "bench.generate", "Time generation beside transformers and beside a copy of the weights."
    )
    parser.add_argument("--model", metavar="NAME", default="gpt2", help="a preset (default gpt2)")
    program.number(parser, "--tokens", 32, "generated in a turn")
    program.number(parser, "--rounds", 11, "rounds, in each of which every contender takes a turn")
    options = parser.parse_args(argv)
    config = GPT2Config.preset(options.model)
    report = program.Report(options, "generate", model=options.model)
    with tempfile.TemporaryDirectory() as folder:
        model = gpt2.GPT2(config, seed=0)
        model.flat_params *= 3.0  # so that rounding does not decide which token is likeliest
        words = tokenizer.byte() if config.vocab_size == 256 else None
        gpt2.save(model, Path(folder, "model"), words)
        del model
        for threads in program.thread_counts(options.threads):
            result = measure(str(Path(folder, "model")), threads, options.rounds, options.tokens)
            report.add(result, as_text(result))
    report.write()
    return 0


if __name__ == "__main__":
    program.run(main)
