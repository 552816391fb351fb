"""Measure how training scales over the processes of this machine.

Strong scaling splits a fixed batch over the workers; weak scaling gives each worker a batch of fixed size.
The first row of each table is one process with one thread. Setups take turns step by step, and the result is
the median over the rounds of the ratio within a round (bench/harness/turns.py).
"""

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from functools import partial

from bench.harness import program, ratios, sizes
from bench.harness.turns import play_rounds, settle
from gpt2 import GPT2, AdamW
from gpt2.errors import UserError, counted
from gpt2.machine import cores
from gpt2.parallel.processes import Processes

# Name -> size, whose B is that of strong scaling, and B of each worker for weak scaling
SIZES = {
    "124M-B8T64": (replace(sizes.SIZES["124M-B4T64"], B=8), 4),
    "6x384-B12T256": (sizes.SIZES["6x384-B12T256"], 6),
    "4x128-B12T64": (sizes.SIZES["4x128-B12T64"], 6),
}


@dataclass(frozen=True)
class Setup:
    """A number of processes, the threads of each, and the batch size B of all together."""

    workers: int
    threads: int
    B: int

    @property
    def team(self):
        return self.workers, self.threads

    @property
    def label(self):
        return f"{self.workers} process{'es' * (self.workers > 1)} x {counted(self.threads, 'thread')}"


def main(argv):
    about, words = "Strong and weak scaling over processes.", "threads of each process, e.g. 1,2"
    parser = program.parser("bench.scaling", about, words)
    size = f"of model and batch: {', '.join(SIZES)} (default 124M-B8T64)"
    program.text(parser, "--size", "NAME", "124M-B8T64", size)
    every = "processes (default: 1 to the number of cores, where they divide the batch)"
    program.text(parser, "--workers", "N,...", "", every)
    program.text(parser, "--backward", "WHICH", "manual", "manual, auto, whole, or a mix (default manual)")
    program.number(parser, "--rounds", 12, "rounds at most")
    program.number(parser, "--seconds", 90.0, "time for all rounds; at least three are played", float)
    options = parser.parse_args(argv)
    size, b = sizes.find(options.size, SIZES, "--size")
    B = size.B
    counts = worker_counts(options.workers, B)
    threads = program.thread_counts(options.threads)
    more = [Setup(1, t, B) for t in threads if t > 1] + [Setup(n, 1, B) for n in counts if n > 1]
    strong = [Setup(1, 1, B), *more]
    weak = [Setup(n, 1, b * n) for n in counts]
    report = program.Report(options, "scaling", size=options.size, backward=options.backward)
    samples, load = measure(size, list(dict.fromkeys([*strong, *weak])), options)
    tables = {"strong": rows_of(strong, samples, size.T), "weak": rows_of(weak, samples, size.T)}
    text = "\n\n".join(as_text(name, options, rows) for name, rows in tables.items())
    report.add({**tables, "load": load}, f"{text}\n{program.load_line(load)}")
    report.write()


def worker_counts(text, B):
    """The numbers of --workers, checked; by default those up to the number of cores that divide B."""
    if not text:
        return [n for n in range(1, cores() + 1) if B % n == 0]
    counts = program.whole_numbers(text, "--workers")
    for n in counts:
        if n < 1 or B % n:
            raise UserError(f"--workers {n}: expected a divisor of the batch's {B} sequences")
    return sorted({1, *counts})


# ---- Measuring ---------------------------------------------------------------------------------------------


def measure(size, setups, options):
    """Setup -> list of rounds, each a list with the seconds of one step; and the load of other programs."""
    batches = {setup: next(sizes.batches(replace(size, B=setup.B))) for setup in setups}
    samples = {setup: [] for setup in setups}
    with contextlib.ExitStack() as stack:
        teams = {}  # setups with the same workers and threads share one
        for setup in setups:
            if setup.team not in teams:
                program.note(f"starting {setup.label}")
                model, (workers, n) = GPT2(size.config, backward=options.backward, seed=None), setup.team
                team = Processes(model, AdamW(model), workers, threads=workers * n)
                teams[setup.team] = stack.enter_context(team)
        pids = {key: [process.pid for process in team.workers.processes] for key, team in teams.items()}

        def step(setup):
            begin = time.perf_counter()
            teams[setup.team].step([batches[setup]], 1e-4)
            samples[setup].append([time.perf_counter() - begin])

        turns = {setup: partial(step, setup) for setup in setups}
        for turn in turns.values():
            turn()  # first steps touch new memory
        rest, every = (lambda setup: settle(*pids[setup.team])), sum(pids.values(), [])
        counted, load = play_rounds(turns, rest, every, options.rounds, options.seconds)
    return {setup: [rounds[1 + i] for i in counted] for setup, rounds in samples.items()}, load


def rows_of(setups, samples, T):
    """One dict a setup. speedup: in tokens a second, over the first setup; efficiency: speedup per core."""
    first = setups[0]
    rows = []
    for setup in setups:
        steps = ratios.ratio(samples[first], samples[setup])  # speed-up in steps a second
        speedup = {key: value * setup.B / first.B for key, value in steps.items()}
        ms = ratios.times(samples[setup])
        row = {"label": setup.label, **asdict(setup), "ms": ms}
        row["tokens_per_s"] = setup.B * T / ms["median"] * 1e3
        row["speedup"] = speedup
        row["efficiency"] = speedup["median"] / (setup.workers * setup.threads)
        rows.append(row)
    return rows


def as_text(name, options, rows):
    header = [f"{name} scaling", "B", "median ms", "min", "tok/s", "speed-up", "efficiency"]
    lines = []
    for row in rows:
        ms = [f"{row['ms'][key]:.0f}" for key in ("median", "min")]
        figures = [f"{row['tokens_per_s']:.0f}", ratios.shown(row["speedup"]), f"{row['efficiency']:.0%}"]
        lines.append([row["label"], str(row["B"]), *ms, *figures])
    head = f"{options.size}, backward {options.backward}; speed-up in tokens a second, "
    return f"{head}median [quartiles] over rounds\n{ratios.table(header, lines)}"


if __name__ == "__main__":
    program.run(main)
