"""Run a process's first training step and print the seconds of each part as JSON, for bench/first_step.py.

    python -m bench.harness.first_process CONFIG BACKWARD THREADS B T FOLDER BYTES BEGAN

CONFIG is a GPT2Config as JSON, BYTES the memory to touch before, which does not count, BEGAN the time at
which the process was started. Only what the step needs is imported.
"""

import json
import sys
import time

TIMED = "imports", "weights", "moments", "recording, compiling", "checks", "running", "update"
PARTS = (*TIMED, "all", "later")


def touch(nbytes):
    """Write to nbytes of memory and free it to malloc, which may keep it. Returns the seconds taken."""
    begin = time.time()
    len(b"\1" * nbytes)
    return time.time() - begin


def main(config, backward, threads, B, T, folder, nbytes, began):
    marks = [float(began) + touch(int(nbytes))]  # wall-clock times, so that Python's start counts
    import numpy as np

    from gpt2 import autodiff as ad
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
    optimizer.step()
    marks.append(time.time())
    later = []
    for _ in range(3):
        begin = time.time()
        model.loss_and_grads(tokens, targets)
        optimizer.step()
        later.append(time.time() - begin)
    imports, weights, moments, step, update = (b - a for a, b in zip(marks, marks[1:]))
    running = step - inside.compiling - inside.checks
    times = imports, weights, moments, inside.compiling, inside.checks, running, update, marks[-1] - marks[0]
    print(json.dumps(dict(zip(PARTS, (*times, min(later))))))


class Inside:
    """Seconds that the first forward and backward spend compiling, and on bit checks of split products."""

    def __init__(self):
        from gpt2.autodiff import pipeline
        from gpt2.autodiff.run import split_matmul

        self.compiling = self.checks = 0.0
        report, keeps_bits = pipeline.Pipeline._report, split_matmul.keeps_bits

        def reported(pipeline, title, result, seconds, remark=""):
            self.compiling += seconds
            return report(pipeline, title, result, seconds, remark)

        def checked(*args):
            begin = time.time()
            kept = keeps_bits(*args)
            self.checks += time.time() - begin
            return kept

        pipeline.Pipeline._report, split_matmul.keeps_bits = reported, checked


if __name__ == "__main__":
    main(*sys.argv[1:])
