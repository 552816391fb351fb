"""Time of many texts into tokens, beside tiktoken; and of a step in which not all targets count.

    python -m bench.texts
    python -m bench.texts --megabytes 10 --files 20 --rounds 3

The texts are Python's standard library and tinyshakespeare, cut and repeated. gpt2 reads the files twice, to
measure and hash them, and writes token files; tiktoken's `encode_ordinary_batch` has the texts in memory and
returns lists. A step is one at 4x128 by `whole`, where half of the targets are -1, and where all count.
Contenders take turns in processes of their own; ratios are medians over the rounds, with their quartiles.
"""

import math
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from bench.harness import contenders, program, ratios
from bench.harness.contenders import Contender
from bench.harness.sizes import Size, batches
from bench.harness.turns import Contest
from bench.harness.worker import Work, training
from gpt2 import AdamW
from gpt2.autodiff import set_threads
from gpt2.data import corpora, stdlib, tinyshakespeare, tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config

MODULE = "bench.texts"
# name -> (title, what it is compared with)
TASKS = {
    "tiktoken": ("tiktoken, texts in memory", None),
    "gpt2": ("gpt2, from files to token files", "tiktoken"),
    "all": ("step, all targets count", None),
    "half": ("step, half of them -1", "all"),
}


def write_texts(folder, files, size):
    """Write `files` texts of `size` bytes in all; each begins elsewhere in the source."""
    source = (stdlib.read() + tinyshakespeare.read()).encode("ascii", "replace")
    each = size // files
    for k in range(files):
        begin = k * 7_919_993 % (len(source) - 1)
        text = (source[begin:] + source * (each // len(source) + 1))[:each]
        (Path(folder) / f"{k:03}.txt").write_bytes(text)


def work(_, name, threads, folder):
    """The Work of a contender's process."""
    if name in ("all", "half"):
        return _steps(name, threads)
    words = tokenizer.gpt2()
    texts = [path.read_text() for path in sorted(Path(folder).iterdir())] if name == "tiktoken" else None

    def once():
        if texts:
            return sum(map(len, words.encoding.encode_ordinary_batch(texts, num_threads=threads)))
        with tempfile.TemporaryDirectory() as place:
            parts = corpora.prepare(folder, words, place).read()
            return sum(np.count_nonzero(part != words.end_of_text) for part in parts)

    def turn(steps):
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            count = once()
            times.append(time.perf_counter() - begin)
        return {"times": {"step": times}, "tokens": int(count)}

    return Work(turn)


class Trainer:
    """Steps of training in which the first half of every sequence does not count, or all of it does."""

    def __init__(self, name, config):
        self.model, self.skipped = GPT2(config, "whole", seed=0), name == "half"
        self.optimizer = AdamW(self.model)

    def step(self, tokens, targets):
        if self.skipped:
            targets = targets.copy()
            targets[:, : targets.shape[1] // 2] = -1
        loss = self.model.loss_and_grads(tokens, targets)
        self.optimizer.step()
        return loss


def _steps(name, threads):
    set_threads(threads)
    config = GPT2Config.preset("shakespeare-char-cpu")
    return training(Trainer(name, config), batches(Size("4x128", config, 12, 64)))


# ---- The contest -----------------------------------------------------------------------------------------


def set_up(player, folder):
    """Do everything once; the number of tokens is compared."""
    player.ask(do="work", make=f"{MODULE}:work", folder=folder)
    program.note(f"{player.name}: ready")
    return {"tokens": player.ask(do="turn", steps=1).get("tokens")}


def measure(folder, threads, rounds):
    """One table as a dict: each contender's seconds of each round, number of tokens and peak bytes."""
    players = {name: Contender(title, MODULE, name) for name, (title, _) in TASKS.items()}
    with Contest(players, threads, partial(set_up, folder=str(folder))) as contest:
        contest.play(rounds, math.inf, turn_s=1.0)
        results = {
            name: {
                "rounds": contest.samples[name]["step"],
                "tokens": contest.facts[name]["tokens"],
                "bytes": contest.peak(name),
            }
            for name in contest.samples
        }
    if len(found := {facts["tokens"] for facts in results.values() if facts["tokens"]}) > 1:
        raise UserError(f"not the same tokens: {sorted(found)}")
    return {"threads": threads, "contenders": results, "absent": contest.absent, "load": contest.load}


def as_text(result):
    """A row a contender: median time, its ratio with quartiles, peak memory of its process."""
    timed, rows = result["contenders"], []
    for name, facts in timed.items():
        title, other = TASKS[name]
        by = ratios.shown(ratios.ratio(facts["rounds"], timed[other]["rounds"])) if other in timed else ""
        milliseconds = f"{ratios.times(facts['rounds'])['median']:.1f} ms"
        rows.append([title, milliseconds, by, f"{facts['bytes'] / 1e6:.0f} MB"])
    tokens = max((facts["tokens"] or 0 for facts in timed.values()), default=0)
    title = f"{tokens:,} tokens; {result['threads']} threads"
    lines = [title, ratios.table(["", "median", "ratio", "peak"], rows)]
    return "\n".join([*lines, *contenders.absences(result["absent"]), program.load_line(result["load"])])


def main(argv):
    parser = program.parser(MODULE, "Time texts into tokens, and a step in which not all targets count.")
    program.number(parser, "--megabytes", 100, "of text")
    program.number(parser, "--files", 100, "that have it")
    program.number(parser, "--rounds", 5, "rounds, in each of which every contender takes a turn")
    options = parser.parse_args(argv)
    report = program.Report(options, "texts")
    with tempfile.TemporaryDirectory() as folder:
        write_texts(folder, options.files, options.megabytes * 10**6)
        for threads in program.thread_counts(options.threads):
            result = measure(folder, threads, options.rounds)
            report.add(result, as_text(result))
    report.write()
    return 0


if __name__ == "__main__":
    program.run(main)
