"""A contender's process: runs a turn on request, and sleeps in between.

Requests and answers are lines of JSON, one answer for each request, {"error": ...} if it failed.

    {"do": "training", "size": NAME, ...}             -> {"pids", "about", "own_data", "share", "times"}
    {"do": "program", "name": NAME, "tiny": bool, "answer": FILE} -> {"first"}   see bench/programs
    {"do": "work", "make": FUNCTION, ...}             -> {}   FUNCTION of the module returns the turn
    {"do": "turn", "steps": n}                        -> {"times": {part: [s, ...]}, "losses": [...]}
    {"do": "peak"}                                    -> {"bytes"}

    ...         contenders.settings
    pids        the contender's own worker processes
    about       a description of the contender, or null
    own_data    whether it reads its own data instead of the common batches
    share       of a step's work that one of its steps does
    times       seconds of steps; if a contender does a share of a step, scaled up to a whole one

bench/harness/turns.py starts it, with an environment that limits the threads of every library.
"""

import json
import os
import sys
import threading
import time


class Worker:
    def __init__(self, module, variant, threads):
        import importlib

        self.variant, self.threads = variant, threads
        self.module = importlib.import_module(module)
        self.turn = self.trainer = None

    def answer(self, request):
        return getattr(self, "do_" + request.pop("do"))(**request)

    def do_training(self, size, **settings):
        from bench.harness.contenders import Missing
        from bench.harness.sizes import LLAMAS, SIZES, batches, find

        size = find(size, SIZES | LLAMAS)
        make = getattr(self.module, size.training, None)
        if make is None:
            raise Missing(f"it has no {size.training}")
        self.trainer = trainer = make(size, self.variant, self.threads, **settings)
        stream = batches(size)
        share = getattr(trainer, "share", 1.0)

        def turn(steps):
            if hasattr(trainer, "block"):  # a separate program, which times its steps on its own data
                return {"times": {"step": trainer.block(steps)}, "losses": []}
            times, losses = [], []
            for _ in range(steps):
                tokens, targets = next(stream)
                begin = time.perf_counter()
                losses.append(trainer.step(tokens, targets))
                times.append((time.perf_counter() - begin) / share)
            return {"times": {"step": times}, "losses": losses}

        self.turn = turn
        return {
            "pids": getattr(trainer, "pids", []),
            "about": getattr(trainer, "about", None),
            "own_data": hasattr(trainer, "block"),
            "share": share,
            "times": {"step": getattr(trainer, "times", [])},
        }

    def do_program(self, name, tiny, answer):
        """Build and call the program, and save its derivatives to the file. first: seconds of both."""
        import numpy as np

        from bench.programs.inputs import flat, inputs

        program_inputs = inputs(name, tiny)
        begin = time.perf_counter()
        run = self.module.program(name, self.variant, program_inputs)
        result = run()
        first = time.perf_counter() - begin
        np.save(answer, flat(result))

        def turn(steps):
            return {"times": {"call": [seconds_of(run) for _ in range(steps)]}}

        self.turn = turn
        return {"first": first}

    def do_work(self, make, **settings):
        """Other work: the module's make(variant, threads, **settings) returns the turn(steps)."""
        self.turn = getattr(self.module, make)(self.variant, self.threads, **settings)
        return {}

    def do_turn(self, steps):
        return self.turn(steps)

    def do_peak(self):
        from bench.harness.machine import peak_memory

        pids = getattr(self.trainer, "pids", [])
        if not pids:
            return {"bytes": peak_memory()}
        shared = self.trainer.shared_bytes  # mapped by every process, and counted once
        return {"bytes": shared + sum(peak_memory(pid, shared=False) for pid in ("self", *pids))}

    def close(self):
        if hasattr(self.trainer, "close"):
            self.trainer.close()


def seconds_of(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def pin(threads):
    """Run on as many cores as there are threads: a limit that every library respects, XLA too."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def set_priority(nice):
    """Set the niceness of this process and its session, as Linux's autogroups schedule by session first."""
    os.nice(nice)
    try:
        with open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write(str(nice))
    except OSError:
        pass  # no autogroups: the niceness of the process counts


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
    module, variant, threads, nice = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard error instead of into the answers
    pin(threads)
    set_priority(nice)
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
