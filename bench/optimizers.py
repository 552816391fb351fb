"""A step with Muon beside one with AdamW: its time, and the peak of memory.

Both train the same model by `whole`, on the same batches. Iterations of Muon cost what its matrices ask for,
whatever the batch, so the ratio falls as a batch grows.
"""

from bench.harness import contest, program, sizes
from bench.harness.contenders import Contender
from bench.harness.engine import Trainer, adamw
from bench.harness.worker import training
from gpt2.autodiff import set_threads
from gpt2.model import GPT2
from gpt2.model.muon import Muon

MODULE = "bench.optimizers"
SIZES = "4x128-B12T64,6x384-B12T256,124M-B4T64"
CONTENDERS = {name: Contender(name, MODULE, name) for name in ("adamw", "muon")}


def work(_, name, threads, size):
    """The Work of a contender's process."""
    set_threads(threads)
    size = sizes.find(size)
    model = GPT2(size.config, "whole", seed=0)
    return training(Trainer(model, adamw(model) if name == "adamw" else Muon(model)), sizes.batches(size))


def main(argv):
    parser = program.parser(MODULE, "Time a step with Muon beside one with AdamW, and their memory.")
    program.text(parser, "--sizes", "NAME,...", SIZES, f"of {', '.join(sizes.SIZES)} (default {SIZES})")
    program.number(parser, "--rounds", 7, "rounds, in each of which both take a turn")
    options = parser.parse_args(argv)
    report = program.Report(options, "optimizers")
    for size in sizes.find_all(options.sizes):
        for threads in program.thread_counts(options.threads):
            turns = dict(warm=2, turn_s=0.5, block=2)  # all is compiled in the first two steps
            result = contest.measured(MODULE, CONTENDERS, threads, options.rounds, size=size.name, **turns)
            text = contest.as_text(size.name, result, CONTENDERS, {"muon": ["adamw"]})
            report.add({"size": size.name, **result}, text)
    report.write()


if __name__ == "__main__":
    program.run(main)
