"""The benchmark harness: medians and ratios, which results count, and short end-to-end contests."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from bench import layers, step
from bench.harness import contenders, engine, machine, program, rates, ratios, sizes, turns
from bench.harness.sizes import cases, find_batch, step_flops
from bench.harness.worker import Worker
from bench.peers import llmc
from gpt2.autodiff.emit import numexpr
from gpt2.autodiff.run import blas, remembered
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.model import GPT2Config
from gpt2.train.flops import training_flops
from tests.support import small_run

SMALL = sizes.find("4x128-B12T64")
TINY = GPT2Config(n_layer=1, n_head=2, n_embd=8, block_size=64, vocab_size=11)


def test_ratio_divides_the_medians_of_each_round():
    # The machine is twice as slow in the second round, and one step of the third is interrupted.
    ours = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0, 9.0]]
    theirs = [[2.0], [4.0], [2.0]]
    assert ratios.ratio(ours, theirs) == {"median": 0.5, "q1": 0.5, "q3": 0.5}
    times = ratios.times(ours)
    assert (times["median"], times["min"], times["n"], times["rounds"]) == (1000.0, 1000.0, 9, 3)


@pytest.mark.parametrize("name", sizes.SIZES)
def test_step_flops_agree_with_training_flops(name):
    size = sizes.SIZES[name]
    counted = step_flops(size)
    # training_flops counts the whole square of attention scores, step_flops its lower triangle
    config, N, T = size.config, size.B * size.T, size.T
    above = 3 * 4 * config.n_layer * config.n_embd * N * (T - (T + 1) / 2)
    assert math.isclose(counted, training_flops(config, size.B, T) - above, rel_tol=1e-6)


# ---- The peak ----------------------------------------------------------------------------------------------


@pytest.fixture
def quick_rates(monkeypatch):
    """Small matrices and a fixed rate of 1 GFLOP/s."""
    monkeypatch.setattr(rates, "SIDES", (96, 50))
    monkeypatch.setattr(rates, "_fastest", lambda product, seconds: product.flops / 1e9)


@pytest.mark.parametrize("way", ["BLAS", "columns"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_square_product_is_complete(quick_rates, way, threads):
    a, b = np.random.default_rng(0).standard_normal((2, 50, 50), dtype=np.float32)
    product = rates.SquareProduct(a, b, np.full_like(a, np.nan), way, threads)
    product.prepare()
    np.testing.assert_allclose(product.out, a @ b, rtol=1e-5, atol=1e-4)  # float32 sums of 50 terms
    assert product.flops == 2 * 50**3


@pytest.mark.parametrize("name", sizes.SIZES)
def test_peak_share_of_a_step_is_exact(quick_rates, monkeypatch, name):
    """However many products it does, their operations divided by the share are those of a step."""
    size = sizes.SIZES[name]
    calls = []
    monkeypatch.setattr(rates.SquareProduct, "__call__", lambda product: calls.append(product.flops))
    products = rates.training(size, "", 1)
    calls.clear()
    assert products.step(None, None) is None
    assert math.isclose(sum(calls) / products.share, step_flops(size))
    assert sum(calls) <= 1.01 * rates.LONGEST_S * 1e9  # at 1 GFLOP/s


def test_time_of_a_partial_step_is_scaled_to_a_whole_one(monkeypatch):
    """The time of a contender that does a quarter of a step is multiplied by four."""
    worker = Worker("bench.harness.rates", "", 1)
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    for share, seconds in (({"share": 0.25}, 4.0), ({}, 1.0)):
        trainer = SimpleNamespace(step=lambda tokens, targets: 5.0, **share)
        module = SimpleNamespace(training=lambda *args, trainer=trainer: trainer)
        worker.contender = module, "", 1
        worker.answer({"do": "work", "make": "bench.step:work", "size": "4x128-B12T64"})
        answer = worker.answer({"do": "turn", "steps": 2})
        assert answer == {"times": {"step": [seconds] * 2}, "losses": [5.0, 5.0]}


def test_reference_is_the_fastest_pytorch_of_the_run():
    times = {"torch": 3.0, "torch-tuned": 2.0, "torch-compile-tuned": 1.0, "whole": 0.5, "jax": 0.4}
    samples = {name: {"step": [[t], [t]]} for name, t in times.items()}
    assert contenders.fastest_peer(samples) == "torch-compile-tuned"
    del samples["torch-compile-tuned"]
    assert contenders.fastest_peer(samples) == "torch-tuned"
    assert contenders.fastest_peer({"whole": samples["whole"]}) is None


def test_contenders_with_other_losses_are_not_the_reference(monkeypatch):
    """torch.compile limited to AVX2 gave nan losses: its time is no measure of a training step."""
    seconds = {"torch-tuned": 2.0, "torch-compile-tuned": 1.0, "whole": 1.5}

    losses = {name: [4.0, 3.0] for name in seconds} | {"torch-compile-tuned": [4.0, math.nan]}
    finished = SimpleNamespace(
        absent={},
        load={},
        facts={name: {"losses": values, "ready_s": 0.0, "about": ""} for name, values in losses.items()},
        samples={name: {"step": [[t], [t]]} for name, t in seconds.items()},
        play=lambda *args: None,
        peak=lambda name: 0,
    )
    monkeypatch.setattr(step, "Contest", lambda *args: nullcontext(finished))
    options = SimpleNamespace(elementwise="numpy", rounds=2, seconds=1, busy=0)
    result = step.measure(SMALL, 1, list(seconds), options)
    assert result["reference"] == "torch-tuned" and "disagrees" in result["rows"]["torch-compile-tuned"]
    assert result["rows"]["whole"]["to_torch-tuned"]["median"] == 0.75


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux's /proc")
def test_busy_programs_compute_until_the_end():
    with turns.busy(2, 1) as programs:
        waiting = {program.pid for program in programs}
        while waiting:
            waiting -= {pid for pid in waiting if machine.is_running(pid)}
            assert [program.poll() for program in programs] == [None, None]
    assert None not in [program.returncode for program in programs]


# ---- llm.c's own program -----------------------------------------------------------------------------------


def test_llmc_without_a_checkout_is_missing(monkeypatch):
    monkeypatch.delenv("LLMC_DIR", raising=False)
    with pytest.raises(contenders.Missing, match="LLMC_DIR names no checkout"):
        llmc.checkout()


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_llmc_is_built_for_other_batches(tmp_path):
    source, folder = tmp_path / "llm.c", tmp_path / "built"
    (source / "llmc").mkdir(parents=True)
    folder.mkdir()
    (source / "Makefile").write_text("train_gpt2: train_gpt2.c\n\tcp train_gpt2.c train_gpt2\n")
    (source / "train_gpt2.c").write_text("int B = 4; // batch\nint T = 64;\n")
    assert llmc.built(source, 4, 64, folder) == source / "train_gpt2"
    assert llmc.built(source, 12, 128, folder).read_text() == "int B = 12; // batch\nint T = 128;\n"
    with pytest.raises(contenders.Missing, match="sets T at 0 places"):
        llmc.with_batch("int B = 4;", 1, 2)


PRINTS_STEPS = """#!{python}
import time
for step in range(41):
    if step == 20:
        time.sleep(600)  # llm.c writes a sample here, which must not be waited for
    time.sleep(0.01)
    print(f"step {{step}}: train loss 4.0 (took {{10.0 + step}} ms)")
"""


@pytest.mark.skipif(not hasattr(os, "openpty") or not hasattr(os, "fork"), reason="llm.c is run on Unix")
def test_llmc_lines_are_read_as_they_are_written(monkeypatch, tmp_path):
    """Through a pseudo-terminal: into a pipe a C program's output would be buffered."""
    program = tmp_path / "train_gpt2"
    program.write_text(PRINTS_STEPS.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("LLMC_DIR", str(tmp_path))
    training = llmc.training(sizes.Size("tiny", TINY, 4, 64), "", 1)
    try:
        assert training.times == [0.010, 0.011]
        first, *rest = training.block(3)
        assert rest == [0.013, 0.014] and first < 5
        assert len(training.block(20)) == 20  # past the end of its run: it is started again
    finally:
        training.close()
    assert not training.folder.exists()


# ---- Elementwise backends ----------------------------------------------------------------------------------


@pytest.fixture
def backends(monkeypatch):
    """The set of backends other than NumPy that programs are compiled for; choices are forgotten."""
    used, fuse = set(), numexpr.fused_regions

    def record(graph, regions, pick=None):
        used.add("tuned" if pick else "numexpr")
        return fuse(graph, regions, pick)

    monkeypatch.setattr(numexpr, "fused_regions", record)
    yield used
    remembered.forget()


@pytest.mark.usefixtures("numexpr_package")
@pytest.mark.parametrize("variant", ["written", "manual", "auto", "whole"])
def test_engine_compiles_for_the_backend(backends, variant):
    size = sizes.Size("tiny", TINY, B=2, T=4)
    tokens = np.zeros((2, 4), np.int64)
    gelu = cases(1, 2, C=8, NH=2, V=11)["gelu"]
    for backend in ("numpy", "numexpr"):
        settings = contenders.settings(variant, backend)
        want = {backend} - {"numpy"} if variant != "written" else set()
        engine.training(size, variant, 1, **settings).step(tokens, tokens)
        assert backends == want
        if variant != "whole":
            backends.clear()
            engine.layer(gelu, variant, 1, **settings).backward()
            assert backends == want
        backends.clear()


# ---- Which results count -----------------------------------------------------------------------------------


def contest(**losses):
    return SimpleNamespace(facts={name: {"losses": values} for name, values in losses.items()})


def test_check_losses_names_those_that_differ():
    good, bad = [4.0, 3.9, 3.8], [4.0, 3.9, 3.8 * 1.001]
    assert set(step.check_losses(contest(torch=good, manual=good, auto=bad))) == {"auto"}
    for losses in ([math.nan] * 3, [4.0, 3.9, math.nan]):
        assert set(step.check_losses(contest(torch=good, auto=losses))) == {"auto"}


def test_results_that_differ_are_an_error():
    x = np.random.default_rng(0).standard_normal((70, 1000)).astype(np.float32)
    engine.check_results("same", [x * (1 + 1e-6)], [x])
    for wrong in ([x[::-1]], [x * 1.001], [x * np.float32(np.nan)], [x, x], [x[:, :7]]):
        with pytest.raises((AssertionError, ValueError)):
            engine.check_results("wrong", wrong, [x])


def test_missing_peer_is_reported(monkeypatch):
    ghost = contenders.Contender("Ghost", "bench.peers.pytorch", "", "no_such_package")
    with turns.Contest({"ghost": ghost}, 1, None) as contest:
        contest.play(rounds=3, seconds=1)
    assert not contest.samples
    (line,) = contenders.absences(contest.absent)
    assert line.startswith("Ghost: missing, no_such_package is not installed")


class Loads:
    """machine.Load where other programs use half of every second turn. The first one covers all turns."""

    turns = 0

    def __init__(self, pids):
        self.share = Loads.turns % 2 / 2
        Loads.turns += 1

    def report(self, pids):
        return {"others": self.share}


def test_disturbed_rounds_are_left_out(monkeypatch):
    monkeypatch.setattr(machine, "Load", Loads)
    contest = turns.Contest({}, 1, None)
    contest.players = {"a": SimpleNamespace(pids=[], fastest=1.0)}
    contest.facts = {"a": {}}
    done = []

    def turn(name, more):
        done.append(Loads.turns)
        contest.samples.setdefault(name, {}).setdefault("step", []).append([Loads.turns])

    monkeypatch.setattr(contest, "_turn", turn)
    monkeypatch.setattr(Loads, "turns", 0)
    contest.play(rounds=12, seconds=60)
    assert contest.samples["a"]["step"] == [[n] for n in done[1::2]]
    assert (contest.load["rounds"], contest.load["rounds_counted"]) == (12, 6)


def test_rounds_end_at_the_time_limit_but_are_at_least_three(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine, "Load", Loads)
    for seconds, wanted in ((1, 3), (7.5, 6)):  # the clock ticks once a round
        rests = []
        _, load = turns.play_rounds({"a": list}, rests.append, [], 20, seconds)
        assert rests == ["a"] * wanted and load["rounds"] == wanted


@pytest.mark.parametrize(
    ("call", "argument", "message"),
    [
        (find_batch, "B4", "B4T64"),
        (find_batch, "B0T4", "B4T64"),
        (program.thread_counts, "1,x", "1,2"),
        (program.thread_counts, "0", "1 to"),
        (program.thread_counts, "9999", "cores"),
    ],
)
def test_invalid_argument_is_named(call, argument, message):
    with pytest.raises(UserError, match=message):
        call(argument)


def result_of(module, flags):
    """The only result that a benchmark prints as JSON."""
    done = small_run.module(module, *flags.split(), "--threads", 1, "--rounds", 3, "--json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return result


@pytest.mark.slow
def test_contest_from_end_to_end():
    """Two of this engine's variants and the peak, three rounds."""
    flags = f"--sizes {SMALL.name} --contenders peak,written,manual --elementwise numexpr"
    result = result_of("bench.step", flags)
    assert set(result["rows"]) == {"written", "manual", "peak"} and not result["absent"]
    assert (result["reference"], result["elementwise"]) == ("written", "numexpr")
    assert result["flops"] == step_flops(SMALL)
    for row in result["rows"].values():
        assert "disagrees" not in row
        assert row["ms"]["rounds"] == 3 and row["ms"]["min"] > 0 and row["peak_bytes"] > 2**20
        assert row["of_peak"]["q1"] > 0 and row["gflops"] > 0
    assert result["rows"]["written"]["to_written"]["median"] == 1.0


@pytest.mark.slow
def test_layers_from_end_to_end():
    """Two of this engine's variants and tuned PyTorch."""
    pytest.importorskip("torch")
    flags = "--sizes B1T8 --layers gelu --contenders torch-tuned,manual,auto"
    result = result_of("bench.layers", flags)
    row = result["layers"]["gelu"]
    assert set(row["ms"]) == {"torch-tuned", "manual", "auto"} and not row["absent"]
    assert set(row["ratios"]) == {"auto / manual", "manual / PyTorch", "auto / PyTorch"}
    for parts in row["ms"].values():
        assert parts["both"]["rounds"] == 3 and parts["both"]["median"] > parts["forward"]["min"] > 0


def test_layer_that_differs_is_an_error():
    class Wrong(engine.LayerRun):
        def results(self):
            return [x * 1.001 for x in super().results()]

    def module(make):
        return SimpleNamespace(layer=lambda case, *args: make(case, LAYERS[case.layer]))

    assert set(layers.work(module(engine.LayerRun), "", 1, "B1T4", "gelu").turn(2)["times"]) == {
        *layers.PARTS
    }
    with pytest.raises(AssertionError, match="gelu: a result differs"):
        layers.work(module(Wrong), "", 1, "B1T4", "gelu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "flag", "value", "message"),
    [
        ("bench.step", "--sizes", "huge", "124M-B4T64"),
        ("bench.roofline", "--sizes", "huge", "124M-B4T64"),
        ("bench.step", "--elementwise", "fast", "expected one of numpy, numexpr, tuned; got 'fast'"),
        ("bench.step", "--contenders", "peek", "peak"),
        ("bench.layers", "--layers", "gulu", "gelu"),
        ("bench.step", "--processor", "sse", "own, avx2"),
    ],
)
def test_invalid_flag_is_one_error_line(module, flag, value, message):
    small_run.assert_one_error_line(small_run.module(module, flag, value), flag, message)


# ---- Processors and processes ------------------------------------------------------------------------------


@pytest.mark.skipif(not machine.FEATURES.get("AVX2"), reason="this processor has no AVX2")
def test_process_limited_to_avx2_uses_no_avx512(monkeypatch):
    for name, value in machine.instructions("avx2").items():
        monkeypatch.setenv(name, value)
    script = (
        "from numpy._core._multiarray_umath import __cpu_dispatch__ as d, __cpu_features__ as f;"
        "from gpt2.autodiff import blas_kernels;"
        "print([n for n in d if f[n] and n.startswith(('X86_V4', 'AVX512'))], blas_kernels())"
    )
    done = small_run.python(script, env=None, check=True)
    assert done.stdout.split() == ["[]", *(["Haswell"] if blas.blas_kernels() else [])]


def test_worker_ends_when_its_coordinator_is_killed():
    """Otherwise it would compete with the next measurement."""
    program = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", '''
import time
from bench.harness.worker import watch_coordinator
watch_coordinator()
print("ready", flush=True)
time.sleep(60)'''], stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)"""
    coordinator = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(coordinator.stdout.readline())
    coordinator.kill()
    coordinator.wait()
    coordinator.stdout.close()
    until = time.monotonic() + 20
    while time.monotonic() < until and small_run.alive(pid):
        time.sleep(0.05)
    assert not small_run.alive(pid)


@pytest.mark.slow
def test_generation_from_end_to_end():
    pytest.importorskip("transformers")
    result = result_of("bench.generate", "--model tiny --tokens 4")
    assert set(result["contenders"]) == {"gpt2", "transformers", "copy"} and not result["absent"]
    assert all(len(facts["rounds"]) == 3 for facts in result["contenders"].values())
    assert not result["differing"] and len(result["contenders"]["gpt2"]["first"]) == 5


@pytest.mark.parametrize(
    "vendor, family, flags, title",
    [
        ("AuthenticAMD", 26, "avx2 avx512f", ", Zen 5"),
        ("AuthenticAMD", 25, "avx2 avx512f", ", Zen 4"),
        ("AuthenticAMD", 25, "avx2", ", Zen 3"),
        ("AuthenticAMD", 99, "avx2", ""),
        ("GenuineIntel", 26, "avx2 avx512f", ""),
    ],
)
def test_generation_of_a_processor(tmp_path, vendor, family, flags, title):
    facts = {"vendor_id": vendor, "cpu family": family, "model name": "AMD EPYC", "flags": flags}
    lines = "".join(f"{name}\t: {value}\n" for name, value in facts.items())
    (tmp_path / "cpuinfo").write_text(lines + "\nvendor_id\t: another core\n")
    assert machine.generation(tmp_path / "cpuinfo") == title
    assert machine.generation(tmp_path / "none") == ""
