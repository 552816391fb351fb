"""A contender's process: runs a turn on request, and sleeps in between.

Lines of JSON come in and go out. Every request gets one answer, {"error": ...} if it failed.

    {"do": "training", "size": NAME, ...}             -> {"build_s", "pids", "about", "own_data", "times"}
    {"do": "layer", "batch": NAME, "case": NAME, ...} -> {"digest"}            see `digest`
    {"do": "program", "name": NAME, "tiny": bool, "answer": FILE} -> {"first"}   see bench/programs
    {"do": "work", "make": FUNCTION, ...}             -> {}   calls FUNCTION of the module, which gives a turn
    {"do": "turn", "steps": n}                        -> {"times": {part: [s, ...]}, "losses": [...]}
    {"do": "peak"}                                    -> {"bytes"}
    {"do": "rates"}                                   -> {"sgemm", "copy"}     see bench/harness/rates.py
    {"do": "profile", "size": NAME, "steps": n}       -> {"steps": [{"kind/part": s}]}
    {"do": "lines", "size": NAME, "seconds": s}       -> {"lines": [[share, place, text]]}

...: contenders.settings. pids: of its own workers, if any. about: the contender's description, or null.
own_data: whether it reads its own instead of the common batches. times: of the steps during setup.
Times are those of a whole step, also where a contender does a share of one.

Run by bench/harness/turns.py with the environment that limits the threads of every library.
"""

import json
import os
import sys
import threading
import time


class Worker:
    def __init__(self, name, threads):
        import importlib

        from bench.harness.contenders import CONTENDERS

        self.contender = CONTENDERS[name]
        self.threads = threads
        self.module = importlib.import_module(self.contender.module)
        self.turn = self.trainer = None

    def answer(self, request):
        return getattr(self, "do_" + request.pop("do"))(**request)

    def do_training(self, size, **settings):
        from bench.harness.contenders import Missing
        from bench.harness.sizes import LLAMAS, SIZES, batches, find

        size = find(size, SIZES | LLAMAS)
        begin = time.perf_counter()
        make = getattr(self.module, size.training, None)
        if make is None:
            raise Missing(f"there is no {size.training} of it here")
        self.trainer = trainer = make(size, self.contender.variant, self.threads, **settings)
        stream = batches(size)
        share = getattr(trainer, "share", 1.0)

        def turn(steps):
            if hasattr(trainer, "block"):  # a program that times its own steps, on its own data
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
            "build_s": time.perf_counter() - begin,
            "pids": getattr(trainer, "pids", []),
            "about": getattr(trainer, "about", None),
            "own_data": hasattr(trainer, "block"),
            "times": {"step": getattr(trainer, "times", [])},
        }

    def do_layer(self, batch, case, **settings):
        from bench.harness.cases import cases, find_batch

        self.turn = None  # frees the last case's arrays before new ones are allocated
        case = cases(*find_batch(batch))[case]
        run = self.module.layer(case, self.contender.variant, self.threads, **settings)

        def turn(steps):
            forward, backward = [], []
            for _ in range(steps):
                begin = time.perf_counter()
                run.forward()
                middle = time.perf_counter()
                run.backward()
                forward.append(middle - begin)
                backward.append(time.perf_counter() - middle)
            return {"times": {"forward": forward, "backward": backward}, "losses": []}

        turn(1)
        self.turn = turn
        return {"digest": [digest(x) for x in run.results()]}

    def do_program(self, name, tiny, answer):
        """first: seconds of making it and of its first call, whose derivatives are written to the file."""
        import numpy as np

        from bench.programs.inputs import flat, inputs

        program_inputs = inputs(name, tiny)
        begin = time.perf_counter()
        run = self.module.program(name, self.contender.variant, program_inputs)
        result = run()
        first = time.perf_counter() - begin
        np.save(answer, flat(result))

        def turn(steps):
            times = []
            for _ in range(steps):
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)
            return {"times": {"call": times}}

        self.turn = turn
        return {"first": first}

    def do_work(self, make, **settings):
        """What a benchmark has that is neither: make(variant, threads, **settings) gives its turn(steps)."""
        self.turn = getattr(self.module, make)(self.contender.variant, self.threads, **settings)
        return {}

    def do_turn(self, steps):
        return self.turn(steps)

    def do_rates(self):
        from bench.harness import rates

        return {"sgemm": rates.sgemm_peak(self.threads), "copy": rates.copy_bandwidth(self.threads)}

    def do_profile(self, size, steps):
        from bench.harness import profiling, sizes

        results = profiling.by_layer(sizes.find(size), self.contender.variant, self.threads, steps)
        return {"steps": [{f"{kind}/{part}": t for (kind, part), t in step.items()} for step in results]}

    def do_lines(self, size, seconds):
        from bench.harness import profiling, sizes

        return {"lines": profiling.by_line(sizes.find(size), self.contender.variant, self.threads, seconds)}

    def do_peak(self):
        from bench.harness.machine import peak_memory

        pids = getattr(self.trainer, "pids", [])
        if not pids:
            return {"bytes": peak_memory()}
        shared = self.trainer.shared_bytes  # every process has it in sight; it is there once
        return {"bytes": shared + sum(peak_memory(pid, shared=False) for pid in ("self", *pids))}

    def close(self):
        if hasattr(self.trainer, "close"):
            self.trainer.close()


def digest(x):
    """[shape, length, projection on a seeded direction]: enough to tell two arrays apart."""
    import numpy as np

    direction = np.random.default_rng(3).standard_normal(x.size, dtype=np.float32)
    flat = np.ascontiguousarray(x, dtype=np.float32).ravel()
    chunks = range(0, flat.size, 1 << 16)  # sums of chunks in float64: np.dot adds up in float32
    length = sum(float(np.dot(c, c)) for i in chunks if (c := flat[i : i + (1 << 16)]) is not None) ** 0.5
    projection = sum(float(np.dot(flat[i : i + (1 << 16)], direction[i : i + (1 << 16)])) for i in chunks)
    return list(x.shape), length, projection


def pin(threads):
    """Stay on as many cores as there are threads: the one limit that every library respects, XLA's too."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def set_priority(nice):
    """Niceness of this process, and of its session: Linux weighs whole sessions against each other first."""
    os.nice(nice)
    try:
        with open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write(str(nice))
    except OSError:
        pass  # a system without autogroups: niceness alone counts


def watch_coordinator():
    """End when the coordinator is gone: one that was killed cannot close its contenders, and they would go on
    with their turns beside whatever is measured next.
    """
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main():
    watch_coordinator()
    name, threads, nice = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what libraries print out of the answers
    pin(threads)
    set_priority(nice)
    worker = None
    for line in sys.stdin:
        try:
            worker = worker or Worker(name, threads)
            answer = worker.answer(json.loads(line))
        except Exception as error:  # any error is reported to the coordinator
            if os.environ.get("GPT2_BENCH_DEBUG"):
                raise
            answer = {
                "error": f"{error}"
                if type(error).__name__ == "Missing"
                else f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}",
                "missing": type(error).__name__ == "Missing",
            }
        print(json.dumps(answer), file=answers, flush=True)
    if worker:
        worker.close()


if __name__ == "__main__":
    main()
