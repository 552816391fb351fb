"""Text a token at a time: this engine beside transformers, and beside one reading of the weights.

    python -m bench.generate
    python -m bench.generate --model gpt2-medium --threads 1,2 --rounds 20

Both have the same random weights, read from one folder, keep keys and values, and take the likeliest token at
batch 1. They work in turns, each in a process of its own; what counts is the median of the ratios within a
round. A token's time is that of 1 + N tokens less that of one, over N: the prompt is not in it. The bound is
what a copy takes that moves as many bytes as the weights have, N times over, in the same round.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import gpt2
from bench.harness import machine, program
from bench.harness.turns import Lines, environment
from bench.harness.worker import watch_coordinator
from gpt2 import autodiff as ad
from gpt2.data import tokenizer
from gpt2.model import GPT2Config

PROMPT = 16  # tokens


class Ours:
    """gpt2.generate."""

    def __init__(self, folder, threads):
        ad.set_threads(threads)
        self.model = gpt2.load(folder)
        self.prompt = prompt(self.model.config.vocab_size)

    def __call__(self, count):
        return list(gpt2.generate(self.model, self.prompt, count, temperature=0))


class Transformers:
    """GPT2LMHeadModel.generate with its cache."""

    def __init__(self, folder, threads):
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = GPT2LMHeadModel.from_pretrained(folder).eval()
        self.prompt = prompt(self.model.config.vocab_size)

    def __call__(self, count):
        with self.torch.inference_mode():
            out = self.model.generate(
                self.torch.tensor([self.prompt]),
                attention_mask=self.torch.ones(1, PROMPT, dtype=self.torch.long),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        return out[0, PROMPT:].tolist()


class Copy:
    """No model: the seconds in which a copy moves as many bytes, read and written, as the weights have."""

    def __init__(self, folder, threads):
        half = 4 * gpt2.load(folder).num_parameters // 2
        source, target = np.ones(half, np.uint8), np.zeros(half, np.uint8)
        self.parts = list(zip(np.array_split(source, threads), np.array_split(target, threads)))

    def __call__(self, count):
        begin = time.perf_counter()
        for _ in range(count):
            workers = [threading.Thread(target=np.copyto, args=(t, s)) for s, t in self.parts[1:]]
            for worker in workers:
                worker.start()
            np.copyto(self.parts[0][1], self.parts[0][0])
            for worker in workers:
                worker.join()
        return (time.perf_counter() - begin) / count


CONTENDERS = {"gpt2": Ours, "transformers": Transformers, "copy": Copy}


def prompt(vocab_size):
    return np.random.default_rng(0).integers(0, vocab_size, PROMPT).tolist()


# ---- A contender's process -------------------------------------------------------------------------------


def work(name, folder, threads):
    """Answer each line of standard input, a number of tokens: the seconds for one, and what was made."""
    watch_coordinator()
    contender = CONTENDERS[name](folder, threads)
    for line in sys.stdin:
        count = int(line)
        if name == "copy":
            answer = [contender(count), []]
        else:
            times = []
            for n in (1, 1 + count):
                begin = time.perf_counter()
                made = contender(n)
                times.append(time.perf_counter() - begin)
            answer = [(times[1] - times[0]) / count, made]
        print(json.dumps(answer), flush=True)


# ---- The contest -----------------------------------------------------------------------------------------


def contest(folder, threads, rounds, count):
    """contender -> seconds a token, one number a round; and whether all made the same tokens."""
    players = {
        name: Lines("bench.generate", (name, folder, threads), environment(threads)) for name in CONTENDERS
    }
    times, made = {name: [] for name in players}, {}
    try:
        for name, player in [*players.items()]:
            if player.turn(count) is None:  # the first turn is not counted
                players.pop(name).close()
        for _ in range(rounds):
            for name, player in players.items():
                seconds, tokens = player.turn(count)
                times[name].append(seconds)
                made[name] = tokens
    finally:
        for player in players.values():
            player.close()
    texts = [tokens for name, tokens in made.items() if name != "copy"]
    return {name: t for name, t in times.items() if t}, all(tokens == texts[0] for tokens in texts)


def as_text(threads, times, same):
    ratios = {name: [a / b for a, b in zip(times["gpt2"], t)] for name, t in times.items() if name != "gpt2"}
    lines = [f"{threads} thread{'s' * (threads > 1)}, milliseconds a token, medians"]
    for name, seconds in times.items():
        ratio = f"   gpt2 takes {statistics.median(ratios[name]):.2f} of it" if name in ratios else ""
        label = {"copy": "as many bytes moved by a copy"}.get(name, name)
        lines.append(f"  {label:<42}{1e3 * statistics.median(seconds):8.2f}{ratio}")
    if "transformers" in times:
        lines.append(f"  the same tokens: {'yes' if same else 'NO'}")
    return "\n".join(lines)


def main(argv):
    if argv[:1] == ["--work"]:
        return work(argv[1], argv[2], int(argv[3]))
    parser = program.parser(
        "bench.generate", "Time generation beside transformers and beside a copy of the weights."
    )
    parser.add_argument("--model", metavar="NAME", default="gpt2", help="a preset (default gpt2)")
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=program.positive(int),
        default=32,
        help="generated in a turn (default 32)",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=program.positive(int),
        default=11,
        help="rounds, in each of which all take a turn (default 11)",
    )
    options = parser.parse_args(argv)
    config = GPT2Config.preset(options.model)
    facts = machine.describe()
    program.say(options, program.machine_line(facts))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = gpt2.GPT2(config, seed=0)
        model.flat_params *= 3.0  # so that the likeliest token is not a matter of rounding
        words = tokenizer.byte() if config.vocab_size == 256 else None
        gpt2.save(model, Path(folder, "model"), words)
        del model
        for threads in program.thread_counts(options.threads):
            times, same = contest(str(Path(folder, "model")), threads, options.rounds, options.tokens)
            results.append({"threads": threads, "seconds": times, "same_tokens": same})
            program.say(options, as_text(threads, times, same))
    program.write_json(
        options, {"benchmark": "generate", "model": options.model, "machine": facts, "results": results}
    )
    return 0


if __name__ == "__main__":
    program.run(main)
