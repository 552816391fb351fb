"""A step with Muon beside one with AdamW: its time, and the peak of memory.

    python -m bench.optimizers
    python -m bench.optimizers --sizes 124M-B4T64,124M-B4T256 --rounds 5

Both train the same model by `whole`, on the same batches, in turns, in processes of their own; ratios are
medians over the rounds, with their quartiles. Iterations of Muon cost what its matrices ask for, whatever the
batch, so the ratio falls as a batch grows.
"""

import math
from functools import partial

from bench.harness import contenders, program, ratios, sizes
from bench.harness.contenders import Contender
from bench.harness.engine import adamw
from bench.harness.turns import Contest
from bench.harness.worker import training
from gpt2.autodiff import set_threads
from gpt2.model import GPT2
from gpt2.model.muon import Muon

MODULE = "bench.optimizers"
SIZES = "4x128-B12T64,6x384-B12T256,124M-B4T64"
CONTENDERS = {name: Contender(name, MODULE, name) for name in ("adamw", "muon")}


class Trainer:
    """A model and its optimizer."""

    def __init__(self, name, config):
        self.model = GPT2(config, "whole", seed=0)
        self.optimizer = adamw(self.model) if name == "adamw" else Muon(self.model)

    def step(self, tokens, targets):
        loss = self.model.loss_and_grads(tokens, targets)
        self.optimizer.step(clip=1.0)
        return loss


def work(_, name, threads, size):
    """The Work of a contender's process."""
    set_threads(threads)
    size = sizes.find(size)
    return training(Trainer(name, size.config), sizes.batches(size))


def set_up(player, size):
    """Two steps, in which everything is compiled."""
    player.ask(do="work", make=f"{MODULE}:work", size=size)
    player.ask(do="turn", steps=2)
    return {"peak": player.ask(do="peak")["bytes"]}


def measure(size, threads, rounds):
    """One table as a dict: each optimizer's seconds of each round and peak bytes."""
    with Contest(CONTENDERS, threads, partial(set_up, size=size)) as contest:
        contest.play(rounds, math.inf, turn_s=0.5, block=2)
        results = {
            name: {"rounds": contest.samples[name]["step"], "bytes": contest.peak(name)}
            for name in contest.samples
        }
    facts = {"size": size, "threads": threads, "contenders": results}
    return {**facts, "absent": contest.absent, "load": contest.load}


def as_text(result):
    """A row an optimizer: time of a step and its ratio to AdamW's, peak of memory and its ratio."""
    timed, rows = result["contenders"], []
    for name, facts in timed.items():
        milliseconds = f"{ratios.times(facts['rounds'])['median']:.1f} ms"
        cells = [milliseconds, "", f"{facts['bytes'] / 2**20:.0f} MiB", ""]
        if name != "adamw" and "adamw" in timed:
            cells[1] = ratios.shown(ratios.ratio(facts["rounds"], timed["adamw"]["rounds"]))
            cells[3] = f"{facts['bytes'] / timed['adamw']['bytes']:.2f}"
        rows.append([name, *cells])
    lines = [f"{result['size']}, {result['threads']} threads"]
    lines.append(ratios.table(["", "step", "ratio", "peak", "ratio"], rows))
    return "\n".join([*lines, *contenders.absences(result["absent"]), program.load_line(result["load"])])


def main(argv):
    parser = program.parser(MODULE, "Time a step with Muon beside one with AdamW, and their memory.")
    program.text(parser, "--sizes", "NAME,...", SIZES, f"of {', '.join(sizes.SIZES)} (default {SIZES})")
    program.number(parser, "--rounds", 7, "rounds, in each of which both take a turn")
    options = parser.parse_args(argv)
    report = program.Report(options, "optimizers")
    for size in sizes.find_all(options.sizes):
        for threads in program.thread_counts(options.threads):
            result = measure(size.name, threads, options.rounds)
            report.add(result, as_text(result))
    report.write()
    return 0


if __name__ == "__main__":
    program.run(main)
