"""Curves of one or several runs: losses, learning rate, gradient norm, throughput.

Pictures need matplotlib (pip install 'numpy-gpt2[plot]'), --tensorboard its package (pip install
'numpy-gpt2[tensorboard]'), --live needs nothing.
"""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gpt2 import cli
from gpt2.errors import UserError, os_errors, printable
from gpt2.hints import install, quoted, typed
from gpt2.output import trusted
from gpt2.pictures import LIGHT, SERIES, adaptive, look
from gpt2.storage import metrics
from gpt2.storage.metrics import Metrics

# Title, metrics, unit of the y axis, whether that axis is logarithmic
PANELS = (
    ("loss", ("loss", "val_loss"), "nats per token", False),
    ("learning rate", ("lr",), "", False),
    ("gradient norm", ("grad_norm",), "", True),
    ("throughput", ("tokens_per_second",), "tokens per second", False),
)
FORMATS = ("png", "svg", "pdf")
LATEST = {  # metric -> its latest value as text
    "loss": "loss {:.4f}",
    "val_loss": "validation {:.4f} (o)",
    "lr": "lr {:.3g}",
    "grad_norm": "norm {:.3g}",
    "tokens_per_second": "{:,.0f} tok/s",
}


def figure(runs: Sequence[Metrics]) -> Any:
    """A matplotlib Figure with the four panels, one hue per run."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullLocator
    except ImportError:
        raise UserError(
            f"pictures need matplotlib: {install('matplotlib')}; --live draws in the terminal without it"
        ) from None
    with look():
        # A Figure without pyplot: no global state, and no display needed
        picture = Figure(figsize=(11, 7), dpi=72, layout="constrained")
        for axes, (title, names, unit, logarithmic) in zip(picture.subplots(2, 2).flat, PANELS):
            for number, run in enumerate(runs):
                for name in names:
                    _draw(axes, run, name, LIGHT[SERIES[number % len(SERIES)]])
            axes.set_title(title, loc="left", fontweight="bold")
            axes.set(xlabel="step", ylabel=unit)
            if logarithmic and axes.has_data():
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_minor_locator(NullLocator())
                # the default formatter writes formulas, which the style leaves as text
                axes.yaxis.set_major_formatter("{x:g}")
            axes.spines[:].set_visible(False)
            axes.tick_params(which="both", length=0)
            axes.grid(axis="y")
            if axes.get_legend_handles_labels()[1] and (len(runs) > 1 or len(names) > 1):
                axes.legend(fontsize="small").set_in_layout(False)  # long names leave the axes their room
    return picture


def _draw(axes, run, name, colour):
    """One curve: the values faint, their running mean on top; validation as points."""
    steps, numbers = run.get(name)
    if not len(steps):
        return
    # The zero-width space is for names that begin with _: matplotlib leaves their curves out of the legend
    label = f"\N{ZERO WIDTH SPACE}{printable(run.name)}"
    if name == "val_loss":
        points = {"markersize": 5, "markerfacecolor": LIGHT["paper"]}
        axes.plot(steps, numbers, "o--", color=colour, label=f"{label}, validation", **points)
    elif name == "lr":
        axes.plot(steps, numbers, color=colour, label=label)
    else:
        axes.plot(steps, numbers, color=colour, alpha=0.25, linewidth=0.8)
        smooth = metrics.without_lag(numbers, len(numbers) / 50)
        axes.plot(steps, smooth, color=colour, linewidth=2, label=label)


def save(runs: Sequence[Metrics], paths: Iterable[Path]) -> None:
    """Draw runs and write the picture to each path, in the format of its suffix."""
    picture = figure(runs)
    for path in paths:
        with os_errors(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with look():
                picture.savefig(path, dpi=120)
            if path.suffix == ".svg":
                path.write_text(adaptive(path.read_text(encoding="utf-8")), encoding="utf-8")


def chart(steps: np.ndarray, numbers: np.ndarray, width: int, height: int, marks: Sequence = ()) -> list[str]:
    """Numbers over steps as lines of text, `height` of them, each of at most `width` characters.

    marks   further (step, number) pairs, drawn as o

    A column shows the mean of its steps. Axes are labelled with minimum and maximum.
    """
    finite = np.isfinite(numbers)
    steps, numbers = steps[finite], numbers[finite]
    marks = [(step, number) for step, number in marks if math.isfinite(number)]
    if not len(steps):
        return ["no numbers yet"] + [""] * (height - 1)
    everything = np.concatenate([numbers, [number for _, number in marks]])
    low, high = float(everything.min()), float(everything.max())
    labels = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, labels)) + 1
    columns = max(width - margin - 1, 1)
    first, last = float(steps.min()), float(max(steps.max(), *(step for step, _ in marks), 0))

    def column(step):
        return ((np.asarray(step) - first) / ((last - first) or 1.0) * (columns - 1)).round().astype(int)

    def row(number):
        return ((high - np.asarray(number)) / ((high - low) or 1.0) * (height - 2)).round().astype(int)

    cells = [[" "] * columns for _ in range(height - 1)]
    at = column(steps)
    sums, counts = np.bincount(at, numbers, columns), np.bincount(at, minlength=columns)
    for x in np.flatnonzero(counts):
        cells[int(row(sums[x] / counts[x]))][x] = "*"
    for step, number in marks:
        if step >= first:
            cells[int(row(number))][int(column(step))] = "o"
    lines = []
    for y, line in enumerate(cells):
        label = labels[0] if y == 0 else labels[1] if y == height - 2 else ""
        lines.append(f"{label:>{margin - 1}} |{''.join(line)}".rstrip())
    ends = f"{first:g}", f"step {last:g}"
    return [*lines, " " * margin + " " + ends[0] + ends[1].rjust(columns - len(ends[0]))]


def screen(runs: Sequence[Metrics], width: int, height: int) -> str:
    """One or several runs as text that fills `width` by `height` characters."""
    each = max((height - 1) // len(runs) - 2, 4)
    lines = []
    for run in runs:
        steps, losses = run.get("loss")
        marks = list(zip(*run.get("val_loss")))
        last = {name: run.get(name)[1] for name in LATEST}
        parts = [LATEST[name].format(numbers[-1]) for name, numbers in last.items() if len(numbers)]
        head = "  ".join([printable(run.name), *parts])
        lines += [head[:width], *chart(steps, losses, width, each, marks), ""]
    return "\n".join(lines[:-1])


def live(folders: Sequence[str], every: float, out: TextIO | None = None) -> None:
    """Draw the runs in the terminal every `every` seconds until interrupted; to a file or a pipe, once."""
    out = out or sys.stdout
    while True:
        width, height = shutil.get_terminal_size((80, 24))
        text = screen([metrics.read(folder) for folder in folders], width - 1, height - 1)
        if not out.isatty():
            print(text, file=out)
            return
        print(trusted("\x1b[H\x1b[2J") + text, end="\n", file=out, flush=True)  # home, and clear
        time.sleep(every)


def tensorboard(runs: Sequence[Metrics], folder: str | Path) -> list[Path]:
    """Write every number of the runs as TensorBoard events, a folder a run; returns the folders.

    The time of an event is the sum of the seconds of the steps up to it.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise UserError(f"--tensorboard needs the package: {install('tensorboard')}") from None
    written = []
    names = [Path(run.name).resolve().name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:  # one curve would be drawn of both
        raise UserError(f"--tensorboard: two runs are named {twice[0]}; write each to another folder")
    for run, name in zip(runs, names):
        target = Path(folder) / name
        with os_errors(f"--tensorboard {target}"):
            writer = EventFileWriter(str(target))
        done, seconds = run.get("seconds")
        clock = [0.0, *np.cumsum(seconds).tolist()]
        for tag, (steps, numbers) in run.values.items():
            for step, number in zip(steps, numbers):
                at = clock[np.searchsorted(done, step, side="right")]
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=number)])
                writer.add_event(Event(step=int(step), wall_time=at, summary=summary))
        writer.close()
        written.append(target)
    return written


EXAMPLES = (
    ("gpt2 plot", "the newest run: RUN/curves.png and RUN/curves.svg"),
    ("gpt2 plot runs/a runs/b --out both.svg", "two runs in one picture"),
    ("gpt2 plot runs/a --live", "in the terminal, drawn again while the run goes on"),
    ("gpt2 plot runs/a --tensorboard logs", "as events for TensorBoard"),
)
ABOUT = "Curves of one or several runs: losses, learning rate, gradient norm, throughput."
NEEDS = "Pictures need the package matplotlib, --tensorboard the package tensorboard, --live neither."


def parser() -> cli.Parser:
    command = cli.Parser("plot", ABOUT, EXAMPLES, NEEDS)
    add = command.add_argument
    add("runs", nargs="*", metavar="RUN", help="folders of runs (default: the newest in runs/)")
    add("--out", metavar="FILE", help="the picture, .png, .svg or .pdf (default: curves.png and curves.svg)")
    add("--live", action="store_true", help="draw in the terminal; Ctrl-C ends it")
    about = "between --live drawings (default: %(default)s)"
    add("--every", type=float, default=2.0, metavar="SECONDS", help=about)
    add("--tensorboard", metavar="FOLDER", help="write events for TensorBoard instead of a picture")
    return command


def _run(args):
    folders = args.runs or [""]
    if args.live:
        if not (args.every > 0 and math.isfinite(args.every)):
            raise UserError(f"--every {args.every}: expected more than 0 seconds")
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            live(folders, args.every)
        return None
    runs = [metrics.read(folder) for folder in folders]
    if args.tensorboard:
        written = tensorboard(runs, args.tensorboard)
        view = typed(f"python -m tensorboard.main --logdir {quoted(args.tensorboard)}")
        print(f"wrote {', '.join(map(printable, written))}; look with: {view}")
        return None
    for run in runs:
        if not run.values:
            raise UserError(f"{run.name}: no metrics yet, its first step is not done")
    folder = Path(runs[0].name) if len(runs) == 1 else Path(".")
    paths = [Path(args.out)] if args.out is not None else [folder / "curves.png", folder / "curves.svg"]
    if paths[0].suffix.removeprefix(".") not in FORMATS:
        raise UserError(f"--out {args.out}: expected a name that ends in .{', .'.join(FORMATS)}")
    save(runs, paths)
    print("wrote " + ", ".join(map(printable, paths)))
    return None


main = cli.command(parser, _run)
