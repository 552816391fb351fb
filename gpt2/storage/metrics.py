"""Read metrics.jsonl: the measurements of a run, as arrays.

train.py writes a line a step {step, loss, lr, grad_norm, seconds, ...}, a line a validation {step, val_loss},
and a line a sample {step, sample}. The run may still be going on: an incomplete last line is skipped.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2.errors import UserError, os_errors
from gpt2.storage import runs


@dataclass(frozen=True)
class Metrics:
    """The measurements of one run.

    name     the run's folder, as given
    values   name -> (steps, numbers), two float64 arrays of equal length: loss and val_loss in
             nats per token, lr, grad_norm, seconds (of a step), tokens_per_second, gflops, ...
    """

    name: str
    values: dict

    def get(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, numbers) of a measurement; two empty arrays if there is none."""
        return self.values.get(name, (np.empty(0), np.empty(0)))


def read(folder: str | Path) -> Metrics:
    """The Metrics of the run in `folder`; an empty name is the newest run. Raises UserError without one."""
    folder = runs.existing(folder)
    path = folder / runs.METRICS
    with os_errors(path):
        content = path.read_bytes() if path.exists() else b""  # a run that has just begun
    points: dict[str, list] = {}
    whole = content.split(b"\n")[:-1]  # what follows the last line break is incomplete
    for number, line in enumerate(whole, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            step = float(fields.pop("step"))
            numbers = {k: float(v) for k, v in fields.items() if type(v) in (int, float)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            text = f"line {number} was not written by train.py; is it another file?"
            raise UserError(f"{path}: {text}") from None
        for name, value in numbers.items():
            points.setdefault(name, []).append((step, value))
    values = {name: tuple(np.array(pairs, np.float64).T) for name, pairs in points.items()}
    return Metrics(str(folder), values)


def without_lag(numbers: np.ndarray, span: float) -> np.ndarray:
    """The average of running means from both ends, whose lags cancel. Same length."""
    back = smoothed(numbers[::-1], span)[::-1]
    return (smoothed(numbers, span) + back) / 2


def smoothed(numbers: np.ndarray, span: float) -> np.ndarray:
    """An exponential running mean over about `span` numbers, bias-corrected as in Adam. Same length.

    Numbers that are not finite are skipped.
    """
    keep = 1.0 - 1.0 / max(span, 1.0)
    mean = weight = 0.0
    out = np.empty(len(numbers))
    for i, number in enumerate(numbers):
        if math.isfinite(number):
            mean = keep * mean + (1.0 - keep) * number
            weight = keep * weight + (1.0 - keep)
        out[i] = mean / weight if weight else np.nan
    return out
