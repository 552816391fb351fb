"""What a person sees while a run goes on: one live line in a terminal, plain lines in a file or a pipe."""

import sys
from collections import deque

from tqdm import tqdm

RECENT = 20  # steps over which rates are averaged


class Progress:
    """Shows steps as they are done.

    steps, start   the last step of the run, and how many were done before
    every          steps between plain lines where there is no terminal
    tokens, flops  tokens and operations in one step
    peak           operations a second that the machine can do, for the share shown
    """

    def __init__(self, steps, start, *, every, tokens, flops, peak):
        self.steps, self.every = steps, every
        self.tokens, self.flops, self.peak = tokens, flops, peak
        self.recent = deque(maxlen=RECENT)
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

    def step(self, step, seconds, loss):
        """Count a step that took `seconds`; returns its rates, for the metrics."""
        self.recent.append(seconds)
        rate = len(self.recent) / sum(self.recent)  # steps a second
        tokens_per_s, flops_per_s = rate * self.tokens, rate * self.flops
        self.peak = max(self.peak, flops_per_s)  # it was measured briefly, perhaps at a busy moment
        text = f"loss {loss:.4f}  {tokens_per_s:,.0f} tok/s  {flops_per_s / 1e9:.1f} GFLOP/s"
        share = f"{flops_per_s / self.peak:.0%}"
        if self.bar is not None:
            self.bar.set_description_str(f"{text} ({share})", refresh=False)
            self.bar.update(1)
        elif step % self.every == 0 or step == self.steps or step == 1:
            left = tqdm.format_interval((self.steps - step) / rate)
            print(
                f"step {step:>{len(str(self.steps))}}/{self.steps}  {text} ({share} of peak)  {left} left",
                flush=True,
            )
        return {"tokens_per_second": round(tokens_per_s, 1), "gflops": round(flops_per_s / 1e9, 3)}

    def line(self, text=""):
        """Print a line, above the live one where there is one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()
