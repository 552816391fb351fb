"""Time each layer's forward and backward, by hand and derived, beside PyTorch, JAX and autograd.

    python -m bench.layers --sizes B4T64,B4T256 --threads 1,2 --layers gelu,attention

Shapes are those of GPT-2 124M (harness/sizes.py), inputs and output gradients random, in float32. Results
and gradients are compared with those of the layer as written first; a contender that differs is listed as
failed. A step of a turn is a forward and a backward. A derived backward chooses what its forward saves,
and may move work there: compare "both", the sum.
"""

from functools import partial
from statistics import geometric_mean

from bench.harness import contenders, program, ratios
from bench.harness.sizes import cases, find_batch
from bench.harness.turns import Contest
from bench.harness.worker import Work, seconds_of
from gpt2.errors import counted

TURN_S = 0.05  # short turns, as a layer takes between 0.1 ms and 0.5 s
PARTS = ("forward", "backward", "both")
PAIRS = (("auto", "manual"), ("auto", "written"), ("manual", "written"))
PEER = "PyTorch"  # in tables of ratios: the fastest of the layer's


def main(argv):
    parser = program.parser("bench.layers", "Time each layer's forward and backward, by hand and derived.")
    program.names(parser, "--sizes", "B4T64", "batches: B sequences of T tokens")
    program.names(parser, "--layers", "", f"of {', '.join(cases(1, 1))}")
    program.contest_flags(parser, 15, 20, contenders.LAYERS_SHOWN, contenders.LAYERS)
    options = parser.parse_args(argv)
    batches = options.sizes.split(",")
    for batch in batches:
        find_batch(batch)
    layers = contenders.find(options.layers, cases(1, 1), cases(1, 1), "--layers")
    active = contenders.find(options.contenders, contenders.LAYERS_SHOWN, contenders.LAYERS)
    threads = program.thread_counts(options.threads)
    report = program.Report(options, "layers", program.facts(options))
    for batch in batches:
        for n in threads:
            result = measure(batch, n, layers, active, options)
            report.add(result, as_text(result))
    return 0 if any(row["ms"] for result in report.write() for row in result["layers"].values()) else 1


# ---- Measuring ---------------------------------------------------------------------------------------------


def work(module, variant, threads, batch, case, **settings):
    """The Work of a contender's process. Its results are checked against the layer as written."""
    from bench.harness.engine import LayerRun, check_results
    from gpt2.layers import LAYERS

    case = cases(*find_batch(batch))[case]
    written = LayerRun(case, LAYERS[case.layer])
    written.backward()
    run = module.layer(case, variant, threads, **settings)
    run.backward()
    check_results(case.name, run.results(), written.results())
    del written

    def turn(steps):
        times = [(seconds_of(run.forward), seconds_of(run.backward)) for _ in range(steps)]
        forward, backward = map(list, zip(*times))
        return {"times": {"forward": forward, "backward": backward, "both": [*map(sum, times)]}}

    return Work(turn)


def set_up(player, batch, case, elementwise):
    settings = contenders.settings(player.name, elementwise)
    player.ask(do="work", make="bench.layers:work", batch=batch, case=case, **settings)
    player.ask(do="turn", steps=2)
    return {}


def measure(batch, threads, layers, names, options):
    """One table as a dict: layers by contenders."""
    result = {"batch": batch, "threads": threads, "elementwise": options.elementwise, "layers": {}}
    players = {name: contenders.CONTENDERS[name] for name in names}
    with Contest(players, threads, lambda player: {}) as contest:
        result["absent"] = dict(contest.absent)
        for layer in layers:
            program.note(f"{batch}, {counted(threads, 'thread')}: {layer}")
            contest.set_work(partial(set_up, batch=batch, case=layer, elementwise=options.elementwise))
            contest.play(options.rounds, options.seconds, TURN_S, block=1)
            result["layers"][layer] = {
                "ms": {
                    name: {part: ratios.times(parts[part]) for part in PARTS}
                    for name, parts in contest.samples.items()
                },
                "ratios": ratios_of(contest.samples),
                "absent": {name: why for name, why in contest.absent.items() if name not in result["absent"]},
                "load": contest.load,
            }
    return result


def ratios_of(samples):
    """ "auto / manual" -> part -> spread of the ratios, for the pairs among these contenders."""
    peer = contenders.fastest_peer(samples, "both")
    named = {**samples, **({PEER: samples[peer]} if peer else {})}
    pairs = [*PAIRS, ("manual", PEER), ("auto", PEER)]
    return {
        f"{a} / {b}": {part: ratios.ratio(named[a][part], named[b][part]) for part in PARTS}
        for a, b in pairs
        if a in named and b in named
    }


def as_text(result):
    layers = result["layers"]
    shown = [name for name in contenders.LAYERS if any(name in row["ms"] for row in layers.values())]
    titles = [contenders.CONTENDERS[name].title for name in shown]
    times = [[layer, *(milliseconds(row["ms"].get(name)) for name in shown)] for layer, row in layers.items()]
    pairs = list(dict.fromkeys(pair for row in layers.values() for pair in row["ratios"]))
    columns = [(pair, part) for pair in pairs for part in ("backward", "both")]
    compared = [
        [layer, *(ratios.shown(row["ratios"][p][part]) if p in row["ratios"] else "-" for p, part in columns)]
        for layer, row in layers.items()
    ]
    means = []
    for pair, part in columns:
        medians = [r["ratios"][pair][part]["median"] for r in layers.values() if pair in r["ratios"]]
        means.append(f"{geometric_mean(medians):.2f}")
    compared.append(["geometric mean", *means])
    text = [
        f"{result['batch']}, {counted(result['threads'], 'thread')}, "
        f"gpt2 with elementwise {result['elementwise']}: forward / backward, median milliseconds",
        ratios.table(["layer", *titles], times),
    ]
    if pairs:
        text += ["", f"ratios of times, median [quartiles] over rounds; {PEER}: the fastest of the layer's"]
        text.append(ratios.table(["layer", *(f"{pair}, {part}" for pair, part in columns)], compared))
    text += contenders.absences(result["absent"])
    for layer, row in layers.items():
        text += [f"{layer}: {line}" for line in contenders.absences(row["absent"])]
    busiest = max((row["load"] for row in layers.values()), key=lambda load: load["others"] or 0.0)
    return "\n".join([*text, f"at the busiest layer, {program.load_line(busiest)}"])


def milliseconds(parts):
    medians = [parts[part]["median"] for part in ("forward", "backward")] if parts else []
    return " / ".join(f"{ms:.{2 if ms < 10 else 0}f}" for ms in medians) or "-"


if __name__ == "__main__":
    program.run(main)
