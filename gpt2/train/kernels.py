"""Choose the kernels of OpenBLAS for a run's matrix products, before NumPy loads it.

    kernels = Kernels.of(request)    which, and a line that says why
    kernels.load()                            set OpenBLAS's environment variable

OpenBLAS picks kernels by the family of the processor, and they are not always the fastest (docs/parallel.md).
So the products of the run's model are timed with each, once per machine and model. The process that times
them first computes products of varied shapes in both dtypes; kernels that crash are not used.

Other kernels change the last digits of a run. So they are one of its settings, which a resumed run keeps.
Nothing here imports NumPy, which loads OpenBLAS.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from gpt2.autodiff import Choices, remember
from gpt2.errors import UserError
from gpt2.machine import available, watched
from gpt2.model import RELEASED
from gpt2.parallel.cores import launched_ranks, thread_variables, threads_each
from gpt2.storage.download import cache_folder
from gpt2.train.settings import FASTEST, OWN, PRESETS, Request, Settings

VARIABLE = "OPENBLAS_CORETYPE"
OTHERS = ("Haswell",)  # timed besides OpenBLAS's own choice: AVX2, for all x86 of this decade
MAX_MEASURING_SHARE = 0.05  # of the time of the run's products
START_S = 1.0  # for two processes that load NumPy
RATE = 1e11  # operations per second, to decide whether START_S is worth it
FEWEST_ROUNDS, ROUNDS = 3, 9
MARGIN = 0.97  # other kernels must win by this much
TIMEOUT_S = 120  # of a process that measures
DAYS = 30
GPT2_VOCABULARY = 50257
WIDEST = 4096  # channels of models that are timed: the products of wider ones take gigabytes

chosen = Choices("kernels.json", (OWN, *OTHERS), days=DAYS)


class Kernels(NamedTuple):
    """The kernels for a run.

    name   in OpenBLAS; OWN: its own choice; FASTEST: those that are already loaded
    why    the measurement, or ""
    """

    name: str
    why: str = ""

    @classmethod
    def of(cls, request: Request) -> "Kernels":
        """Those of a flag, the environment or the resumed run, else the fastest here."""
        wanted = request.setting("kernels")
        if wanted != FASTEST or os.environ.get(VARIABLE) or "numpy" in sys.modules:
            return cls(wanted)
        if request.dry_run or request.setting("parallel") == "mpi" or launched_ranks() > 1:
            return cls(OWN)
        return fastest(asdict(request.resumed) if request.resumed else request.given)

    def load(self) -> None:
        """Set OpenBLAS's variable, for this process and its children. Does nothing once NumPy is loaded: the
        children would get other kernels than this process."""
        if self.name == FASTEST or "numpy" in sys.modules:
            return
        if self.name == OWN:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self.name

    @property
    def note(self) -> str:
        """The line for the log; "" for OpenBLAS's own choice."""
        return f"--kernels {self.name}: {self.why}" if self.why and self.name != OWN else ""


def fastest(given: Mapping[str, Any]) -> Kernels:
    """The kernels with which the products of a run take the least time.

    given   settings without those of the preset
    """
    s = Settings(**{**PRESETS.get(given.get("preset", "shakespeare"), {}), **given})
    gradients = s.steps * s.accumulate
    known_sizes = s.init in ("", *RELEASED)
    if s.dtype != "float32" or not known_sizes or s.n_embd > WIDEST:
        return Kernels(OWN)
    if MAX_MEASURING_SHARE * gradients * operations(s) < START_S * RATE:  # too short a run
        return Kernels(OWN)
    with suppress(UserError):  # no home folder: nothing is cached
        remember(cache_folder())
    model = {"preset": s.init or s.preset, "batch_size": s.batch_size, "block_size": s.block_size}
    model |= {name: given[name] for name in ("n_layer", "n_embd", "n_inner", "tokenizer") if name in given}
    # another environment's NumPy may have another BLAS
    key = (sys.prefix, *(f"{name}={value}" for name, value in model.items()))
    if (known := chosen.get(key)) is not None:
        return Kernels(known, "the fastest when last timed here")
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
    """About the operations in the products of a gradient, at least for a released model."""
    L, C = (12, 768) if (s.init or s.preset) in RELEASED else (s.n_layer, s.n_embd)
    return 6 * s.batch_size * s.block_size * (12 * L * C * C + approximate_vocabulary(s.tokenizer) * C)


def approximate_vocabulary(tokenizer: str) -> int:
    """About the vocabulary size of this tokenizer."""
    size = tokenizer.removeprefix("bpe:")
    return int(size) if size.isdecimal() else {"byte": 257, "char": 100}.get(tokenizer, GPT2_VOCABULARY)


def measured(model: Mapping[str, Any], budget: float) -> dict[str, float] | None:
    """Kernels -> the time of a gradient's products, relative to OpenBLAS's own choice.

    budget   how many times as long as these products, on one thread, measuring may take

    Kernels that cannot be loaded are left out; None if measuring takes too long. Kernels take turns on each
    core, and the best time of each product counts, as other programs disturb either.
    """
    began = time.perf_counter()
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        timings = {name: stack.enter_context(timing(name, model)) for name in (OWN, *OTHERS)}
        cores = available() or [None]
        for n in range(1, ROUNDS + 1):
            first = time.perf_counter()
            for name, time_products in timings.items():
                seconds[name] = time_products(cores[n % len(cores)])
            now, limit = time.perf_counter(), budget * seconds[OWN]
            if n < FEWEST_ROUNDS and now - began + (FEWEST_ROUNDS - n) * (now - first) > limit:
                return None
            if now - began + (now - first) > limit or not any(seconds[name] for name in OTHERS):
                break
    if not seconds[OWN]:  # it has ended: out of memory, or killed after TIMEOUT_S
        return None
    return {name: seconds[name] / seconds[OWN] for name in OTHERS if seconds[name]}


@contextmanager
def timing(name: str, model: Mapping[str, Any]) -> Iterator[Callable[[int | None], float]]:
    """A process that times products with some kernels (gpt2.train.products).

    Gives a function: it times each product once, on a core, and returns the sum of the best times of all so
    far; 0 if the process has ended: after TIMEOUT_S seconds, or as OpenBLAS does not take these kernels.
    """
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **thread_variables(1),
        **({} if name == OWN else {VARIABLE: name}),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpt2.train.products", name, json.dumps(model)],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    timeout = threading.Timer(TIMEOUT_S, process.kill)
    timeout.start()
    least: list[float] = []

    def time_products(core: int | None) -> float:
        try:
            process.stdin.write(f"{'' if core is None else core}\n")
            process.stdin.flush()
            now = [float(text) for text in process.stdout.readline().split()]
        except (OSError, ValueError):
            now = []
        least[:] = map(min, least, now) if least else now
        return sum(least)

    try:
        yield time_products
    finally:
        timeout.cancel()
        process.kill()
        process.communicate()
