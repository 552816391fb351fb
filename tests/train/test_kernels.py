"""Kernels of OpenBLAS as a setting of a run: which are taken, when they are measured, that they are kept."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2 import machine
from gpt2.autodiff import blas_kernels
from gpt2.autodiff.run import remembered
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.train import Settings, kernels, products, program, resumed_settings, train
from gpt2.train.flags import read_toml
from gpt2.train.flops import training_flops
from gpt2.train.kernels import FASTEST, OWN, VARIABLE, Kernels, Timing, fastest, measured
from gpt2.train.settings import Request

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("quick_peak")
LONG = {"n_layer": 2, "n_embd": 64, "tokenizer": "byte", "steps": 1_000_000}
TINY = {
    "preset": "shakespeare",
    "n_layer": 1,
    "n_embd": 16,
    "tokenizer": "byte",
    "batch_size": 2,
    "block_size": 8,
}
openblas = pytest.mark.skipif(not blas_kernels(), reason="NumPy has another BLAS than OpenBLAS")


@pytest.fixture(autouse=True)
def afresh(monkeypatch, tmp_path):
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)  # nothing else runs
    remembered.forget()
    yield
    remembered.forget()


@pytest.fixture
def found(monkeypatch):
    """found(parts): measuring comes to these. Returns the models that were measured, and the prices."""

    def set_parts(parts):
        asked = []
        monkeypatch.setattr(kernels, "measured", lambda *given: asked.append(given) or parts)
        return asked

    return set_parts


# ---- Which are taken ---------------------------------------------------------------------------------------


def test_others_are_taken_only_where_they_win_clearly(found, monkeypatch, tmp_path):
    found({"Haswell": 0.93})
    taken = fastest(LONG)
    assert taken.name == "Haswell" and "0.93" in taken.note and taken.note.startswith("--kernels Haswell")
    for parts in ({"Haswell": 0.98}, {"Haswell": 1.4}, {}):
        remembered.forget()
        monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / str(parts)))
        found(parts)
        assert fastest(LONG).name == OWN and fastest(LONG).note == ""


def test_they_are_measured_once_for_a_model_and_a_machine(found):
    asked = found({"Haswell": 0.9})
    fastest(LONG)
    assert fastest(LONG).name == "Haswell" and "last timed" in fastest(LONG).note
    kernels.chosen.clear()  # as in another process
    assert fastest(LONG).name == "Haswell" and len(asked) == 1
    for other in (
        {"n_layer": 3},
        {"n_embd": 32},
        {"batch_size": 2},
        {"tokenizer": "gpt2"},
    ):
        fastest({**LONG, **other})
    assert len(asked) == 5


def test_what_is_too_dear_is_not_measured_and_not_kept(found):
    asked = found(None)
    assert fastest({**LONG, "steps": 10}).name == OWN and not asked
    assert fastest(LONG).name == OWN and len(asked) == 1
    found({"Haswell": 0.9})
    assert fastest({**LONG, "dtype": "float64"}).name == OWN  # at fault there in one OpenBLAS
    assert fastest(LONG).name == "Haswell"


def test_weights_of_unknown_sizes_are_left_to_openblas(found):
    asked = found({"Haswell": 0.9})
    assert fastest({**LONG, "init": "runs/other"}).name == OWN and not asked
    assert fastest({**LONG, "init": "gpt2-medium", "preset": "finetune"}).name == "Haswell"
    assert asked[0][0]["preset"] == "gpt2-medium" and asked[0][0]["batch_size"] == 4


def test_a_name_is_obeyed(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(kernels, "fastest", lambda given: Kernels("measured"))

    def of(resumed=None, dry_run=False, **given):
        return Kernels.of(Request(given, None, False, dry_run), resumed).name

    assert of() == "measured" and of(kernels=OWN) == OWN and of(kernels="Zen") == "Zen"
    assert of(Settings(kernels="Zen")) == "Zen" and of(Settings(kernels=FASTEST)) == "measured"
    assert of(dry_run=True) == OWN
    assert of(parallel="mpi") == of(Settings(kernels=FASTEST, parallel="mpi")) == OWN
    monkeypatch.setenv("PMI_SIZE", "2")
    assert of() == OWN
    monkeypatch.setenv(VARIABLE, "Zen")
    assert of() == FASTEST and of(kernels="Haswell") == "Haswell"


# ---- How they are measured ---------------------------------------------------------------------------------


class Pretended:
    """Instead of processes: kernels whose products take so many seconds, by a clock that only they move."""

    now = 0.0
    rounds = 0

    def __init__(self, name, model):
        self.name, self.seconds = name, 0.0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def round(self, core):
        Pretended.rounds += 1
        self.seconds = self.takes[self.name]
        Pretended.now += self.seconds


@pytest.mark.parametrize(
    ("price", "takes", "parts", "rounds"),
    [
        (100, {OWN: 1.0, "Haswell": 0.5}, {"Haswell": 0.5}, 18),
        (7, {OWN: 1.0, "Haswell": 1.0}, {"Haswell": 1.0}, 6),
        (5, {OWN: 1.0, "Haswell": 1.0}, None, 2),
        (100, {OWN: 1.0, "Haswell": 0.0}, {}, 2),  # a process that has ended
        (100, {OWN: 0.0, "Haswell": 1.0}, None, 2),
    ],
)
def test_rounds_go_as_far_as_the_price(monkeypatch, price, takes, parts, rounds):
    Pretended.now, Pretended.rounds, Pretended.takes = 0.0, 0, takes
    monkeypatch.setattr(kernels, "Timing", Pretended)
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: Pretended.now)
    assert measured({}, price) == parts and Pretended.rounds == rounds


def test_a_process_that_ends_while_it_measures_is_no_measurement(monkeypatch, found):
    class Ending(Pretended):
        def round(self, core):
            super().round(core)
            self.seconds = 0.0 if self.name == OWN and Pretended.rounds > 8 else 1.0

    Pretended.now, Pretended.rounds, Pretended.takes = 0.0, 0, {OWN: 1.0, "Haswell": 1.0}
    monkeypatch.setattr(kernels, "Timing", Ending)
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: Pretended.now)
    assert measured({}, 100) is None

    def unexpected(model, price):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(kernels, "measured", unexpected)
    assert fastest(LONG) == Kernels(OWN)
    found({"Haswell": 0.9})
    assert fastest(LONG).name == "Haswell"


def test_each_product_counts_at_its_best(monkeypatch):
    with Timing(OWN, TINY) as timing:
        timing.round(None)
        first = timing.least
        assert len(first) == 5 and all(seconds > 0 for seconds in first)
        timing.least = [0.0, *first[1:]]
        timing.round(None)
        assert timing.least[0] == 0.0 and all(now <= then for now, then in zip(timing.least[1:], first[1:]))
    assert timing.process.returncode is not None


def test_kernels_that_are_not_installed_take_no_time():
    with Timing("Nobody's", TINY) as timing:
        timing.round(None)
        assert timing.seconds == 0.0


def test_the_products_are_those_of_a_gradient(monkeypatch):
    """All but attention's own, however they were cut short."""
    s = Settings(n_layer=3, n_embd=32, tokenizer="bpe:500", batch_size=4, block_size=16)
    config = GPT2Config(500, 16, 3, 4, 32)
    expected = training_flops(config, 4, 16) - 3 * 4 * 3 * 32 * 16 * 4 * 16
    for rows, out in ((1024, 4096), (16, 128)):
        monkeypatch.setattr(products, "MOST_ROWS", rows)
        monkeypatch.setattr(products, "MOST_OUT", out)
        work = [6 * p.times * math.prod(p.dout.shape) * p.inp.shape[1] for p in products.products(s)]
        assert sum(work) == pytest.approx(expected, rel=1e-12)


# ---- That they are kept ------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_they_are_set():
    code = "import sys, gpt2.train.program; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
@openblas
def test_a_run_keeps_its_kernels(prose, tmp_path, capsys):
    """Those of the program are loaded; one that goes on has them, or is told that they cannot be had."""
    other = "Haswell" if blas_kernels() != "Haswell" else "Nehalem"
    small = "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 8 --warmup 0 --sample-tokens 0"
    command = [
        sys.executable,
        "train.py",
        "--data",
        str(prose[0]),
        *small.split(),
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(
        [*command, "--steps", "2", "--kernels", other], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode and "--kernels" in done.stderr:
        pytest.skip(f"this processor cannot pass for {other}: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert read_toml(tmp_path / "run" / "settings.toml", Settings)["kernels"] == other
    again = [sys.executable, "train.py", "--resume", str(tmp_path / "run"), "--steps", "3"]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert program.main([*again[2:-1], "4"]) == 2  # here NumPy is loaded
    error = capsys.readouterr().err
    assert (
        f"--kernels {other}: OpenBLAS has loaded those for {blas_kernels()}" in error
        and error.count("\n") == 1
    )
    with pytest.raises(UserError, match="--kernels own"):
        train(resumed_settings(tmp_path / "run", {"steps": 4}), resume=True)
    run = train(resumed_settings(tmp_path / "run", {"steps": 4, "kernels": OWN}), resume=True)
    assert run.step == 4 and run.settings.kernels == OWN


def test_a_run_of_a_program_keeps_what_is_loaded(prose, tmp_path, monkeypatch):
    s = Settings(
        data=str(prose[0]), tokenizer="byte", n_layer=1, n_head=2, n_embd=16, block_size=8, steps=1, warmup=0
    )
    s = Settings(**{**vars(s), "out": str(tmp_path / "a"), "sample_tokens": 0})
    assert train(s).settings.kernels == OWN
    if blas_kernels():
        monkeypatch.setenv(VARIABLE, blas_kernels().lower())
        assert train(s, overwrite=True).settings.kernels == blas_kernels()
        assert train(Settings(**{**vars(s), "kernels": blas_kernels()}), overwrite=True).step == 1
        with pytest.raises(UserError, match="unset it before Python"):
            train(Settings(**{**vars(s), "kernels": OWN}), overwrite=True)
    monkeypatch.setenv(VARIABLE, "Nobody's")
    assert train(s, overwrite=True).settings.kernels == OWN


def test_a_run_of_an_earlier_version_has_openblas_own(prose, tmp_path):
    s = Settings(
        data=str(prose[0]), tokenizer="byte", n_layer=1, n_head=2, n_embd=16, block_size=8, steps=1, warmup=0
    )
    train(Settings(**{**vars(s), "out": str(tmp_path / "a"), "sample_tokens": 0}))
    file = tmp_path / "a" / "settings.toml"
    file.write_text("".join(line for line in file.open() if "kernels" not in line))
    assert resumed_settings(tmp_path / "a").kernels == OWN
