"""What a run prints: its speed as a share of the machine's peak, settings, loss curve, samples, hints."""

import io
import itertools
import sys
from types import SimpleNamespace

import pytest

from gpt2 import machine
from gpt2.storage import curve
from gpt2.train import Settings, flops, reporters
from gpt2.train.flags import essence
from gpt2.train.flops import Peak, matmul_peak
from gpt2.train.reporters import MAIN, OMITTED, Own
from gpt2.train.run import Rates, Step


def shares(capsys, peak, *rates):
    """The shares of the peak that are printed at these rates in FLOP/s."""
    run = SimpleNamespace(settings=Settings(log_every=1))
    reporter = Own(peak)
    for number, rate in enumerate(rates, 1):
        reporter.step(Step(number, 2.0, 0.0, 1.0, 1.0, Rates(1.0, 1.0, rate), run=run))
    lines = capsys.readouterr().out.splitlines()
    return [line.split("GFLOP/s")[1].split("  ")[0].strip() for line in lines]


@pytest.mark.parametrize(
    "peak, rates, printed",
    [
        (Peak(1e9), (5e8, 2e9, 5e8), ["(50% of peak)", "", ""]),  # the second is more than the peak
        (Peak(1e9), (9.9e8,), ["(99% of peak)"]),
        (Peak(1e9), (9.96e8,), [""]),  # would be rounded to 100%
        (Peak(float("nan")), (1e8,), [""]),
        (Peak(1e9, quiet=False), (5e8,), [""]),
    ],
)
def test_share_of_the_peak_is_printed_only_if_the_peak_is_trusted(capsys, peak, rates, printed):
    assert shares(capsys, peak, *rates) == printed


@pytest.mark.parametrize("others, quiet", [((0.0,), True), ((1.0, 0.0), True), ((1.0, 1.0, 1.0), False)])
def test_peak_is_measured_again_if_other_programs_run(monkeypatch, others, quiet):
    """others: the share of the machine that they use in each try, by a fake clock."""
    now, busy = itertools.count(), itertools.chain(*((0.0, share * 1e3) for share in others))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(machine, "own_seconds", lambda: 0.0)
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(busy))
    assert matmul_peak(n=8, seconds=10) == Peak(2 * 8**3, quiet)
    assert next(busy, None) is None  # all tries were made


def test_settings_that_a_run_prints():
    settings = Settings(data="my.txt", steps=7, clip=0.5, out="here", workers="3")
    text = essence(settings, MAIN, OMITTED)
    assert text.split() == [
        *("preset=shakespeare", "data=my.txt", "tokenizer=auto", "n_layer=4", "n_head=4", "n_embd=128"),
        *("batch_size=8", "block_size=64", "steps=7", "lr=0.002", "backward=fastest", "parallel=fastest"),
        "clip=0.5",
    ]
    assert max(map(len, text.splitlines())) < 80


def test_loss_curve_as_bars():
    assert curve.bars([3.0, 2.0, 1.5, 1.2, 1.1, 1.0]) == "█▄▂▁▁▁"
    assert curve.bars([1.0]) == curve.bars([]) == curve.bars([float("nan"), 2.0]) == ""
    assert curve.bars([2.0, 2.0]) == "▁▁" and len(curve.bars(range(1000, 0, -1))) == 40


@pytest.mark.parametrize("encoding, printed", [("ascii", ""), ("utf-8", "loss 2.00 █▁ 1.00\n")])
def test_bars_are_printed_only_if_the_output_can_encode_them(monkeypatch, encoding, printed):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setattr(sys, "stdout", out)
    reporters.print_curve({"loss": ([1, 2], [2.0, 1.0])})
    out.flush()
    assert out.buffer.getvalue().decode() == printed


def test_sample_is_cut_to_whole_lines():
    assert reporters._whole_lines("\n\nO my lord,\nI am\nhe th") == "O my lord,\nI am"
    assert reporters._whole_lines("O\nmy lord, I am") == "O\nmy lord, I am"
    assert reporters._whole_lines("all in one") == "all in one"
