"""Roofline of the training step: each layer's time against the bound that this machine sets.

    python -m bench.roofline
    python -m bench.roofline --svg roofline.svg
    python -m bench.roofline --sizes 124M-B4T256 --contenders manual,whole --lines 20

A layer takes at least its FLOPs at the best rate of a float32 product, and at least its bytes at the
bandwidth of a copy (harness/work.py). Time above the larger bound is what a faster engine could save. --lines
samples which lines of source take the time, also in emitted programs.
"""

import itertools
import statistics
from pathlib import Path

from bench import drawing
from bench.harness import contenders, machine, program, ratios, sizes
from bench.harness.turns import DISTURBED, Failed, Player, settle
from bench.harness.work import step_work

ENGINE = ("written", "manual", "auto", "whole")
COLOURS = {"products": "own", "memory": "green"}  # of the drawing
KEYS = {
    "own": "bound by products",
    "green": "bound by memory",
    "peer": "above the bound: what a faster engine could win",
}


def main(argv):
    parser = program.parser(
        "bench.roofline",
        "Compare the training step with what this machine could do.",
        "threads of a step, e.g. 1,2",
    )
    program.names(parser, "--sizes", "124M-B4T64", f"of model and batch: {', '.join(sizes.SIZES)}, or all")
    program.names(parser, "--contenders", "manual", f"whose steps: of {', '.join(ENGINE)}")
    program.number(parser, "--steps", 5, "steps that are timed")
    parser.add_argument(
        "--lines",
        metavar="N",
        type=int,
        default=0,
        help="also sample for five seconds, and show the N lines that take longest",
    )
    parser.add_argument(
        "--svg", metavar="FILE", help="also draw the last table: each layer's time, and the bound in it"
    )
    program.nice_flag(parser)
    options = parser.parse_args(argv)
    chosen = [sizes.find(n) for n in (sizes.SIZES if options.sizes == "all" else options.sizes.split(","))]
    variants = contenders.find(options.contenders, ENGINE, among=ENGINE)
    if options.svg:
        drawing.look()  # fails before measuring if matplotlib is missing
    report = program.Report(options, "roofline")
    for which in itertools.product(chosen, variants, program.thread_counts(options.threads)):
        result = measure(*which, options)
        report.add(result, as_text(result))
    drawn = [result for result in report.write() if "rows" in result]
    if options.svg and drawn:
        Path(options.svg).write_text(picture(drawn[-1]), encoding="utf-8")
    return 0 if drawn else 1


# ---- Measuring ---------------------------------------------------------------------------------------------


def measure(size, variant, threads, options):
    """One table as a dict: the machine's rates, and for each layer and part its time and its bound."""
    result = {"size": size.name, "variant": variant, "threads": threads}
    player = Player(variant, threads, options.nice)
    try:
        load = machine.Load(player.pids)
        result["rates"] = player.ask(do="rates")
        steps = player.ask(do="profile", size=size.name, steps=options.steps)["steps"]
        rates = player.ask(do="rates")  # again, as the machine's speed varies
        result["rates"] = {name: max(rate, result["rates"][name]) for name, rate in rates.items()}
        if options.lines:
            result["lines"] = player.ask(do="lines", size=size.name, seconds=5.0)["lines"][: options.lines]
        result["load"] = load.report(player.pids)
        result |= compare(size, steps, result["rates"])
    except Failed as error:
        result["absent"] = error.facts
    finally:
        settle(*player.pids)
        player.close()
    return result


def compare(size, steps, rates):
    """Times and bounds in milliseconds, by "kind/part", from such a dict of seconds for each step."""
    work = step_work(size)
    median = {key: 1e3 * statistics.median(step[key] for step in steps) for key in steps[0]}
    rows = {}
    for (kind, part), w in work.items():
        bound = 1e3 * w.seconds(rates["sgemm"], rates["copy"])
        rows[f"{kind}/{part}"] = {
            "ms": median.get(f"{kind}/{part}"),
            "bound_ms": bound,
            "flops": w.flops,
            "bytes": w.bytes,
            "by": "products" if w.flops / rates["sgemm"] > w.bytes / rates["copy"] else "memory",
        }
    flops = sum(w.flops for w in work.values())
    total = median["step/"]
    accounted = sum(row["ms"] for row in rows.values() if row["ms"] is not None)
    return {
        "rows": rows,
        "step_ms": total,
        "between_ms": total - accounted if accounted else None,  # code outside the timed layers
        "products_ms": 1e3 * flops / rates["sgemm"],
        "bound_ms": sum(row["bound_ms"] for row in rows.values()),
        "gflops": flops / total / 1e6,
    }


# ---- Reports -----------------------------------------------------------------------------------------------


def heading(result):
    beside = ", measured beside other work" if disturbed(result) else ""
    return (
        f"{result['size']}, {contenders.CONTENDERS[result['variant']].title}, "
        f"{ratios.plural(result['threads'], 'thread')}{beside}"
    )


def disturbed(result):
    """Whether other programs ran: then the machine's measured rates are too low, and so are the bounds."""
    return (result.get("load", {}).get("others") or 0.0) > DISTURBED


def as_text(result):
    head = heading(result)
    if "absent" in result:
        return f"{head}: {contenders.absence(result['absent'])}"
    step, rates = result["step_ms"], result["rates"]
    products, bound = result["products_ms"], result["bound_ms"]
    text = [
        f"{head}: {step:.0f} ms a step, {result['gflops']:.0f} GFLOP/s",
        f"the machine: {rates['sgemm'] / 1e9:.0f} GFLOP/s in products, "
        f"{rates['copy'] / 1e9:.1f} GB/s in copies",
        *(
            ["other programs ran, so these rates are too low; measure again when they are done"]
            if disturbed(result)
            else [
                f"products alone at that rate: {products:.0f} ms, {products / step:.0%} of the step; "
                f"bounds of all layers: {bound:.0f} ms, {bound / step:.0%}"
            ]
        ),
    ]
    timed = {key: row for key, row in result["rows"].items() if row["ms"] is not None}
    if timed:
        lines = [line(key, row, step) for key, row in timed.items()]
        lines.sort(key=lambda cells: -float(cells[-1]))
        between = result["between_ms"]
        lines.append(["between the layers", f"{between:.1f}", f"{between / step:.1%}", *[""] * 5])
        header = ["layer", "ms", "of the step", "GFLOP/s", "GB/s", "bound ms", "by", "above it"]
        text += ["", ratios.table(header, lines)]
    text += [f"{share:6.1%}  {place}  {source[:80]}" for share, place, source in result.get("lines", ())]
    return "\n".join([*text, program.load_line(result["load"])])


def picture(result):
    """A bar for each layer, with its bound inside, slowest first."""
    rows = {key: row for key, row in result["rows"].items() if row["ms"] is not None}
    group = []
    for key, row in sorted(rows.items(), key=lambda item: -item[1]["ms"]):
        parts = ("peer", row["ms"]), (COLOURS[row["by"]], min(row["bound_ms"], row["ms"]))
        over = f", {row['ms'] / row['bound_ms']:.1f} x" if row["bound_ms"] else ""
        group.append(drawing.Bar(key.replace("/", " "), parts, f"{row['ms']:.1f} ms{over}"))
    return drawing.adaptive(drawing.svg(drawing.bars(heading(result), {"": group}, KEYS, 760, 190)))


def line(key, row, step_ms):
    kind, _, part = key.rpartition("/")
    rate = f"{row['flops'] / row['ms'] / 1e6:.0f}" if row["flops"] else ""
    return [
        f"{kind} {part}",
        f"{row['ms']:.1f}",
        f"{row['ms'] / step_ms:.1%}",
        rate,
        f"{row['bytes'] / row['ms'] / 1e6:.1f}",
        f"{row['bound_ms']:.1f}",
        row["by"],
        f"{row['ms'] - row['bound_ms']:.1f}",
    ]


if __name__ == "__main__":
    program.run(main)
