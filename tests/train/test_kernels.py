"""OpenBLAS kernels as a setting of a run: which are chosen, when they are timed, that a run keeps them."""

import dataclasses
import math
import sys
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest

from gpt2 import machine
from gpt2.autodiff import blas_kernels
from gpt2.autodiff.run import remembered
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.train import Settings, kernels, products, program, resumed_settings, train
from gpt2.train.flags import read_toml
from gpt2.train.flops import training_flops
from gpt2.train.kernels import FASTEST, OWN, VARIABLE, Kernels, fastest, measured, timing
from gpt2.train.settings import Request
from tests.support import small_run

pytestmark = pytest.mark.usefixtures("quick_peak")
LONG = {"n_layer": 2, "n_embd": 64, "tokenizer": "byte", "steps": 1_000_000}
TINY = dict(preset="shakespeare", n_layer=1, n_embd=16, tokenizer="byte", batch_size=2, block_size=8)
openblas = pytest.mark.skipif(not blas_kernels(), reason="NumPy has another BLAS than OpenBLAS")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch, tmp_path):
    """No choice was made before, and no other program is at work."""
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)
    remembered.forget()
    yield
    remembered.forget()


@pytest.fixture
def timings(monkeypatch):
    """timings(ratios): makes measuring return these. Returns a list of its calls since: (model, budget)."""

    def set_timings(ratios):
        calls = []
        monkeypatch.setattr(kernels, "measured", lambda *args: calls.append(args) or ratios)
        return calls

    return set_timings


@pytest.fixture
def settings(prose, tmp_path):
    """Of a run of one step."""
    sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=8, steps=1, warmup=0, sample_tokens=0)
    return Settings(data=str(prose[0]), out=str(tmp_path / "run"), tokenizer="byte", **sizes)


# ---- The choice --------------------------------------------------------------------------------------------


def test_other_kernels_are_chosen_only_if_clearly_faster(timings, monkeypatch, tmp_path):
    timings({"Haswell": 0.93})
    choice = fastest(LONG)
    assert choice.name == "Haswell" and "0.93" in choice.note and choice.note.startswith("--kernels Haswell")
    for ratios in ({"Haswell": 0.98}, {"Haswell": 1.4}, {}):
        remembered.forget()
        monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / str(ratios)))
        timings(ratios)
        assert fastest(LONG).name == OWN and fastest(LONG).note == ""


def test_kernels_are_timed_once_for_a_model_and_a_machine(timings):
    calls = timings({"Haswell": 0.9})
    fastest(LONG)
    assert fastest(LONG).name == "Haswell" and "last timed" in fastest(LONG).note
    kernels.chosen.clear()  # as in another process
    assert fastest(LONG).name == "Haswell" and len(calls) == 1
    for other in ({"n_layer": 3}, {"n_embd": 32}, {"batch_size": 2}, {"tokenizer": "gpt2"}):
        fastest({**LONG, **other})
    assert len(calls) == 5


def test_no_choice_is_stored_if_timing_would_take_too_long(timings):
    calls = timings(None)
    assert fastest({**LONG, "steps": 10}).name == OWN and not calls
    assert fastest(LONG).name == OWN and len(calls) == 1
    timings({"Haswell": 0.9})
    assert fastest({**LONG, "dtype": "float64"}).name == OWN  # which one OpenBLAS gets wrong
    assert fastest(LONG).name == "Haswell"


def test_weights_of_unknown_or_enormous_sizes_get_openblas_s_choice(timings):
    """Enormous products would take more memory than there is, before the run says so."""
    calls = timings({"Haswell": 0.9})
    assert fastest({**LONG, "n_embd": 100_000}).name == OWN and not calls
    assert fastest({**LONG, "init": "runs/other"}).name == OWN and not calls
    assert fastest({**LONG, "init": "gpt2-medium", "preset": "finetune"}).name == "Haswell"
    assert calls[0][0]["preset"] == "gpt2-medium" and calls[0][0]["batch_size"] == 4


def test_named_kernels_win_over_measured_ones(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(kernels, "fastest", lambda given: Kernels("measured"))

    def of(resumed=None, dry_run=False, **given):
        return Kernels.of(Request(given, None, False, dry_run, resumed=resumed)).name

    assert of() == "measured" and of(kernels=OWN) == OWN and of(kernels="Zen") == "Zen"
    assert of(Settings(kernels="Zen")) == "Zen" and of(Settings(kernels=FASTEST)) == "measured"
    assert of(dry_run=True) == OWN
    assert of(parallel="mpi") == of(Settings(kernels=FASTEST, parallel="mpi")) == OWN
    monkeypatch.setenv("PMI_SIZE", "2")
    assert of() == OWN
    monkeypatch.setenv(VARIABLE, "Zen")
    assert of() == FASTEST and of(kernels="Haswell") == "Haswell"


# ---- Timing ------------------------------------------------------------------------------------------------


@pytest.fixture
def rounds(monkeypatch):
    """rounds(seconds): replaces the timing processes. Returns a list of the kernels timed since.

    seconds   a function of the kernels and the number of rounds so far: what a round takes, by a fake clock
    """

    def set_seconds(seconds):
        names, now = [], [0.0]

        def timing(name, model):
            def time_products(core):
                names.append(name)
                taken = seconds(name, len(names))
                now[0] += taken
                return taken

            return nullcontext(time_products)

        monkeypatch.setattr(kernels, "timing", timing)
        monkeypatch.setattr(kernels.time, "perf_counter", lambda: now[0])
        return names

    return set_seconds


@pytest.mark.parametrize(
    ("budget", "own", "haswell", "ratios", "count"),
    [
        (100, 1.0, 0.5, {"Haswell": 0.5}, 18),
        (7, 1.0, 1.0, {"Haswell": 1.0}, 6),
        (5, 1.0, 1.0, None, 2),
        (100, 1.0, 0.0, {}, 2),  # a process that has ended
        (100, 0.0, 1.0, None, 2),
    ],
)
def test_rounds_continue_within_the_budget(rounds, budget, own, haswell, ratios, count):
    names = rounds(lambda name, number: own if name == OWN else haswell)
    assert measured({}, budget) == ratios and len(names) == count


def test_failed_process_gives_no_timing(rounds, timings, monkeypatch):
    rounds(lambda name, number: 0.0 if name == OWN and number > 8 else 1.0)
    assert measured({}, 100) is None

    def no_processes(model, budget):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(kernels, "measured", no_processes)
    assert fastest(LONG) == Kernels(OWN)
    timings({"Haswell": 0.9})
    assert fastest(LONG).name == "Haswell"


def test_least_time_of_each_product_counts(monkeypatch):
    """In a process that answers with other times in each round, then ends."""
    answers = iter(["1.0 4.0", "2.0 3.0", ""])
    process = MagicMock()
    process.stdout.readline = lambda: next(answers)
    monkeypatch.setattr(kernels.subprocess, "Popen", lambda *args, **options: process)
    with timing(OWN, TINY) as time_products:
        assert [time_products(core) for core in (None, 0, 1)] == [5.0, 4.0, 0.0]
    assert process.kill.called


def test_process_times_products_until_it_is_ended():
    with timing(OWN, TINY) as time_products:
        assert time_products(None) >= time_products(None) > 0.0


def test_timed_products_have_the_flops_of_a_gradient(monkeypatch):
    """All but those of attention, however their sizes are limited."""
    s = Settings(n_layer=3, n_embd=32, tokenizer="bpe:500", batch_size=4, block_size=16)
    config = GPT2Config(500, 16, 3, 4, 32)
    expected = training_flops(config, 4, 16) - 3 * 4 * 3 * 32 * 16 * 4 * 16
    for rows, out in ((1024, 4096), (16, 128)):
        monkeypatch.setattr(products, "MOST_ROWS", rows)
        monkeypatch.setattr(products, "MOST_OUT", out)
        work = [6 * p.times * math.prod(p.dout.shape) * p.inp.shape[1] for p in products.products(s)]
        assert sum(work) == pytest.approx(expected, rel=1e-12)


# ---- Kernels of a run --------------------------------------------------------------------------------------


def test_program_loads_no_numpy_before_kernels_are_set():
    code = "import sys, gpt2.train.program; sys.exit('numpy' in sys.modules)"
    assert small_run.python(code).returncode == 0


@pytest.mark.slow
@openblas
def test_resumed_run_keeps_its_kernels_or_says_that_others_are_loaded(prose, tmp_path, refusal):
    other = "Haswell" if blas_kernels() != "Haswell" else "Nehalem"
    folder = tmp_path / "run"
    flags = small_run.flags(prose[0], folder, "--steps", 2, "--kernels", other)
    done = small_run.run(small_run.command(*flags))
    if done.returncode and "--kernels" in done.stderr:
        pytest.skip(f"this processor cannot run kernels for {other}: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert read_toml(folder / "settings.toml", Settings)["kernels"] == other
    done = small_run.run(small_run.command("--resume", folder, "--steps", 3))
    assert done.returncode == 0, done.stderr
    error = refusal(program.main, "--resume", folder, "--steps", 4)  # in this process NumPy is loaded
    assert f"--kernels {other}: OpenBLAS has loaded those for {blas_kernels()}" in error
    with pytest.raises(UserError, match="kernels own"):
        train(resumed_settings(folder, {"steps": 4}), resume=True)
    run = train(resumed_settings(folder, {"steps": 4, "kernels": OWN}), resume=True)
    assert run.step == 4 and run.settings.kernels == OWN


def test_run_stores_the_kernels_that_are_loaded(settings, monkeypatch):
    assert train(settings).settings.kernels == OWN
    if blas_kernels():
        monkeypatch.setenv(VARIABLE, blas_kernels().lower())
        assert train(settings, overwrite=True).settings.kernels == blas_kernels()
        assert train(dataclasses.replace(settings, kernels=blas_kernels()), overwrite=True).step == 1
        with pytest.raises(UserError, match="unset it before Python"):
            train(dataclasses.replace(settings, kernels=OWN), overwrite=True)
    monkeypatch.setenv(VARIABLE, "unknown")
    assert train(settings, overwrite=True).settings.kernels == OWN
