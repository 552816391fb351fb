"""The line that shows how fast a run goes, and the peak that it is compared with."""

import io
import itertools
import sys

import pytest

from gpt2 import machine
from gpt2.storage import curve
from gpt2.train import Settings, flops, reporters
from gpt2.train.flags import essence
from gpt2.train.flops import Peak, matmul_peak
from gpt2.train.reporters import MAIN, OMITTED, Progress
from gpt2.train.step import Rates


def shares(capsys, peak, *rates):
    progress = Progress(10, 0, every=1, peak=peak)
    for step, rate in enumerate(rates):
        progress.step(step + 1, 2.0, Rates(1.0, 1.0, rate))
    lines = capsys.readouterr().out.splitlines()
    return [line.split("GFLOP/s")[1].split("  ")[0].strip() for line in lines]


def test_no_share_of_a_peak_that_was_measured_too_low(capsys):
    text = shares(capsys, Peak(1e9), 5e8, 2e9, 5e8)
    assert text == ["(50% of peak)", "", ""]


def test_no_step_has_all_of_the_peak(capsys):
    """What would be rounded to it says that the peak was measured too low."""
    assert shares(capsys, Peak(1e9), 9.9e8) == ["(99% of peak)"]
    assert shares(capsys, Peak(1e9), 9.96e8) == [""]
    assert shares(capsys, Peak(float("nan")), 1e8) == [""]


def test_no_share_of_a_peak_that_was_measured_beside_other_work(capsys):
    assert shares(capsys, Peak(1e9, quiet=False), 5e8) == [""]
    assert str(Peak(5e10, quiet=False)) == "50 GFLOP/s in matrix products, measured on a busy machine"
    assert str(Peak(5e10)) == "50 GFLOP/s in matrix products"


@pytest.mark.parametrize(
    "others, tries, calm", [((0.0,), 1, True), ((1.0, 0.0), 2, True), ((1.0, 1.0, 1.0), 3, False)]
)
def test_the_peak_is_measured_again_where_others_disturb(monkeypatch, others, tries, calm):
    """others: what other programs take of the machine in each try, by a clock that only calls move."""
    now, taken = itertools.count(), itertools.chain(*((0.0, share * 1e3) for share in others))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(machine, "own_seconds", lambda: 0.0)
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(taken))
    peak = matmul_peak(n=8, seconds=10)
    assert peak == Peak(2 * 8**3, calm) and next(taken, None) is None and tries == len(others)


def test_a_run_begins_with_the_settings_that_matter():
    settings = Settings(data="my.txt", steps=7, clip=0.5, out="here", workers="3")
    text = essence(settings, MAIN, OMITTED)
    assert text.split() == [
        *("preset=shakespeare", "data=my.txt", "tokenizer=auto", "n_layer=4", "n_head=4", "n_embd=128"),
        *("batch_size=8", "block_size=64", "steps=7", "lr=0.002", "backward=fastest", "parallel=fastest"),
        "clip=0.5",
    ]
    assert max(map(len, text.splitlines())) < 80


def test_losses_as_bars():
    assert curve.bars([3.0, 2.0, 1.5, 1.2, 1.1, 1.0]) == "█▄▂▁▁▁"
    assert curve.bars([1.0]) == curve.bars([]) == curve.bars([float("nan"), 2.0]) == ""
    assert curve.bars([2.0, 2.0]) == "▁▁" and len(curve.bars(range(1000, 0, -1))) == 40


def test_the_one_thing_to_try_next():
    assert reporters._next(Settings(data="tinyshakespeare"))[0] == "letter by letter"
    assert reporters._next(Settings(data="stdlib"))[0] == "your own text"
    assert reporters._next(Settings(data="my.txt"))[1].endswith("gpt2 explain all")


def test_bars_are_left_out_where_the_output_cannot_hold_them(monkeypatch):
    for encoding, wanted in (("ascii", b""), ("utf-8", "▁\n".encode())):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", out)
        reporters._print_if_encodable("▁")
        out.flush()
        assert out.buffer.getvalue().replace(b"\r", b"") == wanted


def test_a_sample_is_shown_in_whole_lines():
    assert reporters._whole_lines("\n\nO my lord,\nI am\nhe th") == "O my lord,\nI am"
    assert reporters._whole_lines("O\nmy lord, I am") == "O\nmy lord, I am"
    assert reporters._whole_lines("all in one") == "all in one"
