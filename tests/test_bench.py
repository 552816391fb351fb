"""The benchmarks' arithmetic, their judgement of who counts, and one short contest from end to end."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import contenders, layers, machine, program, ratios, roofline, sizes, step, turns
from bench.cases import cases, find_batch, find_layers
from bench.work import step_work
from bench.worker import digest
from gpt2.errors import UserError
from gpt2.flops import training_flops

ROOT = Path(__file__).parents[1]


def test_a_round_counts_by_its_median_and_a_ratio_by_its_round():
    # The machine is twice as slow in the second round, and one step of the third is interrupted.
    ours = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0, 9.0]]
    theirs = [[2.0], [4.0], [2.0]]
    assert ratios.ratio(ours, theirs) == {"median": 0.5, "q1": 0.5, "q3": 0.5}
    times = ratios.times(ours)
    assert (times["median"], times["min"], times["n"], times["rounds"]) == (1000.0, 1000.0, 9, 3)


def test_geometric_mean():
    assert math.isclose(ratios.geometric_mean([0.5, 2.0, 1.0, 8.0]), 8.0**0.25)


@pytest.mark.parametrize("name", sizes.SIZES)
def test_operations_agree_with_the_engines_own_count(name):
    size = sizes.SIZES[name]
    counted = sum(work.flops for work in step_work(size).values())
    # gpt2.flops counts all of attention's square, the bound below it the lower triangle alone
    config, N, T = size.config, size.B * size.T, size.T
    above = 3 * 4 * config.n_layer * config.n_embd * N * (T - (T + 1) / 2)
    assert math.isclose(counted, training_flops(config, size.B, T) - above, rel_tol=1e-6)


def test_bound_is_the_slower_of_products_and_memory():
    size = sizes.SIZES["4x128-B12T64"]
    seconds = {f"{kind}/{part}": 1.0 for kind, part in step_work(size)} | {"step/": 30.0}
    compared = roofline.compare(size, [seconds], {"sgemm": 1e9, "copy": 1e9})
    fc, gelu = compared["rows"]["fc/forward"], compared["rows"]["gelu/forward"]
    assert fc["by"] == "products" and math.isclose(fc["bound_ms"], 1e3 * 4 * 2 * 768 * 128 * 512 / 1e9)
    assert gelu["by"] == "memory" and math.isclose(gelu["bound_ms"], 1e3 * 4 * 4 * 2 * 768 * 512 / 1e9)
    assert math.isclose(compared["between_ms"], 1e3 * (30 - len(compared["rows"])))


def contest(**losses):
    return SimpleNamespace(facts={name: {"losses": values} for name, values in losses.items()})


def test_losses_that_differ_do_not_count():
    good, bad = [4.0, 3.9, 3.8], [4.0, 3.9, 3.8 * 1.001]
    assert set(step.check_losses(contest(torch=good, manual=good, auto=bad))) == {"auto"}
    assert set(step.check_losses(contest(torch=good, auto=[math.nan] * 3))) == {"auto"}


def test_gradients_that_differ_do_not_count():
    x = np.random.default_rng(0).standard_normal((70, 1000)).astype(np.float32)
    swapped = x.copy()
    swapped[0], swapped[1] = x[1], x[0]  # the same length, another direction
    facts = {"written": [x], "same": [x * (1 + 1e-6)], "swapped": [swapped], "longer": [x * 1.001],
             "nan": [x * np.float32(np.nan)], "shape": [x.T], "fewer": []}
    facts = {name: {"digest": [digest(a) for a in arrays]} for name, arrays in facts.items()}
    assert set(layers.disagreeing(facts)) == {"swapped", "longer", "nan", "shape", "fewer"}


def test_a_peer_that_is_not_installed_is_said_to_be_missing(monkeypatch):
    ghost = contenders.Contender("Ghost", "bench.peers.pytorch", "", "no_such_package")
    monkeypatch.setitem(contenders.CONTENDERS, "ghost", ghost)
    with turns.Contest(["ghost"], 1, None) as contest:
        contest.play(rounds=3, seconds=1)
    assert not contest.samples
    assert contenders.absence(contest.absent["ghost"]).startswith("missing, no_such_package is not installed")


def test_disturbed_rounds_are_left_out(monkeypatch):
    contest = turns.Contest([], 1, None)
    contest.players = {"a": SimpleNamespace(pids=[], fastest=1.0)}
    contest.facts = {"a": {}}
    shares = iter([0.0, 0.5] * 6)

    def turn(name, more, pids):
        share = next(shares)
        contest.samples.setdefault(name, {}).setdefault("step", []).append([share])
        return share

    monkeypatch.setattr(contest, "_turn", turn)
    contest.play(rounds=12, seconds=60)
    assert contest.samples["a"]["step"] == [[0.0]] * 6
    assert (contest.load["rounds"], contest.load["rounds_counted"]) == (12, 6)


@pytest.mark.parametrize(("call", "argument", "said"), [
    (sizes.find, "124M", "124M-B4T64"),
    (find_batch, "B4", "B4T64"),
    (find_batch, "B0T4", "B4T64"),
    (find_layers, "mathmul", "matmul-qkv"),
    (program.thread_counts, "1,x", "1,2"),
    (program.thread_counts, "0", "1 to"),
    (program.thread_counts, "9999", "cores"),
    (lambda names: contenders.find(names, ()), "tensorflow", "torch"),
])
def test_mistakes_are_named(call, argument, said):
    with pytest.raises(UserError, match=said):
        call(argument)


def test_names_are_found():
    assert find_batch("B4T256") == (4, 256)
    assert find_layers("matmul") == [name for name in cases(1, 1) if name.startswith("matmul-")]
    assert find_layers("") == list(cases(1, 1))


def test_load_of_others_leaves_out_our_own():
    """Ticks that this process used are neither idle nor others', however busy the machine is."""
    load, begin = machine.Load(), time.process_time()
    while time.process_time() - begin < 0.4:
        sum(range(1000))
    report = load.report()
    if report["others"] is None:  # a system without /proc
        return
    ours = (1.0 - report["others"] - report["idle"]) * report["seconds"] * os.cpu_count()
    assert 0.2 < ours < 0.8


def run(module, *flags):
    return subprocess.run([sys.executable, "-m", module, *flags], cwd=ROOT, capture_output=True, text=True)


def test_a_contest_from_end_to_end():
    """Two of this engine's variants, three rounds, as JSON."""
    done = run("bench.step", "--sizes", "4x128-B12T64", "--threads", "1", "--contenders", "written,manual",
               "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert set(result["rows"]) == {"written", "manual"} and not result["absent"]
    for row in result["rows"].values():
        assert "disagrees" not in row
        assert row["ms"]["rounds"] == 3 and row["ms"]["min"] > 0 and row["peak_bytes"] > 2**20
    assert result["rows"]["written"]["to_written"]["median"] == 1.0


@pytest.mark.parametrize("module", ["bench.step", "bench.layers", "bench.roofline"])
def test_a_users_mistake_is_one_line(module):
    done = run(module, "--sizes", "huge")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
