"""Contenders of one benchmark that do the same work in turns: measured, and told as a table.

The benchmark's module has work(module, variant, threads, **settings), which makes the Work of a contender's
process. Its turns time one part, "step".
"""

import math

import numpy as np

from bench.harness import contenders, program, ratios
from bench.harness.turns import Contest


def measured(module, players, threads, rounds, agree=lambda first: None, tolerance=0.0, warm=1, **settings):
    """One table as a dict: each contender's seconds by round and peak bytes, and whose first results differ.

    players            name -> Contender
    warm               steps of a first turn, which is not counted
    agree, tolerance   what must be the same in the first turn's answers, and within which relative error
    settings           of Contest.play where they are named "turn_s", "block", "long_s"; else of the work
    """
    turns = {name: settings.pop(name) for name in ("turn_s", "block", "long_s") if name in settings}

    def set_up(player):
        player.ask(do="work", make=f"{module}:work", **settings)
        first = player.ask(do="turn", steps=warm)
        program.note(f"{player.name}: ready")
        return {"first": agree(first), "peak": player.ask(do="peak")["bytes"]}

    with Contest(players, threads, set_up) as contest:
        contest.play(rounds, math.inf, **turns)
        timed = {}
        for name, parts in contest.samples.items():
            first = contest.facts[name]["first"]
            timed[name] = {"rounds": parts["step"], "first": first, "bytes": contest.peak(name)}
    return {
        "threads": threads,
        "contenders": timed,
        "differing": differing(timed, tolerance),
        "absent": contest.absent,
        "load": contest.load,
    }


def differing(timed, tolerance):
    """Name -> its first result, of those that have another one than the first contender."""
    found = {name: facts["first"] for name, facts in timed.items() if facts["first"] is not None}
    expected = next(iter(found.values()), None)
    return {
        name: value for name, value in found.items() if not np.allclose(value, expected, tolerance, atol=0.0)
    }


def as_text(title, result, players, compared):
    """A row a contender: median time, ratios to others with their quartiles, peak memory of its process.

    compared   name -> names of those that its time is divided by
    """
    timed = result["contenders"]
    rows = []
    for name, facts in timed.items():
        spreads = {
            other: ratios.ratio(facts["rounds"], timed[other]["rounds"])
            for other in compared.get(name, ())
            if other in timed
        }
        by = [f"{ratios.shown(spread)} of {players[other].title}" for other, spread in spreads.items()]
        ms = f"{ratios.times(facts['rounds'])['median']:.1f} ms"
        rows.append([players[name].title, ms, f"{facts['bytes'] / 2**20:.0f} MiB", ", ".join(by)])
    lines = [f"{title}, threads: {result['threads']}", ratios.table(["", "median", "peak", "ratio"], rows)]
    lines += [f"{name}: NOT THE SAME, begins with {first}" for name, first in result["differing"].items()]
    return "\n".join([*lines, *contenders.absences(result["absent"]), program.load_line(result["load"])])
