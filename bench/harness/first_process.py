"""Run a process's first training step and print the seconds of each part as JSON, for bench/first_step.py.

    python -m bench.harness.first_process CONFIG BACKWARD THREADS B T FOLDER BYTES BEGAN

CONFIG is a GPT2Config as JSON, BYTES the memory to touch before, which does not count, BEGAN the time at
which the process was started. Only what the step needs is imported.
"""

import json
import sys
import time

TIMED = "imports", "weights", "moments", "recording, compiling", "trials", "running", "update"
PARTS = (*TIMED, "all", "later")


def touch(nbytes):
    """Write to nbytes of memory and free it to malloc, which may keep it. Returns the seconds taken."""
    import ctypes

    begin = time.time()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    place = libc.malloc(nbytes)
    libc.memset(place, 1, nbytes)
    libc.free(place)
    return time.time() - begin


def main(config, backward, threads, B, T, folder, nbytes, began):
    marks = [float(began) + touch(int(nbytes))]  # wall-clock times, so that Python's start counts
    import numpy as np

    from gpt2 import autodiff as ad
    from gpt2.autodiff.run import split_matmul
    from gpt2.model import GPT2, GPT2Config
    from gpt2.model.optimizer import AdamW

    inside, config = Inside(), GPT2Config(**json.loads(config))
    tokens, targets = np.random.default_rng(1).integers(0, config.vocab_size, (2, int(B), int(T)))
    ad.remember(folder)
    ad.set_threads(int(threads))
    marks.append(time.time())
    model = GPT2(config, backward, seed=0)
    marks.append(time.time())
    optimizer = AdamW(model)
    marks.append(time.time())
    model.loss_and_grads(tokens, targets)
    marks.append(time.time())
    checks = split_matmul._check_budget.spent
    optimizer.step()
    marks.append(time.time())
    later = []
    for _ in range(3):
        begin = time.time()
        model.loss_and_grads(tokens, targets)
        optimizer.step()
        later.append(time.time() - begin)
    imports, weights, moments, step, update = (b - a for a, b in zip(marks, marks[1:]))
    inside.trials += checks
    running = step - inside.compiling - inside.trials
    times = imports, weights, moments, inside.compiling, inside.trials, running, update, marks[-1] - marks[0]
    print(json.dumps(dict(zip(PARTS, (*times, min(later))))))


class Inside:
    """Seconds that the first forward and backward spend compiling, and on trials of how to split products."""

    def __init__(self):
        from gpt2.autodiff import pipeline
        from gpt2.autodiff.run import split_matmul

        self.compiling = self.trials = 0.0
        report, trial = pipeline.Pipeline._report, split_matmul._Trial

        def reported(pipeline, title, result, seconds, remark=""):
            self.compiling += seconds
            return report(pipeline, title, result, seconds, remark)

        def tried(*args):
            begin = time.time()
            made = trial(*args)
            self.trials += time.time() - begin
            return made

        pipeline.Pipeline._report, split_matmul._Trial = reported, tried


if __name__ == "__main__":
    main(*sys.argv[1:])
