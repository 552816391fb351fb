"""How fast a run goes, and the line that shows it: live in a terminal, plain lines in a file or a pipe."""

import sys
from collections import deque
from dataclasses import dataclass

from tqdm import tqdm

RECENT = 20  # steps over which rates are averaged


@dataclass(frozen=True)
class Rates:
    """How much is done in a second: steps, tokens, operations in matrix products."""

    steps: float
    tokens: float
    flops: float


class Clock:
    """Turns the seconds of each step into rates.

    tokens, flops  tokens and operations in one step
    recent         steps over which rates are averaged
    """

    def __init__(self, tokens: int, flops: float, recent: int = RECENT):
        self.tokens, self.flops = tokens, flops
        self.recent: deque[float] = deque(maxlen=recent)

    def rates(self, seconds: float) -> Rates:
        """The Rates, now that one more step took `seconds`."""
        self.recent.append(seconds)
        steps = len(self.recent) / sum(self.recent)
        return Rates(steps, steps * self.tokens, steps * self.flops)


class Progress:
    """Shows steps as they are done.

    steps, start   the last step of the run, and how many were done before
    every          steps between plain lines where there is no terminal
    peak           operations a second that the machine can do, for the share shown
    """

    def __init__(self, steps: int, start: int, *, every: int, peak: float):
        self.steps, self.every, self.peak = steps, every, peak
        self.bar = None
        if sys.stdout.isatty():
            self.bar = tqdm(
                total=steps,
                initial=start,
                file=sys.stdout,
                dynamic_ncols=True,
                leave=False,
                bar_format="{n_fmt}/{total_fmt} {bar:10} {desc} {remaining} left",
            )

    def step(self, step: int, loss: float, rates: Rates) -> None:
        """Show step number `step`."""
        self.peak = max(self.peak, rates.flops)  # it was measured briefly, perhaps at a busy moment
        text = f"loss {loss:.4f}  {rates.tokens:,.0f} tok/s  {rates.flops / 1e9:.1f} GFLOP/s"
        share = f"{rates.flops / self.peak:.0%}"
        if self.bar is not None:
            self.bar.set_description_str(f"{text} ({share})", refresh=False)
            self.bar.update(1)
        elif step % self.every == 0 or step == self.steps or step == 1:
            left = tqdm.format_interval((self.steps - step) / rates.steps)
            print(
                f"step {step:>{len(str(self.steps))}}/{self.steps}  {text} ({share} of peak)  {left} left",
                flush=True,
            )

    def line(self, text: str = "") -> None:
        """Print a line, above the live one where there is one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Take the live line away."""
        if self.bar is not None:
            self.bar.close()
