"""The line that shows how fast a run goes."""

from gpt2.train.progress import Progress, Rates


def test_no_share_of_a_peak_that_was_measured_too_low(capsys):
    progress = Progress(10, 0, every=1, peak=1e9)
    progress.step(1, 2.0, Rates(1.0, 1.0, 5e8))
    progress.step(2, 2.0, Rates(1.0, 1.0, 2e9))
    progress.step(3, 2.0, Rates(1.0, 1.0, 5e8))
    shares = [line.split("GFLOP/s ")[1].split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shares == ["(50% of peak)", "(peak unclear)", "(peak unclear)"]
