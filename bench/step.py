"""Time the whole training step of this engine, PyTorch, JAX and others.

    python -m bench.step
    python -m bench.step --sizes 124M-B4T64,4x128-B12T64 --threads 1,2 --contenders torch,manual,auto,whole

A step is forward, backward, clipping to norm 1 and AdamW, in float32, from the same weights on the same
batches. Contenders take turns of several steps (harness/turns.py); the result is the median over the rounds
of the ratio to the fastest PyTorch of the run. Contenders whose first losses differ are listed without times.
The contender `peak` trains nothing: it does a step's FLOPs as large matrix products, at the sgemm rate that
the machine reaches during the run. A column has each contender's share of that rate over its whole step.
"""

import functools
import time

import numpy as np

from bench.harness import contenders, program, ratios, sizes
from bench.harness.contenders import PEAK
from bench.harness.sizes import step_flops
from bench.harness.turns import Contest, busy
from bench.harness.worker import training
from gpt2.errors import counted

CHECKED_STEPS = 3  # whose losses are compared. A wrong gradient shows from the second step on
TOLERANCE = 1e-4  # of losses, relative: float32 sums in different orders
TURN_S = 0.25  # the least time of a turn: a single step of 30 ms would suffer from cold caches
BLOCK = 2  # the least number of counted steps in a turn
ABOUT = "Time the whole training step beside PyTorch, JAX and others."


def main(argv, name="bench.step", about=ABOUT, size="124M-B4T64", default=contenders.STEP):
    """Run the program `name`, with its default size and default contenders."""
    parser = program.parser(name, about)
    every = f"{', '.join(sizes.SIZES)}, `all` of these, or, of examples/llama.py, {', '.join(sizes.LLAMAS)}"
    program.names(parser, "--sizes", size, f"of model and batch: {every}")
    program.contest_flags(parser, rounds=20, seconds=60, default=default)
    program.number(parser, "--busy", 0, "other programs that compute meanwhile, on the same cores")
    options = parser.parse_args(argv)
    chosen = sizes.find_all(options.sizes, sizes.SIZES | sizes.LLAMAS)
    active = contenders.find(options.contenders, default)
    threads = program.thread_counts(options.threads)
    report = program.Report(options, "step", program.facts(options))
    for size in chosen:
        for n in threads:
            result = measure(size, n, active, options)
            report.add(result, as_text(result))
    return 0 if all(result["rows"] for result in report.write()) else 1


# ---- Measuring ---------------------------------------------------------------------------------------------


def work(module, variant, threads, size, **settings):
    """The Work of a contender's process."""
    size = sizes.find(size, sizes.SIZES | sizes.LLAMAS)
    make = getattr(module, size.training, None)
    if make is None:
        raise contenders.Missing(f"it has no {size.training}")
    return training(make(size, variant, threads, **settings), sizes.batches(size))


def measure(size, threads, names, options):
    """One table as a dict: every contender at this size.

    Contenders that do not fit into memory together run in several heats, each with the reference and the
    peak.
    """
    reference = contenders.reference(names)
    result = {
        "size": size.name,
        "vocab_size": size.config.vocab_size,
        "threads": threads,
        "elementwise": options.elementwise,
        "busy": options.busy,
        "flops": step_flops(size),
        "reference": reference,
        "rows": {},
        "absent": {},
        "heats": [],
    }
    always = list(dict.fromkeys([reference, *(name for name in names if name == PEAK)]))
    waiting = [name for name in names if name not in always]
    while True:
        program.note(f"{size.name}, {threads} threads: {', '.join([*always, *waiting])}")
        players = {name: contenders.CONTENDERS[name] for name in (*always, *waiting)}
        setup = functools.partial(set_up, size=size, elementwise=options.elementwise)
        with Contest(players, threads, setup) as contest:
            disagreeing = check_losses(contest)
            with busy(options.busy, threads):
                contest.play(options.rounds, options.seconds, TURN_S, BLOCK)
            agreeing = {name: times for name, times in contest.samples.items() if name not in disagreeing}
            reference = contenders.fastest_peer(agreeing) or reference
            heat = rows_of(contest, reference, step_flops(size))
        for name in disagreeing.keys() & heat.keys():
            heat[name]["disagrees"] = disagreeing[name]
        if not result["rows"]:  # the first heat decides on the reference
            result["reference"] = reference
            always = list(dict.fromkeys([reference, *always[1:]]))
        result["rows"] = {**heat, **result["rows"]}  # the reference and the peak keep the first heat's row
        result["heats"].append(contest.load)
        result["absent"] |= {name: absent for name, absent in contest.absent.items() if not absent["memory"]}
        later = [name for name, absent in contest.absent.items() if absent["memory"]]
        if not later or later == waiting:
            result["absent"] |= {name: contest.absent[name] for name in later}
            return result
        waiting = later


def set_up(player, size, elementwise):
    """Build the model and run the first steps, whose losses are compared. ready_s: until the first is done.

    A contender with its own data has run its first steps already, and has no losses to compare.
    """
    settings = contenders.settings(player.name, elementwise)
    built = player.ask(do="work", make="bench.step:work", size=size.name, **settings)
    losses = [] if built["own_data"] else player.ask(do="turn", steps=1)["losses"]
    ready = time.perf_counter() - player.began
    if not built["own_data"]:
        losses += player.ask(do="turn", steps=CHECKED_STEPS - 1)["losses"]
    peak = player.ask(do="peak")["bytes"]
    return {"ready_s": ready, "losses": losses, "about": built["about"], "peak": peak}


def check_losses(contest):
    """Name -> reason, for contenders whose first losses differ from the first contender's.

    The peak, and contenders with their own data (llm.c), have none to compare.
    """
    far = {}
    names = [name for name in contest.facts if name != PEAK and contest.facts[name]["losses"]]
    for name in names[1:]:
        ours, theirs = contest.facts[name]["losses"], contest.facts[names[0]]["losses"]
        errors = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
        if not (error := np.max(errors)) <= TOLERANCE:  # nan if one is
            far[name] = f"losses {ours} against {theirs} of {names[0]}: relative error {error:.1e}"
    return far


def rows_of(contest, reference, flops):
    """Name -> everything measured of it. flops: the operations of a step's products.

    of_peak: the rate of those operations over the whole step, as a share of the peak's rate in the round.
    """
    rows = {}
    for name in contest.facts:
        if name not in contest.samples:
            continue
        parts = contest.samples[name]
        rows[name] = {
            "title": contenders.CONTENDERS[name].title,
            "ms": ratios.times(parts["step"]),
            "peak_bytes": contest.peak(name),
            **{key: contest.facts[name][key] for key in ("ready_s", "losses", "about")},
            "samples_ms": [[round(1e3 * x, 3) for x in turn] for turn in parts["step"]],
        }
        rows[name]["gflops"] = flops / rows[name]["ms"]["median"] / 1e6
        if PEAK in contest.samples:  # same work in twice the time: half the rate
            rows[name]["of_peak"] = ratios.ratio(contest.samples[PEAK]["step"], parts["step"])
        for other in (reference, "manual", "written"):
            if other in contest.samples:
                rows[name][f"to_{other}"] = ratios.ratio(parts["step"], contest.samples[other]["step"])
    return rows


def as_text(result):
    reference = result["reference"]
    rows = result["rows"]
    others = [reference, *[name for name in ("manual", "written") if name in rows and name != reference][:1]]
    shares = ["of sgemm peak"] if PEAK in rows else []
    header = ["contender", "median ms", "min", *(f"to {name}" for name in others), *shares]
    header += ["steps", "peak MB", "ready s"]
    lines = []
    for name in contenders.CONTENDERS:
        if name not in rows or "disagrees" in (row := rows[name]):
            continue
        cells = [row["title"], f"{row['ms']['median']:.1f}", f"{row['ms']['min']:.1f}"]
        cells += [ratios.shown(row[f"to_{name}"], 3) if f"to_{name}" in row else "-" for name in others]
        cells += [ratios.shown(row["of_peak"]) if "of_peak" in row else "-"] if shares else []
        cells += [str(row["ms"]["n"]), f"{row['peak_bytes'] / 2**20:.0f}", f"{row['ready_s']:.1f}"]
        lines.append(cells)
    text = [
        f"{result['size']}, {counted(result['threads'], 'thread')}, "
        f"vocabulary {result['vocab_size']}, gpt2 with elementwise {result['elementwise']}"
        f"{', beside ' + counted(result['busy'], 'busy program') if result['busy'] else ''}; "
        "ratios: median [quartiles] over rounds",
        *(
            f"products of a step: {result['flops'] / 1e9:.3g} GFLOP; sgemm peak: {row['gflops']:.0f} GFLOP/s "
            f"at the median ({row['about']})"
            for name, row in rows.items()
            if name == PEAK
        ),
        ratios.table(header, lines),
        *dict.fromkeys(row["about"] for name, row in rows.items() if name != PEAK and row.get("about")),
    ]
    text += [f"{row['title']}: not counted, {why}" for row in rows.values() if (why := row.get("disagrees"))]
    text += contenders.absences(result["absent"])
    return "\n".join([*text, *(program.load_line(load) for load in result["heats"])])


if __name__ == "__main__":
    program.run(main)
