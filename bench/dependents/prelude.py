"""Run one example in this process: `python prelude.py (autograd | here) example.py`.

Each line that it prints is preceded by the CPU seconds since its first statement; after GPT2_LIMIT CPU
seconds the process is killed. Plots are not shown, NumPy's random numbers are seeded, and MNIST is replaced
by random digits.
"""

import os
import resource
import runpy
import sys
import time
import types


def random_digits():
    import numpy as np

    rng = np.random.RandomState(1)
    shapes = rng.uniform(0, 1, (10, 28, 28)) ** 4

    def some(n):
        labels = rng.randint(0, 10, n)
        images = np.clip(shapes[labels] + 0.1 * rng.uniform(size=(n, 28, 28)), 0, 1)
        return (255 * images).astype(np.uint8), labels.astype(np.uint8)

    return (*some(2000), *some(500))


class Clocked:
    """Standard output with the CPU time before each line."""

    def __init__(self, stream, start):
        self.stream, self.start, self.line = stream, start, ""

    def write(self, text):
        self.line += text
        while "\n" in self.line:
            line, self.line = self.line.split("\n", 1)
            self.stream.write(f"{time.process_time() - self.start:.6f}\t{line}\n")
            self.stream.flush()

    def flush(self):
        pass

    def end(self):
        self.write("\n" if self.line else "")
        self.stream.write(f"{time.process_time() - self.start:.6f}\tend of the program\n")
        self.stream.flush()


def disable_plots():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name in ("pause", "draw", "show"):
        setattr(plt, name, lambda *args, **kwargs: None)


def run(program):
    import autograd  # noqa: F401  autograd itself or `compat`, imported before the clock starts
    import autograd.scipy  # noqa: F401
    import numpy as np

    disable_plots()
    sys.modules["data_mnist"] = types.SimpleNamespace(mnist=random_digits)
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    sys.argv = [program]
    np.random.seed(0)
    limit = float(os.environ.get("GPT2_LIMIT", "inf"))
    if limit != float("inf"):
        used = int(time.process_time() + limit) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used, used))
    sys.stdout = clock = Clocked(sys.stdout, time.process_time())
    runpy.run_path(program, run_name="__main__")
    clock.end()


if __name__ == "__main__":
    which, path = sys.argv[1:]
    if which == "here":
        from gpt2.autodiff.compat.autograd import installed

        with installed():
            run(path)
    else:
        run(path)
