"""Time each layer's forward and backward, manual and derived, in this engine, PyTorch and others.

    python -m bench.layers
    python -m bench.layers --sizes B4T64,B4T256 --threads 1,2 --layers gelu,attention

Shapes are those of GPT-2 124M (cases.py); inputs and output gradients are random, float32. A derived backward
chooses what its forward saves, and may move work into the forward, so tables have the sum of both as well.
Contenders take turns as in bench.step. Those whose result or gradients differ are listed without times.
"""

import functools

from bench.harness import cases, contenders, program, ratios
from bench.harness.turns import Contest

TURN_S = 0.05  # short turns, as a layer takes between 0.1 ms and 0.5 s
PARTS = ("forward", "backward")
DERIVED = (("auto", "manual"), ("auto", "written"), ("manual", "written"))


def main(argv):
    parser = program.parser("bench.layers", "Time each layer's forward and backward, manual and derived.")
    parser.add_argument(
        "--sizes",
        metavar="BxTy,...",
        default="B4T64",
        help="batches, B sequences of T tokens (default B4T64)",
    )
    program.names(parser, "--layers", "", f"of {', '.join(cases.cases(1, 1))}")
    program.contest_flags(parser, rounds=15, seconds=20, default=contenders.LAYER, among=contenders.LAYERS)
    options = parser.parse_args(argv)
    batches = options.sizes.split(",")
    names = cases.find_layers(options.layers)
    for batch in batches:
        cases.find_batch(batch)
    active = contenders.find(options.contenders, contenders.LAYER, contenders.LAYERS)
    threads = program.thread_counts(options.threads)
    report = program.Report(options, "layers", program.facts(options))
    for batch in batches:
        for n in threads:
            result = measure(batch, n, names, active, options)
            report.add(result, as_text(result))
    return 0 if any(row["rows"] for result in report.write() for row in result["layers"].values()) else 1


# ---- Measuring ---------------------------------------------------------------------------------------------


def measure(batch, threads, layers, names, options):
    """One table as a dict: layers by contenders."""
    result = {"batch": batch, "threads": threads, "elementwise": options.elementwise, "layers": {}}
    with Contest(names, threads, lambda player: {}, options.nice) as contest:
        result["absent"] = dict(contest.absent)
        for layer in layers:
            program.note(f"{batch}, {ratios.plural(threads, 'thread')}: {layer}")
            contest.set_work(
                functools.partial(set_up, batch=batch, case=layer, elementwise=options.elementwise)
            )
            absent = {name: why for name, why in contest.absent.items() if name not in result["absent"]}
            wrong = disagreeing(contest.facts)
            contest.play(options.rounds, options.seconds, TURN_S, block=1)
            result["layers"][layer] = {
                "rows": rows_of(contest, wrong),
                "wrong": wrong,
                "absent": absent,
                "load": contest.load,
            }
    result["geometric_mean"] = geometric_means(result["layers"])
    return result


def set_up(player, batch, case, elementwise):
    answer = player.ask(do="layer", batch=batch, case=case, **contenders.settings(player.name, elementwise))
    player.ask(do="turn", steps=2)
    return answer


def disagreeing(facts):
    """Name -> reason, for contenders whose result or gradients differ from those of the layer as written."""
    if not facts:
        return {}
    base = "written" if "written" in facts else next(iter(facts))
    wrong = {}
    for name, fact in facts.items():
        ours, theirs = fact["digest"], facts[base]["digest"]
        if [shape for shape, *_ in ours] != [shape for shape, *_ in theirs]:
            wrong[name] = f"shapes of its results differ from those of {base}"
            continue
        errors = [abs(a - b) / y[1] for x, y in zip(ours, theirs) if y[1] for a, b in zip(x[1:], y[1:])]
        if not (error := ratios.worst(errors)) <= cases.TOLERANCE:
            wrong[name] = f"differs from {base} by {error:.1e} (relative)"
    return wrong


def rows_of(contest, wrong):
    """Name -> times of forward, backward and both, and ratios to the other contenders."""
    rows = {}
    samples = {name: with_sum(parts) for name, parts in contest.samples.items() if name not in wrong}
    for name in contest.facts:
        if name in samples:
            parts = samples[name]
            rows[name] = {part: ratios.times(rounds) for part, rounds in parts.items()}
            rows[name]["ratios"] = {
                other: {part: ratios.ratio(parts[part], samples[other][part]) for part in parts}
                for other in samples
                if other != name
            }
    return rows


def with_sum(parts):
    """The parts, and as "both" the sum of forward and backward, step by step."""
    pairs = zip(parts["forward"], parts["backward"])
    return {**parts, "both": [[a + b for a, b in zip(f, g)] for f, g in pairs]}


def geometric_means(layers):
    """ "auto/manual" -> part -> geometric mean over the layers of the median ratios."""
    means = {}
    for name, other in DERIVED:
        for part in (*PARTS, "both"):
            medians = [
                row["rows"][name]["ratios"][other][part]["median"]
                for row in layers.values()
                if name in row["rows"] and other in row["rows"]
            ]
            if medians:
                means.setdefault(f"{name}/{other}", {})[part] = ratios.geometric_mean(medians)
    return means


# ---- Reports -----------------------------------------------------------------------------------------------


def as_text(result):
    present = [n for n in contenders.CONTENDERS if any(n in row["rows"] for row in result["layers"].values())]
    text = [
        f"{result['batch']}, {ratios.plural(result['threads'], 'thread')}, "
        f"gpt2 with elementwise {result['elementwise']}: forward / backward, median milliseconds"
    ]
    lines = []
    for layer, row in result["layers"].items():
        cells = [milliseconds(row["rows"].get(name)) for name in present]
        lines.append([layer, *cells])
    text.append(ratios.table(["layer", *map(title, present)], lines))
    text += ratio_table(result, present)
    text += contenders.absences(result["absent"])
    for layer, row in result["layers"].items():
        text += [f"{layer}, {title(name)}: not counted, {why}" for name, why in row["wrong"].items()]
    text += [f"{', '.join(layers)}: {why}" for why, layers in absences(result["layers"]).items()]
    return "\n".join([*text, load_text(result)])


def title(name):
    return contenders.CONTENDERS[name].title


def absences(layers):
    """Contender and reason why it is absent -> the layers concerned."""
    layers_of = {}
    for layer, row in layers.items():
        for name, why in row["absent"].items():
            layers_of.setdefault(f"{title(name)}: {contenders.absence(why)}", []).append(layer)
    return layers_of


def milliseconds(row):
    if row is None:
        return "-"
    return " / ".join(f"{row[part]['median']:.{2 if row[part]['median'] < 10 else 0}f}" for part in PARTS)


def ratio_table(result, present):
    """Lines of a table: ratios between this engine's variants, and to PyTorch, with geometric means."""
    pairs = [(a, b) for a, b in DERIVED if a in present and b in present]
    peer = contenders.REFERENCE
    pairs += [(name, peer) for name in ("manual", "auto") if {name, peer} <= set(present)]
    if not pairs:
        return []
    columns = [(a, b, part) for a, b in pairs for part in ("backward", "both")]
    lines = []
    for layer, row in result["layers"].items():
        cells = [row["rows"].get(a, {}).get("ratios", {}).get(b, {}).get(part) for a, b, part in columns]
        lines.append([layer, *(ratios.shown(cell) if cell else "-" for cell in cells)])
    means = [result["geometric_mean"].get(f"{a}/{b}", {}).get(part) for a, b, part in columns]
    lines.append(["geometric mean", *(f"{mean:.2f}" if mean else "-" for mean in means)])
    return [
        "",
        "ratios of times, median [quartiles] over rounds",
        ratios.table(["layer", *(f"{a}/{b} {part}" for a, b, part in columns)], lines),
    ]


def load_text(result):
    loads = [row["load"] for row in result["layers"].values() if row["load"]["others"] is not None]
    if not loads:
        return "load of others: not known on this system"
    counted, played = (sum(load[key] for load in loads) for key in ("rounds_counted", "rounds"))
    return (
        f"others used {max(load['others'] for load in loads):.1%} of the machine at most, "
        f"load average {loads[-1]['load_average'][0]}; {counted} of {played} rounds counted"
    )


if __name__ == "__main__":
    program.run(main)
