"""Picks the kernels of OpenBLAS that a run's products take, before NumPy loads them.

    kernels = Kernels.of(asked, resumed)      which, and a line that says why
    kernels.load()                            tell OpenBLAS, by its variable

OpenBLAS has kernels for every family of processors, and takes those that it keeps for the name of this one.
They are not always the fastest: for a Zen 4, which does AVX-512 in two halves, it takes those with AVX-512,
and the products of GPT-2 124M take 0.92 to 0.95 of the time with those for Haswell, which have AVX2; short
ones take 1.1 times as long. So the products of the run's own model are timed with each, once for a machine
and a model.

Kernels may also be at fault: on a processor with AVX-512, those for Haswell of OpenBLAS 0.3.34, which NumPy
2.5.5 brings, end the process in float64 products of many shapes. So the process that times them has done
products of varied shapes in both dtypes before, and where it ends in them, these kernels are not taken.

With other kernels the last digits of a run are others. So they are one of its settings: a run that goes on
takes those it began with. Nothing here imports NumPy, which loads OpenBLAS.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

from gpt2.autodiff import Choices, remember
from gpt2.errors import UserError
from gpt2.machine import watched
from gpt2.parallel.cores import available, launched_ranks, thread_variables, threads_each
from gpt2.storage.download import cache_folder
from gpt2.train.settings import FASTEST, OWN, PRESETS, Request, Settings

VARIABLE = "OPENBLAS_CORETYPE"
OTHERS = ("Haswell",)  # what is tried beside OpenBLAS's own choice: with AVX2, for all x86 of this decade
MAX_MEASURING_SHARE = 0.05  # of the time that the run's products are going to take, for measuring
START_S = 1.0  # for two processes that load NumPy
RATE = 1e11  # operations a second: where START_S costs too much at this rate, nothing is started
FEWEST_ROUNDS, ROUNDS = 3, 9
MARGIN = 0.97  # other kernels have to win by this much
PATIENCE_S = 120  # for a process that measures
DAYS = 30
WORDS = 50257  # GPT-2's

# Weights whose sizes a preset of the same name has
RELEASED = tuple(name for name in PRESETS if name.startswith("gpt2"))

chosen = Choices("kernels.json", (OWN, *OTHERS), days=DAYS)


class Kernels(NamedTuple):
    """What a run is to take.

    name   as OpenBLAS calls them; OWN: those that it picks; FASTEST: those that are loaded already
    why    what was measured, or nothing
    """

    name: str
    why: str = ""

    @classmethod
    def of(cls, asked: Request, resumed: Settings | None) -> "Kernels":
        """Those that a flag, the environment or the run that goes on names, else the fastest here."""
        wanted = resumed.kernels if resumed else asked.given.get("kernels", FASTEST)
        kind = resumed.parallel if resumed else asked.given.get("parallel", FASTEST)
        if wanted != FASTEST or os.environ.get(VARIABLE) or "numpy" in sys.modules:
            return cls(wanted)
        if asked.dry_run or kind == "mpi" or launched_ranks() > 1:
            return cls(OWN)
        return fastest(asdict(resumed) if resumed else asked.given)

    def load(self) -> None:
        """Have OpenBLAS take them, here and in processes that are started. Once NumPy is loaded that would be
        other kernels in those, so nothing is done."""
        if self.name == FASTEST or "numpy" in sys.modules:
            return
        if self.name == OWN:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self.name

    @property
    def note(self) -> str:
        """What a run says of them: nothing where OpenBLAS picks."""
        return f"--kernels {self.name}: {self.why}" if self.why and self.name != OWN else ""


def fastest(given: Mapping[str, Any]) -> Kernels:
    """The kernels with which the products of a run take the least time.

    given   settings, without those of the preset
    """
    s = Settings(**{**PRESETS.get(given.get("preset", "shakespeare"), {}), **given})
    gradients = s.steps * s.accumulate
    known_sizes = s.init in ("", *RELEASED)
    if s.dtype != "float32" or not known_sizes:
        return Kernels(OWN)
    if MAX_MEASURING_SHARE * gradients * operations(s) < START_S * RATE:  # too short a run
        return Kernels(OWN)
    with suppress(UserError):  # no home folder: what is found out now is found out again
        remember(cache_folder())
    model = {"preset": s.init or s.preset, "batch_size": s.batch_size, "block_size": s.block_size}
    model |= {name: given[name] for name in ("n_layer", "n_embd", "tokenizer") if name in given}
    # In another environment the same version of NumPy may come with another BLAS
    key = (sys.prefix, *(f"{name}={value}" for name, value in model.items()))
    if (known := chosen.get(key)) is not None:
        return Kernels(known, "the fastest when products were last timed here")
    with watched() as quiet:
        try:
            parts = measured(model, MAX_MEASURING_SHARE * gradients / threads_each(1, s.threads))
        except OSError:  # no process can be started
            parts = None
    if parts is None:
        return Kernels(OWN)
    best = min(parts, key=parts.__getitem__, default=OWN)
    if best != OWN and parts[best] >= MARGIN:
        best = OWN
    chosen.put(key, best, keep=quiet())
    part = parts.get(best, 1.0)
    return Kernels(best, f"products take {part:.2f} of the time that they take with OpenBLAS's own choice")


def operations(s: Settings) -> int:
    """About as many as the products of a gradient have, or the least that a released model's may have."""
    L, C = (12, 768) if (s.init or s.preset) in RELEASED else (s.n_layer, s.n_embd)
    return 6 * s.batch_size * s.block_size * (12 * L * C * C + words(s.tokenizer) * C)


def words(tokenizer: str) -> int:
    """About as many words as this tokenizer has."""
    size = tokenizer.removeprefix("bpe:")
    return int(size) if size.isdecimal() else {"byte": 257, "char": 100}.get(tokenizer, WORDS)


def measured(model: Mapping[str, Any], price: float) -> dict[str, float] | None:
    """The time that the products of a gradient take with other kernels, in parts of that with OpenBLAS's own.

    price   how many times as long as these products, on one thread, measuring may take

    Without those kernels that cannot be had; None where measuring costs too much. They take turns on
    each core, and each product counts at its best: other programs slow now the one and now the other.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        timings = [stack.enter_context(Timing(name, model)) for name in (OWN, *OTHERS)]
        cores = available() or [None]
        for n in range(1, ROUNDS + 1):
            first = time.perf_counter()
            for timing in timings:
                timing.round(cores[n % len(cores)])
            own, *others = timings
            now, budget = time.perf_counter(), price * own.seconds
            if n < FEWEST_ROUNDS and now - began + (FEWEST_ROUNDS - n) * (now - first) > budget:
                return None
            if now - began + (now - first) > budget or not any(other.seconds for other in others):
                break
    if not own.seconds:  # it has ended: out of memory, or killed after PATIENCE_S
        return None
    return {other.name: other.seconds / own.seconds for other in others if other.seconds}


class Timing:
    """A process with kernels of its own that times products (gpt2.train.products), round by round.

    It ends with the block, after PATIENCE_S seconds, or at once where OpenBLAS does not take these kernels.
    """

    def __init__(self, name: str, model: Mapping[str, Any]):
        self.name = name
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **thread_variables(1),
            **({} if name == OWN else {VARIABLE: name}),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpt2.train.products", name, json.dumps(model)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.least: list[float] = []
        self.patience = threading.Timer(PATIENCE_S, self.process.kill)

    def __enter__(self) -> Self:
        self.patience.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.patience.cancel()
        self.process.kill()
        self.process.communicate()

    def round(self, core: int | None) -> None:
        """Time each product once, on this core: others may have slowed one more than another."""
        try:
            self.process.stdin.write(f"{'' if core is None else core}\n")
            self.process.stdin.flush()
            now = [float(text) for text in self.process.stdout.readline().split()]
        except (OSError, ValueError):
            now = []
        self.least = [*map(min, self.least, now)] if self.least else now

    @property
    def seconds(self) -> float:
        """Of all products of a gradient, each at its best; 0 where the process has ended."""
        return sum(self.least)
