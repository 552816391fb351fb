"""Plots as SVG text: lines over numbers, or rows of dots, with quartiles. No scripts, no fonts, no network.

Colours are classes (s0, s1, ...), which the page defines for light, dark and paper; each series has a marker
of its own as well, so that nothing depends on colour alone.
"""

import html
import math

from bench.studies.numbers import number, scale_of
from bench.studies.study import BYTES, COUNT, SECONDS, Sample

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 46
ROW = 20  # height of one dot's row
LETTER = 9.4  # width of a letter at the size that page.css gives it on a phone
COLOURS = 8
MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-4,-4h8v8h-8z",
    "M0,-5L5,4H-5z",
    "M0,-5L5,0L0,5L-5,0z",
    "M-5,-4h10L0,5z",
    "M-4,-1h3v-3h2v3h3v2h-3v3h-2v-3h-3z",
    "M-5,-2h10v4h-10z",
    "M-2,-5h4v10h-4z",
)


def svg(plot):
    """The plot as an <svg> element."""
    points = [p for series in plot.series for p in _points(series)]
    if not points:
        return ""
    return _rows(plot, points) if plot.ticks else _lines(plot, points)


def _points(series):
    """(x, low, middle, high) of a series, gaps left out."""
    found = []
    for x, y in zip(series.xs, series.ys):
        if isinstance(y, Sample):
            found.append((x, y.q1, y.median, y.q3))
        elif y is not None and math.isfinite(y):
            found.append((x, y, y, y))
    return found


# ---- Scales ------------------------------------------------------------------------------------------------


class Axis:
    """Numbers to pixels, linear or logarithmic, with round numbers as ticks."""

    def __init__(self, values, start, end, log):
        self.start, self.end = start, end
        self.log = log and min(values) > 0
        if self.log:
            low, high = math.log10(min(values)), math.log10(max(values))
            margin = max(0.05 * (high - low), 0.05)
            self.low, self.high = low - margin, high + margin
        else:
            self.low = min(0.0, min(values))
            self.high = max(values) * 1.05 if max(values) > 0 else 1.0

    def place(self, value):
        return math.log10(max(value, 1e-300)) if self.log else value

    def __call__(self, value):
        return self.start + (self.place(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        if not self.log:
            return steps(self.low, self.high)
        if self.high - self.low < 1:  # less than a decade
            return steps(10**self.low, 10**self.high)
        return decades(self.low, self.high)


def steps(low, high):
    """About five round numbers from low to high."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= rough)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def decades(low, high):
    """Powers of ten from 10**low to 10**high, and numbers between them where those are few."""
    for parts in ((1,), (1, 3), (1, 2, 5)):
        found = [
            k * 10.0**e
            for e in range(math.floor(low), math.ceil(high) + 1)
            for k in parts
            if low <= math.log10(k * 10.0**e) <= high
        ]
        if len(found) >= 3:
            break
    return found[:: math.ceil(len(found) / 7)]


def is_ratio(plot):
    """Whether what is drawn is one time by another: then 1 is where they are equal."""
    return plot.y.startswith("ratio of") or " / time" in plot.y


# ---- Drawing -----------------------------------------------------------------------------------------------


def _lines(plot, points):
    x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, plot.log_x)
    if not plot.log_x:
        x.low = min(p[0] for p in points) - 0.02 * (x.high - min(p[0] for p in points))
    y = Axis([v for p in points for v in p[1:]], HEIGHT - BOTTOM, TOP, plot.log_y)
    parts = [_horizontal(y(t), _value(t, plot.y)) for t in y.ticks()]
    parts += [_text(x(t), HEIGHT - BOTTOM + 16, _value(t, plot.x), "middle") for t in x.ticks()]
    if is_ratio(plot) and y.low < y.place(1.0) < y.high:
        parts.append(
            f'<line class="one" x1="{LEFT}" y1="{y(1.0):.1f}" x2="{WIDTH - RIGHT}" y2="{y(1.0):.1f}"/>'
        )
    for i, series in enumerate(plot.series):
        parts += _curve(i, series, x, y, plot)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, _axis(plot.x), "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(14,{middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(_axis(plot.y))}</text>"
    )
    return _element(plot, HEIGHT, parts)


def _curve(i, series, x, y, plot):
    found = _points(series)
    path = "M" + "L".join(f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in found)
    parts = [f'<path class="line s{i % COLOURS}" d="{path}"/>'] if len(found) > 1 else []
    for at, low, middle, high in found:
        if low != high:
            parts.append(_line(i, x(at), y(low), x(at), y(high)))
        tip = f"{series.name}: {_value(middle, plot.y)} at {_value(at, plot.x)}"
        parts.append(_marker(i, x(at), y(middle), tip))
    return parts


def _rows(plot, points):
    """One group of rows a tick, one row a series; values to the right."""
    shown = len(plot.series)
    left = min(WIDTH // 2, 24 + LETTER * max(map(len, plot.ticks)))
    group = ROW * min(shown, 2) + 10 if shown < 3 else 12 * shown + 10
    height = TOP + group * len(plot.ticks) + BOTTOM
    x = Axis([v for p in points for v in p[1:]], left, WIDTH - RIGHT, plot.log_y)
    bottom = height - BOTTOM
    parts = []
    for t in x.ticks():
        parts.append(f'<line class="grid" x1="{x(t):.1f}" y1="{TOP}" x2="{x(t):.1f}" y2="{bottom}"/>')
        parts.append(_text(x(t), bottom + 16, _value(t, plot.y), "middle"))
    if is_ratio(plot) and x.low < x.place(1.0) < x.high:
        parts.append(f'<line class="one" x1="{x(1.0):.1f}" y1="{TOP}" x2="{x(1.0):.1f}" y2="{bottom}"/>')
    for k, name in enumerate(plot.ticks):
        parts.append(_text(left - 8, TOP + group * (k + 0.5) + 4, name, "end"))
        if k:
            y = TOP + group * k
            parts.append(f'<line class="grid" x1="0" y1="{y}" x2="{WIDTH}" y2="{y}"/>')
    for i, series in enumerate(plot.series):
        for place, low, middle, high in _points(series):
            row = TOP + group * place + 5 + (group - 10) * (i + 0.5) / shown
            parts.append(_line(i, x(low), row, x(high), row))
            tick = plot.ticks[int(place)]
            parts.append(_marker(i, x(middle), row, f"{series.name}, {tick}: {_value(middle, plot.y)}"))
    parts.append(_text((left + WIDTH - RIGHT) / 2, height - 10, _axis(plot.y), "middle"))
    return _element(plot, height, parts)


def _element(plot, height, parts):
    label = html.escape(f"{plot.title}: {_axis(plot.y)} over {_axis(plot.x)}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _value(x, axis):
    """A number on this axis, with its unit if the report scales that; without zeros at the end."""
    scale, unit = scale_of(x, axis if axis in (SECONDS, BYTES) else COUNT)
    text = f"{x / scale:,.4g}" if abs(x / scale) < 1e4 else number(x / scale)
    return f"{text} {unit}" if unit else text


def _axis(name):
    """What stands at an axis: a unit that the report scales says so at its ticks."""
    return {SECONDS: "time", BYTES: "bytes"}.get(name, name)


def legend(plot):
    """The names of the series beside their markers, as HTML; they break lines where there is no room."""
    if len(plot.series) < 2:
        return ""
    keys = [
        f'<li><svg viewBox="-7 -7 14 14" aria-hidden="true">{_marker(i, 0, 0)}</svg>'
        f"{html.escape(series.name)}</li>"
        for i, series in enumerate(plot.series)
    ]
    return f'<ul class="legend">{"".join(keys)}</ul>'


def _text(x, y, text, anchor):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _horizontal(y, label):
    return f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>' + _text(
        LEFT - 6, y + 4, label, "end"
    )


def _line(i, x1, y1, x2, y2):
    return f'<line class="line s{i % COLOURS}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _marker(i, x, y, title=""):
    tip = f"<title>{html.escape(title)}</title>" if title else ""
    place, shape = f"translate({x:.1f},{y:.1f})", MARKERS[i % len(MARKERS)]
    return f'<path class="mark s{i % COLOURS}" transform="{place}" d="{shape}">{tip}</path>'
