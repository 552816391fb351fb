"""The line that shows how fast a run goes, and the peak that it is compared with."""

import itertools

import pytest

from gpt2 import machine
from gpt2.train import flops
from gpt2.train.flops import Peak, matmul_peak
from gpt2.train.reporters import Progress
from gpt2.train.step import Rates


def shares(capsys, peak, *rates):
    progress = Progress(10, 0, every=1, peak=peak)
    for step, rate in enumerate(rates):
        progress.step(step + 1, 2.0, Rates(1.0, 1.0, rate))
    lines = capsys.readouterr().out.splitlines()
    return [line.split("GFLOP/s ")[1].split("  ")[0] for line in lines]


def test_no_share_of_a_peak_that_was_measured_too_low(capsys):
    told = shares(capsys, Peak(1e9), 5e8, 2e9, 5e8)
    assert told == ["(50% of peak)", "(peak unclear)", "(peak unclear)"]


def test_no_step_has_all_of_the_peak(capsys):
    """What would be rounded to it says that the peak was measured too low."""
    assert shares(capsys, Peak(1e9), 9.9e8) == ["(99% of peak)"]
    assert shares(capsys, Peak(1e9), 9.96e8) == ["(peak unclear)"]
    assert shares(capsys, Peak(float("nan")), 1e8) == ["(peak unclear)"]


def test_no_share_of_a_peak_that_was_measured_beside_other_work(capsys):
    assert shares(capsys, Peak(1e9, quiet=False), 5e8) == ["(peak unclear)"]
    assert str(Peak(5e10, quiet=False)) == "50 GFLOP/s in matrix products, measured beside other work"
    assert str(Peak(5e10)) == "50 GFLOP/s in matrix products"


@pytest.mark.parametrize(
    "others, tries, calm", [((0.0,), 1, True), ((1.0, 0.0), 2, True), ((1.0, 1.0, 1.0), 3, False)]
)
def test_the_peak_is_measured_again_where_others_disturb(monkeypatch, others, tries, calm):
    """others: what other programs take of the machine in each try, by a clock that only calls move."""
    now, taken = itertools.count(), itertools.chain(*((0.0, share * 1e3) for share in others))
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(machine, "own", lambda: 0.0)
    monkeypatch.setattr(machine, "busy", lambda: next(taken))
    peak = matmul_peak(n=8, seconds=10)
    assert peak == Peak(2 * 8**3, calm) and next(taken, None) is None and tries == len(others)
