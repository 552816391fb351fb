"""Which value holds which memory while a program runs, and when: the memory plan as lanes and a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from ..emit.buffers import NEVER, written_spans
from ..emit.plan import Plan
from ..graph import node_names, type_text

# Kinds of what holds memory, their colours, and their labels in the picture
FORWARD, DERIVED, CALL, RESULT = "forward", "derived", "call", "result"
COLOURS = {FORWARD: "#2f81f7", DERIVED: "#d29922", CALL: "#8b949e", RESULT: "#3fb950"}
WORDS = {
    FORWARD: "a value of the function",
    DERIVED: "a value of its derivative",
    CALL: "working memory of a called function",
    RESULT: "a result, once it is written",
}


@dataclass(frozen=True)
class Holding:
    """Bytes low:high of a lane that hold something in the steps from `start` to `end`, both included."""

    kind: str
    words: str
    low: int
    high: int
    start: int
    end: int


@dataclass
class Lane:
    """A piece of memory: the arena, or a result."""

    name: str
    nbytes: int
    holdings: list[Holding] = field(default_factory=list)


def lanes(plan: Plan) -> list[Lane]:
    """The memory of a call: the arena, then the results in the order of the program."""
    names = node_names(plan.graph)
    last = max(plan.steps.end.values(), default=0)
    arena = Lane("arena", plan.arena_bytes)
    results = {o: Lane(names[o], o.nbytes) for o in plan.schedule.outputs if o.op != "input" and o.nbytes}

    def hold(lane: Lane, kind: str, words: str, low: int, nbytes: int, start: int, end: int) -> None:
        high = min(low + nbytes, lane.nbytes)  # a number's span is rounded up
        lane.holdings.append(Holding(kind, words, low, high, start, min(end, last)))

    for s in {id(s): s for s in plan.storage.values()}.values():
        first = s.holds[0]
        kind = DERIVED if first.derived else FORWARD
        lane = arena if s.lender is None else results[s.lender]
        labels = dict.fromkeys(f"{names[n]}: {type_text(n)}" for n in s.holds)
        hold(lane, kind, "; then ".join(list(labels)[:4]), s.offset, s.nbytes, s.start, s.end)
    for n, s in plan.partials.items():
        hold(arena, CALL, f"{names[n]}, block by block", s.offset, s.nbytes, s.start, s.end)
    for n, s in plan.work.items():
        hold(arena, CALL, n.attrs["body"].name, s.offset, s.nbytes, s.start, s.end)
    for (n, k), s in plan.unread.items():
        hold(arena, CALL, f"result {k} of {n.attrs['body'].name}", s.offset, s.nbytes, s.start, s.end)
    for o, spans in written_spans(plan.places, plan.kind, plan.steps, results).items():
        for s in spans:
            hold(results[o], RESULT, f"{names[o]}: {type_text(o)}", s.lo, s.hi - s.lo, s.start, NEVER)
    return [lane for lane in (arena, *results.values()) if lane.nbytes]


def held(lanes_of_call: list[Lane]) -> int:
    """The most bytes that are in use at any step. Bytes held twice, as a part and as a whole, count once."""
    steps = sorted({h.start for lane in lanes_of_call for h in lane.holdings})
    return max((sum(_covered(lane, at) for lane in lanes_of_call) for at in steps), default=0)


def _covered(lane: Lane, step: int) -> int:
    total = until = 0
    for low, high in sorted((h.low, h.high) for h in lane.holdings if h.start <= step <= h.end):
        total += max(0, high - max(low, until))
        until = max(until, high)
    return total


# ---- The picture -------------------------------------------------------------------------------------------

WIDTH, LEFT, TOP, HEIGHT, GAP, LEAST = 960, 150, 62, 440, 6, 3  # pixels; LEAST: of a lane's height
TINY = 10_000  # a result that is a smaller part than this of all has no lane
FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="currentColor"'


def drawing(plan: Plan, name: str) -> str:
    """The SVG: a lane for the arena and each result, with a box for each value while it is needed."""
    all_lanes = lanes(plan)
    steps = max(plan.steps.end.values(), default=0) + 1
    total = sum(lane.nbytes for lane in all_lanes) or 1
    scale = HEIGHT / total
    in_use = f"at most {size(held(all_lanes))} in use at once"
    heading = f"{name}: {size(total)} in arena and results, of which {in_use}"
    parts, x, y = [_text(0, 16, heading)], 0.0, float(TOP)
    for kind, words in WORDS.items():
        box = f'<rect x="{x:.0f}" y="30" width="12" height="12" fill="{COLOURS[kind]}" fill-opacity="0.75"/>'
        parts += [box, _text(x + 18, 41, words)]
        x += 40 + 6.6 * len(words)
    labelled_until = 0.0
    for lane in [lane for lane in all_lanes if lane.nbytes * TINY >= total]:
        high = max(LEAST, scale * lane.nbytes)
        parts.append(
            f'<rect x="{LEFT}" y="{y:.1f}" width="{WIDTH - LEFT}" height="{high:.1f}" fill="currentColor" '
            f'fill-opacity="0.06"><title>{escape(f"{lane.name}, {size(lane.nbytes)}")}</title></rect>'
        )
        for h in lane.holdings:
            left, right = (LEFT + (WIDTH - LEFT) * at / steps for at in (h.start, h.end + 1))
            up, down = (y + high * at / lane.nbytes for at in (h.low, h.high))
            words = escape(f"{h.words}; {size(h.high - h.low)}, steps {h.start + 1} to {h.end + 1}")
            parts.append(
                f'<rect x="{left:.1f}" y="{up:.1f}" width="{max(right - left, 0.6):.1f}" '
                f'height="{max(down - up, 0.4):.1f}" fill="{COLOURS[h.kind]}" fill-opacity="0.75" '
                f'stroke="currentColor" stroke-opacity="0.3" stroke-width="0.5"><title>{words}</title></rect>'
            )
        if y + high / 2 - 8 >= labelled_until:  # overlapping labels are left out
            labelled_until = y + high / 2 + 8
            parts.append(_text(LEFT - 8, y + high / 2 + 4, f"{lane.name}, {size(lane.nbytes)}", "end"))
        y += high + GAP
    parts.append(_text(LEFT, y + 14, f"the {steps} steps of a call"))
    frame = f'viewBox="0 0 {WIDTH} {y + 22:.0f}" style="max-width: {WIDTH}px; width: 100%"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame} fill="none">{"".join(parts)}</svg>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {FONT} text-anchor="{anchor}">{escape(words)}</text>'


def size(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"
