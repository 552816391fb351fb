"""Run: a training run in its folder, its steps and its files; Step: the figures of a step."""

import dataclasses
import html
import json
import math
import os
import re
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpt2.data.conversations import Examples
from gpt2.data.orders import ORDERS
from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.hints import quoted, typed
from gpt2.model.decoder import SlowGeneration
from gpt2.model.description import described
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW, cosine_lr
from gpt2.model.parameters import unflatten
from gpt2.parallel.split import counted
from gpt2.parallel.team import Team
from gpt2.sampling import generate
from gpt2.storage import curve, metrics, runs
from gpt2.storage.files import write_atomically
from gpt2.storage.lock import Lock
from gpt2.train.flags import to_toml
from gpt2.train.settings import Settings
from gpt2.weights import checkpoint

RECENT = 32  # losses that a new one is compared with
FEWEST = 16  # least number of losses to compare with
FACTOR = 8.0  # of the usual deviation from the median
LEAST = 0.1  # of the median: less is not a spike, however small the deviation


class Spikes:
    """Detects steps whose loss is far above the previous ones. That is not an error: many runs recover, but
    it should be noticed before the end.

    of(loss)      the median of the recent losses if this one is a spike, else None. A spike is not counted
                  among the recent ones, unless losses stay there: then it is their new level.
    state()       for a checkpoint, so that a resumed run detects the same spikes
    load_state()  restores it; raises ValueError, TypeError, KeyError or OverflowError if it is invalid
    """

    def __init__(self) -> None:
        self.recent = deque(maxlen=RECENT)
        self.above = []  # spikes in a row

    def of(self, loss: float) -> float | None:
        if len(self.recent) >= FEWEST:
            usual = statistics.median(self.recent)
            spread = 1.4826 * statistics.median(abs(x - usual) for x in self.recent)  # a deviation, if normal
            if loss - usual > max(FACTOR * spread, LEAST * abs(usual)):
                self.above.append(loss)
                if len(self.above) >= FEWEST:
                    self.recent.clear()
                    self.recent.extend(self.above)
                    self.above.clear()
                return usual
        self.above.clear()
        self.recent.append(loss)
        return None

    def state(self) -> dict[str, list[float]]:
        return {"recent": list(self.recent), "above": list(self.above)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        recent, above = ([float(loss) for loss in state[name]] for name in ("recent", "above"))
        if len(recent) > RECENT or len(above) >= FEWEST or not all(map(math.isfinite, recent + above)):
            raise ValueError("these are not the losses of a Spikes")
        self.recent = deque(recent, maxlen=RECENT)
        self.above = above


@dataclass(eq=False, repr=False)
class Run:
    """A run in its folder, as resolve() makes it: the model and everything that changes as it is trained.

    settings         Settings, as saved with the run, without `auto` and `fastest`
    model, optimizer, tokenizer   gpt2.GPT2, gpt2.AdamW, and the Tokenizer of its text
    train, val       the tokens of the two parts, (count,) integers
    origin           the note about frozen base weights in a lasting file, which checkpoints need not hold
    notes            the decisions, one line each
    fingerprint      a function that returns the fingerprint of the encoded corpus; computed on the first call
    step             optimizer steps done
    best, validated  lowest validation loss in nats per token, and the step of the last validation, or None
    folder           of its files, once it has begun

    `begin` creates the files of gpt2.storage.runs; `load` restores the last checkpoint.

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> run = gpt2.train.train(settings, overwrite=True)
        >>> run.step, run.model.config.n_layer, run.settings.batch_size
        (3, 4, 8)
    """

    settings: Settings
    tokenizer: Tokenizer
    train: np.ndarray
    val: np.ndarray
    model: GPT2
    optimizer: AdamW
    team: Team
    origin: dict[str, str] | None
    notes: list[str]
    fingerprint: Callable[[], dict[str, int]]

    def __post_init__(self) -> None:
        self.order = ORDERS[self.settings.order]
        s = self.settings
        self.loader = self.order.loader(self.train, s.batch_size, s.block_size, s.seed)
        self.folder: Path | None = None
        self.step = 0
        self.spikes = Spikes()
        self.best: float | None = None  # lowest validation loss so far, nats per token
        self.validated: int | None = None  # the step of the last validation
        self.worse = 0  # validations in a row that were no better than the best
        self.lock: Lock | None = None  # of the folder, once there is one
        self.metrics: BinaryIO | None = None  # an open file, once the run begins
        self.stopping = False

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best validation loss {self.best:.4f}"
        return f"<Run in {self.folder}: step {self.step} of {self.settings.steps}{best}>"

    def _repr_html_(self) -> str:
        """For notebooks: the losses so far."""
        known = self.folder is not None and (self.folder / runs.METRICS).exists()
        picture = curve.svg(metrics.read(self.folder)) if known else ""
        return f"<p>{html.escape(repr(self))}</p>{picture}"

    def stop(self) -> None:
        """Have the loop end after this step, and save the run."""
        self.stopping = True

    def close(self) -> None:
        """Release the folder."""
        if self.metrics is not None:
            self.metrics.close()
        if self.lock is not None:
            self.lock.release()

    def epochs(self, steps: int) -> float:
        """Passes over the training text in so many steps."""
        s = self.settings
        sequences = steps * s.batch_size * s.accumulate
        if isinstance(self.train, Examples):
            return sequences / self.loader.pieces
        return sequences * s.block_size / len(self.train)

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` validations were no better than the best before."""
        return 0 < self.settings.patience <= self.worse

    # -- what a step computes

    def train_step(self) -> dict[str, float]:
        """One optimizer step; returns its loss, learning rate and gradient norm."""
        s = self.settings
        batches = [self.loader.next_batch() for _ in range(s.accumulate)]
        lr = cosine_lr(self.step, lr=s.lr, min_lr=s.min_lr, warmup=s.warmup, steps=s.steps)
        try:
            rate = lr if s.optimizer == "adamw" else s.muon_lr * (lr / s.lr)  # both on one schedule
            loss, norm = self.team.step(batches, rate, clip=s.clip or None)
        except UserError as error:  # from --detect-anomaly
            raise UserError(f"step {self.step + 1}: {error.as_flag}") from None
        problem = ""
        if not math.isfinite(loss):
            place = next(filter(None, (self.model.first_non_finite(*batch) for batch in batches)), None)
            problem = f"the loss is {loss}; first output that is not finite: {place}"
        elif not math.isfinite(norm):
            problem = f"the gradient's norm is {norm}, the loss {loss:.4f}"
        if problem:
            raise UserError(
                f"step {self.step + 1}: {problem}; try a lower --lr than {s.lr:g}, or a longer --warmup. "
                "--detect-anomaly names the line"
            )
        self.step += 1
        return {"loss": loss, "lr": lr, "grad_norm": norm}

    def validation_loss(self) -> float:
        """Mean loss over the validation split, or over eval_batches of it, nats per token."""
        s = self.settings
        batches = self.order.validation(self.val, s.batch_size, s.block_size, s.eval_batches)
        total, count = 0.0, 0
        for inputs, targets in batches:
            here = counted(targets)
            total += self.team.loss(inputs, targets) * here
            count += here
        return total / count

    @property
    def prompt(self) -> str:
        """The prompt of samples: a definition if the text is Python, else nothing."""
        return "def " if self.settings.data == "stdlib" else ""

    def first_word(self) -> str:
        """The first word of the validation text; "" if it does not begin with text."""
        found = re.search(r"\w+", "".join(self.tokenizer.stream(self.val[:64])).replace("\ufffd", " "))
        return found[0] if found else ""

    def sample(self) -> str:
        """A sample of text, the same for the same weights."""
        s, start = self.settings, [self.tokenizer.start, *map(int, self.tokenizer.encode(self.prompt))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowGeneration)  # it is in the notes
            tokens = generate(self.model, start, s.sample_tokens, temperature=0.8, top_k=200, seed=s.seed)
            return self.prompt + "".join(self.tokenizer.stream(tokens))

    # -- files

    def take(self, folder: Path | None = None, overwrite: bool = False) -> Path:
        """Lock the folder of this run, by default a new one, and return it."""

        def on_root():
            chosen = folder or runs.new(self.settings.preset, self.settings.out)
            self.lock = Lock(chosen)
            if folder is None:
                runs.clear(chosen, overwrite)
            return chosen

        return self.team.group.from_root(on_root)

    def begin(self, folder: Path) -> None:
        """Write settings and tokenizer, and open the metrics."""
        self.folder = folder
        self.settings = dataclasses.replace(self.settings, out=str(folder))
        if not self.team.root:
            return  # the files are the root's
        if self.model.description.file is not None:
            self.model.description.file.remember()
        write_atomically(folder / runs.SETTINGS, to_toml(self.settings).encode())
        self.tokenizer.save(folder / runs.TOKENIZER)
        with writing(folder / runs.METRICS):
            # not buffered: after a failed write on a full disk nothing is written at close
            self.metrics = open(folder / runs.METRICS, "ab", buffering=0)

    def record(self, **fields: Any) -> None:
        """Add a line to metrics.jsonl."""
        if not self.team.root:
            return
        line = json.dumps(fields).encode() + b"\n"
        with writing(self.folder / runs.METRICS):
            while line:  # a disk that is nearly full takes only a part
                line = line[self.metrics.write(line) :]

    def save(self) -> None:
        """Write last.safetensors: parameters, moments, and all state that a resumed run needs.

        Raises UserError, without writing, if the weights are not finite or give a loss that is not.
        """
        s, optimizer = self.settings, self.optimizer
        if self.validated != self.step:
            batch = next(iter(self.order.validation(self.val, s.batch_size, s.block_size, s.eval_batches)))
            if not math.isfinite(loss := self.team.loss(*batch)):
                place = self.model.first_non_finite(*batch)
                raise self._spoilt(f"the loss is {loss}; first output that is not finite: {place}")
        arrays = checkpoint.model_arrays(self.model, trained=self.origin is not None)
        gathered = self.team.moments()
        if self.team.root:
            for name, flat in zip(("m", "v"), gathered):
                without = optimizer.one_moment if name == "v" else ()
                for tensor, array in unflatten(flat, self.model.description).items():
                    if tensor not in without:
                        arrays[f"{optimizer.name}.{name}.{tensor}"] = array
            with writing(self.folder / runs.METRICS):
                os.fsync(self.metrics.fileno())
            self._save(
                runs.LAST,
                arrays,
                {
                    "step": self.step,
                    "turn": runs.next_turn(self.folder),
                    f"{optimizer.name}.t": optimizer.t,
                    "loader": self.loader.state(),
                    "best": self.best,
                    "validated": self.validated,
                    "worse": self.worse,
                    "spikes": self.spikes.state(),
                    "metrics_bytes": self.metrics.tell(),
                    "corpus": self.fingerprint(),
                    "settings": dataclasses.asdict(s),
                },
            )
        self.team.group.wait_for_root()

    def _spoilt(self, problem):
        """The UserError for weights that are not saved."""
        saved = "the last checkpoint is intact; " if (self.folder / runs.LAST).exists() else ""
        return UserError(
            f"step {self.step} has spoilt the weights, and they are not saved: {problem}; {saved}try a lower "
            f"--lr than {self.settings.lr:g}, or a longer --warmup"
        )

    def _save(self, name, arrays, state):
        """Write a checkpoint of the model, its tokenizer and these arrays."""
        if problem := checkpoint.not_finite(arrays):
            raise self._spoilt(problem.removeprefix("params."))
        arrays_of_tokenizer, state_of_tokenizer = self.tokenizer_contents
        model = checkpoint.model_state(self.model, self.origin)
        checkpoint.save(
            self.folder / name, {**arrays, **arrays_of_tokenizer}, {**model, **state_of_tokenizer, **state}
        )

    def save_best(self) -> None:
        """Write best.safetensors: only the weights, a third of the size."""
        if self.team.root:
            arrays = checkpoint.model_arrays(self.model, trained=self.origin is not None)
            self._save(runs.BEST, arrays, {"step": self.step, "val_loss": self.best})
        self.team.group.wait_for_root()

    def load(self, folder: Path) -> None:
        """Restore last.safetensors, and truncate metrics.jsonl to the lines written before it."""
        path = folder / runs.LAST
        if not path.exists():
            raise UserError(f"{folder} has no checkpoint yet; start over with --overwrite")
        arrays, state = checkpoint.load(path)
        self._check_corpus(path, state)  # first: with another vocabulary the arrays have other shapes as well
        self._load_arrays(path, arrays, state)
        try:
            best, validated = state["best"], state["validated"]
            self.best = None if best is None else float(best)
            self.validated = None if validated is None else int(validated)
            self.worse = int(state.get("worse", 0))
            self.worse = 0 if self.exhausted else self.worse  # whoever resumes it wants more
            self.step, self.optimizer.t = int(state["step"]), int(state[f"{self.optimizer.name}.t"])
            self.loader.load_state(state["loader"])
            self.spikes.load_state(state["spikes"])
            metrics_bytes = int(state["metrics_bytes"])
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            raise no_training_state(path) from None
        metrics = folder / runs.METRICS
        if self.team.root and metrics.exists() and metrics.stat().st_size > metrics_bytes:
            with writing(metrics):
                os.truncate(metrics, metrics_bytes)

    def _load_arrays(self, path, arrays, state):
        """Fill parameters and moments from those of a checkpoint. Raises UserError if they do not fit."""
        d = self.model.description
        described(self.model.config, state, path, d.options)  # raises if the layers differ
        m, v = self.team.moments()
        optimizer = self.optimizer
        if f"{optimizer.name}.t" not in state and any(name.endswith(".t") for name in state):
            other = next(name for name in state if name.endswith(".t")).removesuffix(".t")
            raise UserError(
                f"{path}: was trained with --optimizer {other}, whose moments {optimizer.name} cannot use; "
                f"go on with it, or start a new run from its weights: --init {path.parent}"
            )
        checkpoint.check_finite(path, {name.removeprefix("params."): array for name, array in arrays.items()})
        checkpoint.check_shapes(path, arrays, d, "params.", trained="base" in state)
        if "base" in state:
            checkpoint.fill(unflatten(self.model.flat_params, d), arrays, "params.")
        else:
            checkpoint.fill(self.model.params, arrays, "params.")
        for prefix, flat, without in (("m.", m, ()), ("v.", v, optimizer.one_moment)):
            prefix = f"{optimizer.name}.{prefix}"
            checkpoint.check_shapes(path, arrays, d, prefix, trained=True, without=without)
            tensors = {name: a for name, a in unflatten(flat, d).items() if name not in without}
            checkpoint.fill(tensors, arrays, prefix)
        self.team.put_moments(m, v)

    @cached_property
    def tokenizer_contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the state of the tokenizer in a checkpoint."""
        return checkpoint.tokenizer_contents(self.tokenizer)

    def _check_corpus(self, path, state):
        """Raise UserError if the checkpoint at `path` was written with another text, or other tokens."""
        try:
            saved, before = state["corpus"], state.get("settings", {}).get("data", self.settings.data)
        except (KeyError, TypeError, AttributeError):
            raise no_training_state(path) from None
        if saved == self.fingerprint():
            return
        data = self.settings.data
        if data != before:
            raise UserError(
                f"--data {data}: the run in {path.parent} has another text ({before}), and a resumed run "
                "keeps it; start a new run instead"
            )
        before, now = (dict(map(tuple, f.get("files", ()))) for f in (saved, self.fingerprint()))
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        which = f"{', '.join(changed[:5])} of {data}" if changed else data
        raise UserError(
            f"{which}: text or tokens have changed since {path} was written; a resumed run needs "
            "the same ones"
        )


@dataclass(frozen=True)
class Rates:
    """Rates per second: steps, tokens, operations in matrix products."""

    steps: float
    tokens: float
    flops: float


@dataclass(frozen=True)
class Step:
    """The result of a training step.

    number      counted from 1
    loss        of its batches, before the update, in nats per token
    lr          learning rate
    grad_norm   of the gradient before clipping
    seconds     duration
    rates       tokens and operations a second, averaged over the last steps
    spike_from  the usual loss, if this one is far above it
    val_loss    validation loss after the step, in nats per token, if one was due
    epoch       passes over the training text so far: 0.5 is half of it
    run         the Run: its model, tokenizer and folder

        >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0)
        >>> step = next(gpt2.train.steps(settings, overwrite=True))
        >>> step.number, step.loss > 0, step.grad_norm > 0
        (1, True, True)
    """

    number: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    rates: Rates
    spike_from: float | None = None
    val_loss: float | None = None
    epoch: float = 0.0
    run: Run | None = field(default=None, repr=False)


def no_training_state(path: Path) -> UserError:
    """The UserError for a checkpoint without the state that a resumed run needs."""
    return UserError(f"{path}: holds no training state, expected a checkpoint of train.py")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError to the UserError for a file of the run that cannot be written."""
    try:
        yield
    except OSError as error:
        advice = ""
        if path.with_name(runs.LAST).exists():
            resume = typed(f"gpt2 train --resume {quoted(path.parent)}")
            advice = f"; the last checkpoint is intact. Fix the cause, then resume with: {resume}"
        raise UserError(f"cannot write {path}: {error.strerror or error}{advice}") from None
