"""Reporters: the output of a run, in this project's log format or llm.c's.

The loop calls a Reporter for each event. The base class prints nothing, for use as a library.
"""

import sys
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_auto

from gpt2.cli import fitted
from gpt2.data import corpora
from gpt2.errors import UserError, counted, printable
from gpt2.hints import quoted, typed
from gpt2.model.decoder import Decoder
from gpt2.storage import curve, metrics, runs
from gpt2.train import llmc
from gpt2.train.flags import essence
from gpt2.train.flops import Peak, gflop, training_flops
from gpt2.train.run import Rates, Run, Step

# The settings that a run prints first, and those that it leaves out
MAIN = "preset data tokenizer n_layer n_head n_embd batch_size block_size steps lr backward parallel".split()
OMITTED = ("out", "kernels", "workers")


class Reporter:
    """The interface, and the reporter that prints nothing.

    recent          steps over which rates are averaged
    sample_at_end   whether the run ends with a sample of text

        >>> class Losses(gpt2.train.Reporter):
        ...     def step(self, step):
        ...         print(f"step {step.number} of {step.run.settings.steps}")
        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> run = gpt2.train.train(settings, overwrite=True, reporter=Losses())
        step 1 of 3
        step 2 of 3
        step 3 of 3
    """

    recent = 20
    sample_at_end = True

    def begin(self, run: Run) -> None:
        """The run is about to take its first step, or the first since it was resumed."""
        s = run.settings
        self.flops = training_flops(run.model.description, s.batch_size, s.block_size) * s.accumulate
        self.tokens = s.batch_size * s.block_size * s.accumulate  # in one step, as are flops
        self.seconds: deque[float] = deque(maxlen=self.recent)

    def rates(self, seconds: float) -> Rates:
        """The rates after one more step of `seconds`."""
        self.seconds.append(seconds)
        steps = len(self.seconds) / sum(self.seconds)
        return Rates(steps, steps * self.tokens, steps * self.flops)

    def step(self, step: Step) -> None:
        """A step was taken."""

    def noted(self, run: Run, text: str) -> None:
        """The run has decided how it goes on."""

    def validated(self, run: Run, loss: float, best: bool) -> None:
        """A validation gave this loss; `best` if it is the lowest so far."""

    def sample(self, run: Run) -> str:
        """A sample of text from the current model."""
        return run.sample()

    def sampled(self, run: Run, text: str, last: bool) -> None:
        """A sample was generated; `last` at the end of the run."""

    def end(self, run: Run) -> None:
        """The last step is done, and all is saved."""

    def close(self) -> None:
        """The last call, whether the run is complete or not."""


class ProgressReporter(Reporter):
    """Shows a run in a terminal or notebook: a progress bar, validations, and the curve of its losses.

    The default of gpt2.train.train where standard output is one of these. In a notebook the curve is drawn
    again after each validation.

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=30, warmup=0)
        >>> reporter = gpt2.train.ProgressReporter()
        >>> run = gpt2.train.train(settings, overwrite=True, reporter=reporter)  # doctest: +ELLIPSIS
        best validation loss ...
    """

    def begin(self, run: Run) -> None:
        super().begin(run)
        self.figures: dict[str, str] = {}
        self.drawn: Any = None  # the curve's place in a notebook
        steps, off = run.settings.steps, not run.team.root
        self.bar = tqdm_auto(total=steps, initial=run.step, unit="step", dynamic_ncols=True, disable=off)

    def step(self, step: Step) -> None:
        self.figures |= {"epoch": f"{step.epoch:.2f}", "loss": f"{step.loss:.4f}"}
        self.bar.set_postfix(self.figures, refresh=False)
        self.bar.update(1)

    def noted(self, run: Run, text: str) -> None:
        if run.team.root:
            self.bar.write(f"step {run.step}: {text}")

    def validated(self, run: Run, loss: float, best: bool) -> None:
        self.figures["val_loss"] = f"{loss:.4f}"
        if in_notebook() and run.team.root:
            self._draw(run)

    def end(self, run: Run) -> None:
        self.bar.close()
        if not run.team.root:
            return
        if in_notebook():
            self._draw(run)
        else:
            print_curve(metrics.read(run.folder))
        if run.best is not None:
            print(f"best validation loss {run.best:.4f} nats per token, all in {printable(run.folder)}")

    def _draw(self, run):
        from IPython.display import HTML, display

        picture = HTML(curve.svg(metrics.read(run.folder)))
        if self.drawn is None:
            self.drawn = display(picture, display_id=True)
        else:
            self.drawn.update(picture)

    def close(self) -> None:
        self.bar.close()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def reporter_here() -> Reporter:
    """A ProgressReporter in a terminal or notebook, else a Reporter that prints nothing."""
    seen = in_notebook() or (sys.stdout is not None and sys.stdout.isatty())
    return ProgressReporter() if seen else Reporter()


def print_curve(read: metrics.Metrics) -> None:
    """Print the losses of a run as a line of bars between the first and the last, if there are two or more,
    and if standard output's encoding has bars.
    """
    losses = read.get("loss")[1]
    if picture := curve.bars(losses):
        with suppress(UnicodeEncodeError):
            picture.encode(sys.stdout.encoding or "ascii")
            print(f"loss {losses[0]:.2f} {picture} {losses[-1]:.2f}")


class Own(Reporter):
    """This project's log format, on standard output: steps as a progress bar in a terminal, else as lines.

    peak   what this machine can do, as gpt2.train.flops measures it
    """

    def __init__(self, peak: Peak):
        self.peak = peak
        self.unclear = False
        self.bar: Any = None

    def begin(self, run: Run) -> None:
        super().begin(run)
        _describe(run, self.flops, self.peak, sys.stdout)
        if sys.stdout.isatty():
            self.bar = tqdm(
                total=run.settings.steps,
                initial=run.step,
                file=sys.stdout,
                dynamic_ncols=True,
                leave=False,
                bar_format="{n_fmt}/{total_fmt} {bar:10} {desc} {remaining} left",
            )

    def step(self, step: Step) -> None:
        s, rates = step.run.settings, step.rates
        speed = f"{rates.flops / 1e9:.{1 if rates.flops < 1e11 else 0}f} GFLOP/s{self.share(rates.flops)}"
        passes = f"epoch {step.epoch:.2f}  " if step.epoch >= 1 else ""  # once the text has been read once
        text = f"{passes}loss {step.loss:.4f}  {rates.tokens:,.0f} tok/s  {speed}"
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.update(1)
        elif step.number % s.log_every == 0 or step.number in (1, s.steps):
            left = tqdm.format_interval((s.steps - step.number) / rates.steps)
            _line(f"step {step.number:>{len(str(s.steps))}}/{s.steps}  {text}  {left} left")
        if step.spike_from is not None:
            self.line(
                f"step {step.number}: the loss jumped to {step.loss:.4f}, from {step.spike_from:.4f} "
                f"in the steps before; gradient norm {step.grad_norm:.3g}"
            )

    def share(self, rate: float) -> str:
        """A rate as a share of the peak, as text; "" once a rate has shown that it was measured too low."""
        share = self.peak.share(rate)
        self.unclear = self.unclear or share is None
        return "" if self.unclear else f" ({share} of peak)"

    def line(self, text: str) -> None:
        """Print a line, above the progress bar if there is one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stdout)
        else:
            _line(text)

    def noted(self, run: Run, text: str) -> None:
        self.line(f"step {run.step}: {text}")

    def validated(self, run: Run, loss: float, best: bool) -> None:
        self.line(f"step {run.step}: validation loss {loss:.4f}" + (", the best so far" if best else ""))

    def sampled(self, run: Run, text: str, last: bool) -> None:
        self.line("---- sample " + "-" * 48 if last else f"---- sample at step {run.step} " + "-" * 40)
        self.line(_whole_lines(text))
        self.line("-" * 60)

    def end(self, run: Run) -> None:
        """Print the folder, and commands to try next."""
        s = run.settings
        best = f"best validation loss {run.best:.4f} nats per token"
        done = f"done: {counted(run.step, 'step')}, {best}, all in {printable(run.folder)}"
        with suppress(UserError):  # another machine of an MPI job need not see the folder
            read = metrics.read(run.folder)
            validated = read.get("val_loss")[1]
            if s.init and len(validated) > 1 and run.best == validated[0]:
                done += f"; no step was better than {s.init}, whose weights are kept as the best"
            print_curve(read)
        print(fitted(done))
        folder = quoted(run.folder)
        chat = bool(s.template)  # the text is of conversations
        prompt = "" if chat else run.prompt or run.first_word()
        with_prompt = " --chat" if chat else f' --prompt "{prompt}"' if prompt else ""
        print("more text:", typed(f"gpt2 sample --run {folder}{with_prompt}"))
        print("train on: ", typed(f"gpt2 train --resume {folder} --steps {2 * s.steps}"))
        if s.preset == "shakespeare" and s.data == "tinyshakespeare":
            about, command = "letter by letter", typed("gpt2 train --preset shakespeare-char-cpu")
        elif s.data in corpora.NAMED:
            about, command = "your own text", typed("gpt2 train --data path/to/file.txt")
        else:
            layers = f" --layers {quoted(s.layers)}" if s.layers else ""
            about = "the gradients that trained it, by hand and derived"
            command = typed(f"gpt2 explain all{layers}")
        print(f"try next, {about}: {command}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _whole_lines(text: str) -> str:
    """A sample without its incomplete last line, if that keeps more than half of it."""
    whole, _, rest = text.rpartition("\n")
    return (whole if len(whole) > len(rest) else text).strip("\n")


class LlmC(Reporter):
    """llm.c's log format on standard output; everything else goes to standard error.

    peak   what this machine can do, as gpt2.train.flops measures it
    """

    recent = 1
    sample_at_end = False

    def __init__(self, peak: Peak):
        self.peak = peak

    def begin(self, run: Run) -> None:
        super().begin(run)
        _describe(run, self.flops, self.peak, sys.stderr)
        s = run.settings
        for line in llmc.first_lines(run.model.config, run.train, run.val, s.batch_size, s.block_size):
            _line(line)

    def step(self, step: Step) -> None:
        _line(f"step {step.number - 1}: train loss {step.loss:.6f} (took {1000 * step.seconds:.6f} ms)")

    def noted(self, run: Run, text: str) -> None:
        print(f"step {run.step}: {text}", file=sys.stderr)

    def validated(self, run: Run, loss: float, best: bool) -> None:
        every = run.settings.eval_every
        if every and run.step % every == 0:
            _line(f"val loss {loss:.6f}")
        else:  # llm.c has no validation after the last step
            print(f"validation after the last step: {loss:.6f}", file=sys.stderr)

    def sample(self, run: Run) -> str:
        """A sample drawn as in llm.c: its random numbers continue from one sample to the next."""
        s = run.settings
        earlier = s.sample_tokens * max(0, run.step // max(1, s.sample_every) - 1)
        tokens = llmc.generate(Decoder(run.model), run.tokenizer.start, s.sample_tokens, earlier)
        pieces = [llmc.printable(run.tokenizer.decode_bytes([token])) for token in tokens]
        return b"".join(pieces).decode(errors="replace")

    def sampled(self, run: Run, text: str, last: bool) -> None:
        _line(f"generating:\n---\n{text}\n---")

    def end(self, run: Run) -> None:
        print(f"done: {counted(run.step, 'step')}, all in {printable(run.folder)}", file=sys.stderr)


REPORTERS = {"own": Own, "llm.c": LlmC}  # by --lines


def _line(text):
    print(text, flush=True)


def _describe(run: Run, flops: float, peak: Peak, file: TextIO) -> None:
    """Print the first lines of a run: its settings, model and data."""
    s = run.settings
    print(essence(s, MAIN, OMITTED), file=file)
    print(f"all settings: {printable(run.folder / runs.SETTINGS)}", file=file)
    for note in run.notes:
        print(fitted(f"note: {printable(note)}"), file=file)
    model = run.model
    trained = (
        "" if model.description.trained.everything else f", of which {model.flat_params.size:,} are trained"
    )
    texts = f"{len(run.train):,} training and {len(run.val):,} validation tokens"
    if (epochs := run.epochs(s.steps)) >= 0.1:
        texts += f", {counted(s.steps, 'step')}: {epochs:.1f} epochs"
    print(f"{model.num_parameters:,} parameters{trained}; {texts}", file=file)
    print(f"{gflop(flops)} a step; peak here: {peak} ({s.dtype})", flush=True, file=file)
