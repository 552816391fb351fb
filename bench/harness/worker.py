"""A contender's process: sets up work on request, runs a turn of it on request, and sleeps in between.

Requests and answers are lines of JSON, one answer for each request, {"error": ...} if it failed.

    {"do": "work", "make": "MODULE:FUNCTION", ...}    -> the facts of a Work, see there
    {"do": "turn", "steps": n}                        -> {"times": {part: [s, ...]}, ...}
    {"do": "peak"}                                    -> {"bytes"}

bench/harness/turns.py starts it, with an environment that limits the threads of every library.
"""

import importlib
import json
import os
import pkgutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Work:
    """What a contender does in its turns. FUNCTION(module, variant, threads, ...) of a request makes it.

    turn     turn(steps) -> {"times": {part: seconds of each step}}, and what else the benchmark compares
    facts    answered when it is set up
    trainer  may have pids, shared_bytes of its own processes, and close()
    """

    turn: Callable[[int], dict]
    facts: dict = field(default_factory=dict)
    trainer: Any = None


def training(trainer, batches):
    """The Work of a trainer, an object with step(tokens, targets) -> loss, on these batches.

    A trainer may have

        block    block(steps) -> seconds of each; it is a separate program with its own data
        times    seconds of steps that it has run already
        share    of a step's work that one of its steps does; times are scaled up to whole steps
        about    a description
    """
    share, own_data = getattr(trainer, "share", 1.0), hasattr(trainer, "block")

    def turn(steps):
        if own_data:
            return {"times": {"step": trainer.block(steps)}, "losses": []}
        times, losses = [], []
        for _ in range(steps):
            tokens, targets = next(batches)
            begin = time.perf_counter()
            losses.append(trainer.step(tokens, targets))
            times.append((time.perf_counter() - begin) / share)
        return {"times": {"step": times}, "losses": losses}

    facts = {
        "pids": getattr(trainer, "pids", []),
        "about": getattr(trainer, "about", None),
        "own_data": own_data,
        "share": share,
        "times": {"step": getattr(trainer, "times", [])},
    }
    return Work(turn, facts, trainer)


class Worker:
    def __init__(self, module, variant, threads):
        self.contender = importlib.import_module(module), variant, threads
        self.work = None

    def answer(self, request):
        do = request.pop("do")
        if do == "work":
            make = pkgutil.resolve_name(request.pop("make"))
            self.work = None  # frees the last work's arrays before new ones are allocated
            self.work = make(*self.contender, **request)
            return self.work.facts
        if do == "turn":
            return self.work.turn(**request)
        from bench.harness.machine import peak_memory

        pids = getattr(self.work.trainer, "pids", [])
        if not pids:
            return {"bytes": peak_memory()}
        shared = self.work.trainer.shared_bytes  # mapped by every process, and counted once
        return {"bytes": shared + sum(peak_memory(pid, shared=False) for pid in ("self", *pids))}

    def close(self):
        if self.work and hasattr(self.work.trainer, "close"):
            self.work.trainer.close()


def seconds_of(function, calls=1):
    """Seconds a call, averaged over consecutive calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


def pin(threads):
    """Run on as many cores as there are threads: a limit that every library respects, XLA too."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def set_priority():
    """Give the session the niceness of this process, as Linux's autogroups schedule by session first."""
    try:
        with open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write(str(os.nice(0)))
    except OSError:
        pass  # no autogroups, or a niceness below 0 that is for root alone: that of the process counts


def watch_coordinator():
    """End this process when its parent is gone. A killed coordinator cannot close its contenders, whose turns
    would disturb the next measurement.
    """
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main():
    watch_coordinator()
    module, variant, threads = *sys.argv[1:3], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard error instead of into the answers
    pin(threads)
    set_priority()
    worker = None
    for line in sys.stdin:
        try:
            worker = worker or Worker(module, variant, threads)
            answer = worker.answer(json.loads(line))
        except Exception as error:  # any error is reported to the coordinator
            if os.environ.get("GPT2_BENCH_DEBUG"):
                raise
            kind = type(error).__name__
            line = (str(error).strip().splitlines() or [""])[0]
            missing = kind == "Missing"
            answer = {"error": str(error) if missing else f"{kind}: {line}", "missing": missing}
        print(json.dumps(answer), file=answers, flush=True)
    if worker:
        worker.close()


if __name__ == "__main__":
    main()
