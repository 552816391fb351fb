"""gpt2 plot: metrics that are read, and curves in pictures, in the terminal and for TensorBoard."""

import json
import math
import shutil
import sys

import numpy as np
import pytest

from gpt2.commands import plot
from gpt2.errors import UserError
from gpt2.pictures import LIGHT, SERIES
from gpt2.storage import metrics
from tests.support.terminal import Terminal


def write_run(folder, steps=60, scale=1.0):
    """The folder of a run of so many steps, with a validation and a sample every 20."""
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text("")
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            numbers = dict(lr=1e-3 * step, grad_norm=1.0, seconds=0.5, tokens_per_second=100.0 + step)
            loss = scale * (2 + math.exp(-step / 20))
            file.write(json.dumps(dict(step=step, loss=loss, **numbers)) + "\n")
            if step % 20 == 0:
                file.write(json.dumps(dict(step=step, val_loss=3.0 - step / 100)) + "\n")
                file.write(json.dumps(dict(step=step, sample="text with {braces}")) + "\n")
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs" / "one")


def append(run, text):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(text)


# ---- Metrics ---------------------------------------------------------------------------------------------


def test_metrics_are_read_by_name(run):
    """Also losses that are not finite; an incomplete last line is left out."""
    append(run, '{"step": 61, "loss": NaN, "grad_norm": Infinity}\n{"step": 62, "loss": 2.')
    values = metrics.read(run)
    steps, losses = values.get("loss")
    assert steps.tolist() == list(range(1, 62))
    assert losses[0] == 2 + math.exp(-1 / 20) and math.isnan(losses[-1])
    assert values.get("val_loss")[1].tolist() == [2.8, 2.6, 2.4]
    assert "sample" not in values.values and not len(values.get("pears")[0])


@pytest.mark.parametrize("line", ["pear", "[1, 2]", '{"loss": 2.0}', '{"step": "x", "loss": 1}'])
def test_invalid_line_is_refused_with_its_number(run, line):
    append(run, line + "\n")
    with pytest.raises(UserError, match="line 67 was not written by train.py"):
        metrics.read(run)


def test_smoothed_curve_is_a_weighted_mean_that_skips_nan():
    assert metrics.smoothed([5.0, 5.0, 5.0], 10).tolist() == pytest.approx([5.0, 5.0, 5.0])
    assert metrics.smoothed([1.0, 2.0, 4.0], 1).tolist() == [1.0, 2.0, 4.0]
    # weights 1/2 and 1/4, over their sum
    assert metrics.smoothed([0.0, 3.0], 2)[1] == pytest.approx(3 * 0.5 / 0.75)
    smooth = metrics.smoothed([1.0, np.nan, 1.0, np.inf], 3)
    assert smooth.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert np.isnan(metrics.smoothed([np.nan, 1.0], 3)[0])


def test_smoothed_curve_does_not_lag():
    """A straight line stays as it is, away from its ends; a running mean from one end lags by its span."""
    line = np.arange(400.0)
    both, one = metrics.without_lag(line, 8.0), metrics.smoothed(line, 8.0)
    np.testing.assert_allclose(both[100:300], line[100:300], atol=1e-3)
    assert np.all(line[100:300] - one[100:300] > 6.5)


# ---- Pictures --------------------------------------------------------------------------------------------


def test_pictures_of_one_run(run, capsys):
    """The SVG follows the browser's colour scheme, and has its text as text."""
    pytest.importorskip("matplotlib")
    assert plot.main([str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("curves") == 2
    svg = (run / "curves.svg").read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark)" in svg and LIGHT[SERIES[0]] in svg
    assert "gradient norm</text>" in svg and "$" not in svg


def test_panels_have_the_curves_of_each_run(run, tmp_path):
    pytest.importorskip("matplotlib")
    other = write_run(tmp_path / "runs" / "two", steps=30, scale=2.0)
    values = [metrics.read(run), metrics.read(other)]
    panels = {axes.get_title("left"): axes for axes in plot.figure(values).axes}
    assert list(panels) == ["loss", "learning rate", "gradient norm", "throughput"]
    curves = [line.get_ydata().tolist() for line in panels["loss"].get_lines()]
    for one in values:
        assert one.get("loss")[1].tolist() in curves and one.get("val_loss")[1].tolist() in curves
    rates = [line.get_ydata().tolist() for line in panels["learning rate"].get_lines()]
    assert rates == [one.get("lr")[1].tolist() for one in values]
    labels = panels["loss"].get_legend_handles_labels()[1]
    shown = [str(run), f"{run}, validation", str(other), f"{other}, validation"]
    assert [label.lstrip("\N{ZERO WIDTH SPACE}") for label in labels] == shown


def test_a_run_has_one_hue_and_its_validation_has_markers():
    pytest.importorskip("matplotlib")
    steps = np.arange(1, 5), np.linspace(3.0, 2.0, 4)
    runs = [metrics.Metrics(name, {"loss": steps, "val_loss": steps}) for name in ("a", "b")]
    lines = plot.figure(runs).axes[0].lines
    assert [(line.get_color(), line.get_marker()) for line in lines] == [
        (LIGHT[hue], marker) for hue in SERIES[:2] for marker in ("None", "None", "o")
    ]


def test_pictures_of_several_runs_and_at_a_path(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    other = write_run(tmp_path / "runs" / "two")
    monkeypatch.chdir(tmp_path)
    assert plot.main([str(run), str(other)]) == 0
    assert (tmp_path / "curves.png").exists() and (tmp_path / "curves.svg").exists()
    assert plot.main([str(run), "--out", "deep/x.svg"]) == 0
    assert (tmp_path / "deep" / "x.svg").exists()


def test_newest_run_is_the_default(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (run / "last.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert plot.main([]) == 0
    assert (run / "curves.svg").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        ("nowhere", "nowhere: no run here"),
        ("--live --every 0", "--every 0.0: expected more than 0 seconds"),
        ("runs/one --out x.jpeg2", "expected a name that ends in .png, .svg, .pdf"),
    ],
)
def test_invalid_arguments_are_one_line(run, tmp_path, words, message, refusal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(plot.main, *words.split())


@pytest.mark.parametrize("package, words", [("matplotlib", []), ("tensorboard", ["--tensorboard", "x"])])
def test_missing_package_is_named_with_its_installation(run, monkeypatch, refusal, package, words):
    for module in ("matplotlib.figure", "tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    assert f"-m pip install {package}" in refusal(plot.main, run, *words)


def test_run_without_metrics(tmp_path, capsys, refusal):
    folder = write_run(tmp_path / "x", steps=0)
    assert "no metrics yet" in refusal(plot.main, folder)
    (folder / "metrics.jsonl").unlink()
    assert plot.main([str(folder), "--live"]) == 0
    assert "no numbers yet" in capsys.readouterr().out


# ---- The terminal ----------------------------------------------------------------------------------------


def test_chart_of_a_straight_line_and_a_mark():
    steps = np.arange(1.0, 8.0)
    lines = plot.chart(steps, 8.0 - steps, width=10, height=8, marks=[(7.0, 7.0)])
    assert lines == [
        "7 |*     o",
        "  | *",
        "  |  *",
        "  |   *",
        "  |    *",
        "  |     *",
        "1 |      *",
        "   1step 7",
    ]


def test_live_prints_once_if_output_is_no_terminal(run, capsys):
    assert plot.main([str(run), "--live"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}"[:79]) and any("o" in line for line in lines[1:])
    assert max(map(len, lines)) <= 79


def test_live_redraws_until_interrupted(run, monkeypatch):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(plot.time, "sleep", sleep)
    screen = Terminal()
    with pytest.raises(KeyboardInterrupt):
        plot.live([run], 7.0, screen)
    assert waits == [7.0] * 3 and screen.getvalue().count("\x1b[2J") == 3


def test_interrupted_live_exits_with_status_0(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "live", interrupt)
    assert plot.main([str(run), "--live"]) == 0


# ---- TensorBoard -----------------------------------------------------------------------------------------


def test_tensorboard_events_of_two_runs_of_one_name_are_not_mixed(run, tmp_path, refusal):
    pytest.importorskip("tensorboard")
    shutil.copytree(run, tmp_path / "other" / "one")
    error = refusal(plot.main, run, tmp_path / "other" / "one", "--tensorboard", tmp_path / "logs")
    assert "two runs are named one" in error and not (tmp_path / "logs").exists()


def test_tensorboard_events_have_steps_values_and_times(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert plot.main([str(run), "--tensorboard", str(tmp_path / "logs")]) == 0
    events = EventAccumulator(str(tmp_path / "logs" / "one"))
    events.Reload()
    assert {"loss", "val_loss", "lr", "grad_norm", "tokens_per_second"} <= set(events.Tags()["scalars"])
    points = events.Scalars("val_loss")
    assert [(point.step, round(point.value, 6)) for point in points] == [(20, 2.8), (40, 2.6), (60, 2.4)]
    assert points[0].wall_time == 10.0
