"""The losses of a run as a small picture: an SVG for a notebook, a line for a terminal.

Text and lines of the SVG take the colour of the page, so it is readable on light and dark.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gpt2.storage.metrics import Metrics, without_lag

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 240, 48, 16, 28, 34  # pixels
VALIDATION = "#2f81f7"  # a colour readable on white and on black


BARS = "▁▂▃▄▅▆▇█"


def bars(numbers: ArrayLike, columns: int = 40) -> str:
    """Numbers as a row of bars, each the mean of a share of them; "" if fewer than two are finite.

    >>> bars([3.0, 2.0, 1.5, 1.2, 1.1, 1.0])
    '█▄▂▁▁▁'
    """
    finite = np.asarray(numbers, float)
    finite = finite[np.isfinite(finite)]
    if len(finite) < 2:
        return ""
    means = np.array([part.mean() for part in np.array_split(finite, min(columns, len(finite)))])
    low, high = means.min(), means.max()
    heights = (means - low) / (high - low or 1.0) * (len(BARS) - 1)
    return "".join(BARS[int(height)] for height in heights)


def svg(run: Metrics) -> str:
    """Training losses faint, their running mean on top, validations as points; "" without numbers."""
    steps, losses = (numbers[np.isfinite(run.get("loss")[1])] for numbers in run.get("loss"))
    at, checks = (numbers[np.isfinite(run.get("val_loss")[1])] for numbers in run.get("val_loss"))
    everything = np.concatenate([losses, checks])
    if not len(everything):
        return ""
    low, high = float(everything.min()), float(everything.max())
    last = float(max(1.0, *steps[-1:], *at[-1:]))
    ticks = round_numbers(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1], low + 1e-9)

    def points(xs, ys):
        x = LEFT + (WIDTH - LEFT - RIGHT) * xs / last
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - ys) / (high - low)
        return list(zip(x.round(1), y.round(1)))

    parts = [_text(0, 16, f"{run.name}: loss, nats per token", "start")]
    for tick in ticks:
        ((_, y),) = points(np.zeros(1), np.array([tick]))
        parts.append(f'<path d="M{LEFT},{y}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    for tick in round_numbers(0.0, last):
        ((x, _),) = points(np.array([tick]), np.array([low]))
        parts.append(_text(x, HEIGHT - 12, f"{tick:g}", "middle"))
    parts.append(_line(points(steps, losses), "currentColor", 0.3, 1))
    parts.append(_line(points(steps, without_lag(losses, len(losses) / 50)), "currentColor", 0.9, 1.6))
    parts.append(_line(points(at, checks), VALIDATION, 1, 2))
    parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{VALIDATION}"/>' for x, y in points(at, checks)]
    if len(checks):
        parts.append(_text(WIDTH - RIGHT, TOP + 8, f"validation {checks[-1]:.4g}", "end", VALIDATION))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" style="max-width: {WIDTH}px; width: 100%"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="none">{"".join(parts)}</svg>'


def round_numbers(low: float, high: float) -> list[float]:
    """About five round numbers from low to high; one at least."""
    rough = max((high - low) / 5, 1e-12)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)] or [low]


def _line(points: Sequence, colour: str, opacity: float, width: float) -> str:
    if len(points) < 2:
        return ""
    path = "M" + "L".join(f"{x},{y}" for x, y in points)
    return f'<path d="{path}" stroke="{colour}" stroke-opacity="{opacity}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    style = 'font-family="sans-serif" font-size="12"'
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x}" y="{y}" {style} text-anchor="{anchor}" fill="{colour}">{text}</text>'
