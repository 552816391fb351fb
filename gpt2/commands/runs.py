"""List runs: steps, losses, and how their settings differ."""

import json
from pathlib import Path
from typing import Any

from gpt2 import cli
from gpt2.errors import UserError, printable
from gpt2.hints import typed
from gpt2.storage import metrics, runs
from gpt2.train.flags import read_toml
from gpt2.train.settings import Settings

EXAMPLES = (
    ("gpt2 runs", "those in runs/, the lowest validation loss first"),
    ("gpt2 runs runs/a runs/b", "two runs, and what differs between them"),
    ("gpt2 runs --json", "as JSON, with all settings"),
)
ABOUT = """List runs: steps, losses, and how their settings differ.

A setting is shown if two of the runs differ in it."""


def parser() -> cli.Parser:
    command = cli.Parser("runs", ABOUT, EXAMPLES)
    command.add_argument("run", nargs="*", help="folders of runs (default: those in runs/)")
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


def summary(folder: Path) -> dict[str, Any]:
    """{name, step, steps, loss, val_loss, settings} of a run; losses in nats per token, None without any.

    loss       of its last step
    val_loss   the lowest of its validations
    """
    settings = {**vars(Settings()), **read_toml(folder / runs.SETTINGS, Settings)}
    read = metrics.read(folder)
    (steps, losses), validations = read.get("loss"), read.get("val_loss")[1]
    return {
        "name": str(folder),
        "step": int(steps[-1]) if len(steps) else 0,
        "steps": settings["steps"],
        "loss": float(losses[-1]) if len(losses) else None,
        "val_loss": float(validations.min()) if len(validations) else None,
        "settings": settings,
    }


def differences(summaries: list[dict[str, Any]]) -> list[str]:
    """The names of the settings in which runs differ, in the order of Settings."""
    first = summaries[0]["settings"]
    return [k for k in first if k != "out" and len({str(run["settings"][k]) for run in summaries}) > 1]


def table(summaries: list[dict[str, Any]]) -> list[str]:
    """A line for each run under a heading; settings that differ come last, wrapped to fit."""
    names, room = differences(summaries), max(len(printable(run["name"])) for run in summaries)
    lines = [f"{'run':{room}}  {'steps':>11}  {'loss':>7}  {'val_loss':>8}" + "  settings" * bool(names)]
    for run in summaries:
        loss, val_loss = ("-" if run[k] is None else f"{run[k]:.4f}" for k in ("loss", "val_loss"))
        done = f"{run['step']}/{run['steps']}"
        shown = " ".join(f"{name}={printable(_short(run['settings'][name]))}" for name in names)
        line = f"{printable(run['name']):{room}}  {done:>11}  {loss:>7}  {val_loss:>8}  {shown}".rstrip()
        lines += cli.wrapped(line, cli.width() - 1)
    return lines


def _short(value):
    """A value as text; of a path its last part."""
    return Path(value).name if isinstance(value, str) and "/" in value else f"{value}"


def _run(args) -> int:
    folders = [runs.existing(folder) for folder in args.run] or sorted(
        path.parent for path in runs.RUNS.glob(f"*/{runs.SETTINGS}")
    )
    if not folders:
        raise UserError(f"no run in {runs.RUNS.absolute()}; train one with: {typed('gpt2 train')}")
    summaries = sorted(map(summary, folders), key=lambda run: (run["val_loss"] is None, run["val_loss"]))
    print(json.dumps(summaries, indent=1) if args.json else "\n".join(table(summaries)))
    return 0


main = cli.command(parser, _run)
