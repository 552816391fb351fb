"""Whether a process that makes 100,000 derived functions leaks.

    python -m tests.long.requests                      each kind of function, some twenty minutes
    python -m tests.long.requests --count 2000 code    one of the kinds, fewer of them
    python -m tests.long.requests --seconds 3600 service    one for an hour

    numbers   the code of a request is always the same, and a number in it another one each time
    code      each request brings new code, as in a service that receives formulas
    shapes    each request has arrays of another length
    programs  each request computes something else
    service   one derived function, whose world changes from request to request

Exit status 1 where the process has grown by more than 4 MB after the first tenth of the requests, or of the
seconds, or has sources in linecache, threads or code that is remembered beyond what the compiler's stores
hold.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import gc
import itertools
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff.emit import program
from gpt2.autodiff.record import bytecode, source_lines
from gpt2.autodiff.reuse import world

W = np.linspace(-1.0, 1.0, 5)
SOURCES = 600  # more in linecache: of the programs that the stores hold, with those of loops and the like
MEGABYTES = 4.0


def numbers() -> Iterator[None]:
    def loss(rate):
        return lambda w: np.sum(w * w) * rate + np.sum(np.tanh(w))

    for k in itertools.count(1):
        yield ad.grad(loss(0.1 + k))(W)


def code() -> Iterator[None]:
    for k in itertools.count(1):
        names: dict = {"np": np}
        exec(f"def f(w):\n    a = np.tanh(w)\n    return np.sum(a * w) * {k}.5", names)
        yield ad.grad(names["f"])(W)


def shapes() -> Iterator[None]:
    for k in itertools.count(1):
        yield ad.grad(lambda w: np.sum(w * w) + np.sum(np.tanh(w)))(np.ones(1 + k % 997))


def programs() -> Iterator[None]:
    def f(w, k):
        for i in range(10):
            w = np.tanh(w) if k >> i & 1 else np.sin(w) * w
        return np.sum(w)

    for k in itertools.count(1):
        yield ad.grad(functools.partial(f, k=k))(W)


def service() -> Iterator[None]:
    user = {"rate": 0.5, "weights": W.copy()}
    g = ad.grad(lambda w: np.sum(w * w * user["weights"]) * user["rate"])
    for k in itertools.count(1):
        user["rate"], user["weights"] = 0.1 + k, W + k
        yield g(W)


KINDS: dict[str, Callable[[], Iterator]] = {f.__name__: f for f in (numbers, code, shapes, programs, service)}


def resident() -> float:
    """Megabytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def left_behind() -> dict[str, int]:
    """Counts of everything that requests could leave behind."""
    gc.collect()
    program.forget_collected()
    remembered = (bytecode.reads.known, bytecode.catches.known, source_lines._sites, world.OWN_CODE)
    return {
        "sources": sum(name.startswith("<autodiff ") for name in linecache.cache),
        "threads": threading.active_count(),
        "code": sum(map(len, remembered)),
        "files": len(source_lines._inside),
    }


def check(kind: str, count: int, seconds: float | None = None, megabytes: float = MEGABYTES) -> list[str]:
    """What is wrong after so many requests of a kind, or so many seconds of them, compared with the first
    tenth, which fills the stores.
    """
    requests, begin, made = KINDS[kind](), time.monotonic(), 0

    def make(part: float) -> None:
        """So large a part of all requests, by their number or by the time."""
        nonlocal made
        while made < max(part * count, 150) if seconds is None else time.monotonic() < begin + part * seconds:
            next(requests)
            made += 1

    make(0.1)
    before, memory = left_behind(), resident()
    make(1.0)
    after, grown = left_behind(), resident() - memory
    most = {name: n + (SOURCES if name == "sources" else 50) for name, n in before.items()}
    wrong = [f"{name}: {n} after {before[name]}" for name, n in after.items() if n > most[name]]
    if grown > megabytes:
        wrong.append(f"{grown:.1f} MB more")
    print(f"{kind:10} {made} requests: {grown:+.1f} MB, {after}", *wrong, sep="; ", flush=True)
    return wrong


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=", ".join(KINDS))
    parser.add_argument("--count", type=int, default=100_000, help="requests of each kind")
    parser.add_argument("--seconds", type=float, help="of each kind, in place of a number of requests")
    args = parser.parse_args(argv)
    wrong = [w for kind in args.kinds for w in check(kind, args.count, args.seconds)]
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
