"""Curves from metrics: what is read, what is drawn, in pictures and in the terminal."""

import io
import json
import math
import sys

import numpy as np
import pytest

from gpt2.commands import plot
from gpt2.errors import UserError
from gpt2.storage import metrics


def write_run(folder, steps=60, scale=1.0):
    """A run's folder with `steps` steps, a validation every 20, and a sample."""
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text("")
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            line = dict(
                step=step,
                loss=scale * (2 + math.exp(-step / 20)),
                lr=1e-3 * step,
                grad_norm=1.0,
                seconds=0.5,
                tokens_per_second=100.0 + step,
            )
            file.write(json.dumps(line) + "\n")
            if step % 20 == 0:
                file.write(json.dumps(dict(step=step, val_loss=3.0 - step / 100)) + "\n")
                file.write(json.dumps(dict(step=step, sample="text with {braces}")) + "\n")
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs" / "one")


# ---- Metrics ---------------------------------------------------------------------------------------------


def test_metrics_are_read_by_name(run):
    found = metrics.read(run)
    steps, losses = found.get("loss")
    assert steps.tolist() == list(range(1, 61)) and losses[0] == 2 + math.exp(-1 / 20)
    assert found.get("val_loss")[1].tolist() == [2.8, 2.6, 2.4]
    assert "sample" not in found.values and not len(found.get("pears")[0])


def test_a_line_that_is_being_written_is_left_out(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 61, "loss": 2.')
    assert len(metrics.read(run).get("loss")[0]) == 60


@pytest.mark.parametrize("line", ["pear", "[1, 2]", '{"loss": 2.0}', '{"step": "x", "loss": 1}'])
def test_another_file_is_one_line(run, line):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match="line 67 was not written by train.py"):
        metrics.read(run)


def test_losses_that_are_not_finite_are_read(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 61, "loss": NaN, "grad_norm": Infinity}\n')
    assert math.isnan(metrics.read(run).get("loss")[1][-1])


def test_smoothed():
    assert metrics.smoothed([5.0, 5.0, 5.0], 10).tolist() == pytest.approx([5.0, 5.0, 5.0])
    assert metrics.smoothed([1.0, 2.0, 4.0], 1).tolist() == [1.0, 2.0, 4.0]
    # weights 1/2 and 1/4, over their sum
    assert metrics.smoothed([0.0, 3.0], 2)[1] == pytest.approx(3 * 0.5 / 0.75)
    smooth = metrics.smoothed([1.0, np.nan, 1.0, np.inf], 3)
    assert smooth.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert np.isnan(metrics.smoothed([np.nan, 1.0], 3)[0])


# ---- Pictures --------------------------------------------------------------------------------------------


def test_pictures_of_one_run(run, capsys):
    pytest.importorskip("matplotlib")
    assert plot.main([str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    svg = (run / "curves.svg").read_text()
    assert "<svg" in svg
    assert capsys.readouterr().out.count("curves") == 2


def test_what_is_drawn(run, tmp_path):
    """Every panel of two runs has both curves, with the numbers that were measured."""
    pytest.importorskip("matplotlib")
    other = write_run(tmp_path / "runs" / "two", steps=30, scale=2.0)
    picture = plot.figure([metrics.read(run), metrics.read(other)])
    panels = {axes.get_title(): axes for axes in picture.axes}
    assert list(panels) == ["loss", "learning rate", "gradient norm", "throughput"]
    drawn = [tuple(line.get_ydata()) for line in panels["loss"].get_lines()]
    for found in (metrics.read(run), metrics.read(other)):
        assert tuple(found.get("loss")[1]) in drawn and tuple(found.get("val_loss")[1]) in drawn
    rates = [line.get_ydata().tolist() for line in panels["learning rate"].get_lines()]
    assert rates == [metrics.read(run).get("lr")[1].tolist(), metrics.read(other).get("lr")[1].tolist()]
    labels = panels["loss"].get_legend_handles_labels()[1]
    assert labels == [str(run), f"{run}, validation", str(other), f"{other}, validation"]


def test_out_and_several_runs(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    other = write_run(tmp_path / "runs" / "two")
    monkeypatch.chdir(tmp_path)
    assert plot.main([str(run), str(other)]) == 0
    assert (tmp_path / "curves.png").exists() and (tmp_path / "curves.svg").exists()
    assert plot.main([str(run), "--out", "deep/x.svg"]) == 0
    assert (tmp_path / "deep" / "x.svg").exists()
    assert plot.main([str(run), "--out", "x.jpeg2"]) == 2
    assert "expected a name that ends in .png, .svg, .pdf" in capsys.readouterr().err


def test_the_newest_run_by_default(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    folder = write_run(tmp_path / "runs" / "one")
    (folder / "last.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert plot.main([]) == 0
    assert (folder / "curves.svg").exists()


def test_without_matplotlib(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plot.main([str(run)]) == 2
    text = capsys.readouterr().err
    assert "-m pip install matplotlib" in text and text.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere: no run here"),
        (["--live", "--every", "0"], "--every 0.0: expected more than 0 seconds"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert plot.main(arguments) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1


def test_a_run_without_a_step_yet(tmp_path, capsys):
    folder = write_run(tmp_path / "x", steps=0)
    assert plot.main([str(folder)]) == 2
    assert "no metrics yet" in capsys.readouterr().err
    (folder / "metrics.jsonl").unlink()
    assert plot.main([str(folder), "--live"]) == 0
    assert "no numbers yet" in capsys.readouterr().out


# ---- The terminal ----------------------------------------------------------------------------------------


def test_chart_of_a_line():
    """A straight line goes from corner to corner, a mark stands where it belongs."""
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


def test_chart_keeps_to_its_size():
    rng = np.random.default_rng(0)
    for width, height, count in ((80, 24, 1000), (20, 5, 3), (200, 10, 50), (12, 4, 1)):
        numbers = rng.standard_normal(count) * 10.0 ** rng.integers(-5, 5)
        lines = plot.chart(np.arange(1.0, count + 1), numbers, width, height)
        assert len(lines) == height and max(map(len, lines)) <= max(width, 24)
    assert plot.chart(np.array([1.0]), np.array([np.nan]), 40, 5)[0] == "no numbers yet"


def test_columns_show_the_mean():
    lines = plot.chart(np.array([1.0, 1.0, 2.0]), np.array([0.0, 4.0, 2.0]), width=5, height=6)
    assert [line[3:] for line in lines[:5]] == ["", "", "**", "", ""]


def test_live_prints_once_into_a_pipe(run, capsys):
    assert plot.main([str(run), "--live"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}"[:79]) and any("o" in line for line in lines[1:])
    assert max(map(len, lines)) <= 79


def test_live_draws_again_until_interrupted(run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

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


def test_live_ends_quietly(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "live", interrupted)
    assert plot.main([str(run), "--live"]) == 0


# ---- TensorBoard -----------------------------------------------------------------------------------------


def test_tensorboard(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert plot.main([str(run), "--tensorboard", str(tmp_path / "logs")]) == 0
    events = EventAccumulator(str(tmp_path / "logs" / "one"))
    events.Reload()
    assert {"loss", "val_loss", "lr", "grad_norm", "tokens_per_second"} <= set(events.Tags()["scalars"])
    points = events.Scalars("val_loss")
    assert [(point.step, round(point.value, 6)) for point in points] == [(20, 2.8), (40, 2.6), (60, 2.4)]
    assert points[0].wall_time == 10.0


def test_without_tensorboard(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert plot.main([str(run), "--tensorboard", "x"]) == 2
    text = capsys.readouterr().err
    assert "-m pip install tensorboard" in text and text.count("\n") == 1


def test_smoothing_does_not_lag():
    """A straight line stays itself, away from its ends; a running mean from one end lags by its span."""
    line = np.arange(400.0)
    both, one = metrics.without_lag(line, 8.0), metrics.smoothed(line, 8.0)
    np.testing.assert_allclose(both[100:300], line[100:300], atol=1e-3)
    assert np.all(line[100:300] - one[100:300] > 6.5)


def test_validation_has_a_colour_of_its_own():
    pytest.importorskip("matplotlib")
    steps = np.arange(1, 5), np.linspace(3.0, 2.0, 4)
    picture = plot.figure([metrics.Metrics("a", {"loss": steps, "val_loss": steps})])
    colours = {line.get_color() for line in picture.axes[0].lines}
    assert colours == {"C0", "C1"}
