"""How fast a run goes, and the line that shows it: live in a terminal, plain lines in a file or a pipe."""

import sys
from collections import deque
from dataclasses import dataclass

from tqdm import tqdm

from gpt2.train.flops import Peak

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
    peak           what the machine can do, for the share shown
    """

    def __init__(self, steps: int, start: int, *, every: int, peak: Peak):
        self.steps, self.every, self.peak = steps, every, peak
        self.unclear = False
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
        speed = f"{rates.flops / 1e9:.{1 if rates.flops < 1e11 else 0}f}"
        text = f"loss {loss:.4f}  {rates.tokens:,.0f} tok/s  {speed} GFLOP/s"
        share = self.share(rates.flops)
        if self.bar is not None:
            self.bar.set_description_str(f"{text} {share}", refresh=False)
            self.bar.update(1)
        elif step % self.every == 0 or step == self.steps or step == 1:
            left = tqdm.format_interval((self.steps - step) / rates.steps)
            print(
                f"step {step:>{len(str(self.steps))}}/{self.steps}  {text} {share}  {left} left",
                flush=True,
            )

    def share(self, flops: float) -> str:
        """How much of the machine's peak a rate is. A rate near the peak says that the peak was measured
        too low, so from then on there is none to compare with."""
        share = self.peak.share(flops)
        self.unclear = self.unclear or share is None
        return "(peak unclear)" if self.unclear else f"({share} of peak)"

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
