"""Times of derived functions on several Pythons, relative to the first: later calls, and steps of training.

    python -m bench.pythons 3.13=PYTHON "3.14=COMMAND TO A PYTHON" ...

PYTHON is a command that runs one with this project's requirements. Timed are `ad.grad` of the seven layers (a
call, guards included), the nineteen programs of the studies, and a step at 4x128 by `auto` and `whole`. Each
Python is one process, in which all is compiled first; then they take turns. A row has the median of the
rounds' least times, and the ratio with its quartiles. One BLAS thread.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time

ROUNDS, SECONDS = 7, 0.02


def subjects():
    """Name -> function without arguments, of all that is timed."""
    import numpy as np

    from bench.harness.sizes import Size
    from bench.programs import NAMES, own
    from bench.programs.inputs import inputs
    from gpt2 import GPT2, GPT2Config
    from gpt2 import autodiff as ad
    from gpt2.layers import LAYERS
    from gpt2.layers.cases import Sizes, at

    found = {}
    for name, case in at(Sizes(B=2, T=32, C=64, OC=64, NH=4, V=96, max_t=32)).items():
        if name in LAYERS:
            arrays = case.inputs()
            floats = [k for k, x in enumerate(arrays) if x is not None and x.dtype.kind == "f"]
            layer, static = LAYERS[name].forward, case.static

            def f(*arrays, layer=layer, static=static):
                return np.sum(layer(*arrays, **static)[0])

            g = ad.grad(f, argnums=tuple(floats))
            found[f"grad of {name}"] = lambda g=g, arrays=arrays: g(*arrays)
    for name in NAMES:
        found[name] = own.program(name, "", inputs(name, tiny=True))
    size = Size("4x128", GPT2Config.preset("shakespeare-char-cpu"), 12, 64)
    tokens = np.random.default_rng(0).integers(0, size.config.vocab_size, (size.B, size.T + 1))
    for way in ("auto", "whole"):
        model = GPT2(size.config, backward=way, seed=0)
        found[f"step, {way}"] = lambda model=model: model.loss_and_grads(tokens[:, :-1], tokens[:, 1:])
    return found


def serve():
    """For each line of standard input, a subject's name: print the least seconds of a call."""
    calls = subjects()
    for call in calls.values():
        for _ in range(3):
            call()
    print(json.dumps(list(calls)), flush=True)
    for line in sys.stdin:
        call, least, end = calls[line.rstrip("\n")], math.inf, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            begin = time.perf_counter()
            call()
            least = min(least, time.perf_counter() - begin)
        print(least, flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.pythons", description=__doc__.split("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="NAME=COMMAND", help="what starts each Python")
    parser.add_argument("--serve", action="store_true", help="time what standard input names, in this Python")
    args = parser.parse_args(argv)
    if args.serve:
        return serve()
    if len(args.pythons) < 2 or not all("=" in one for one in args.pythons):
        parser.error("expected two or more of NAME=COMMAND, as 3.13=python3.13 3.15=python3.15")
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    names, commands = zip(*(one.split("=", 1) for one in args.pythons))
    workers = [
        subprocess.Popen(
            [*shlex.split(c), "-m", "bench.pythons", "--serve"],
            stdin=-1,
            stdout=-1,
            text=True,
            bufsize=1,
            env=env,
        )
        for c in commands
    ]
    rows = [json.loads(worker.stdout.readline()) for worker in workers][0]
    print(f"{'':24}" + "".join(f"{name:>24}" for name in names))
    ratios = {name: [] for name in names}
    for row in rows:
        times = []
        for _ in range(ROUNDS):
            times.append([])
            for worker in workers:
                worker.stdin.write(row + "\n")
                times[-1].append(float(worker.stdout.readline()))
        text = f"{row:24}"
        for k, name in enumerate(names):
            low, middle, high = statistics.quantiles([t[k] / t[0] for t in times], n=4)
            ratios[name].append(middle)
            text += f"{1e6 * statistics.median(t[k] for t in times):10.1f} us" + f"{middle:6.2f}" * (k > 0)
            text += f" [{low:.2f} {high:.2f}]" * (k > 0)
        print(text, flush=True)
    for name in names[1:]:
        mean, most = statistics.geometric_mean(ratios[name]), max(ratios[name])
        print(f"{name}: {mean:.3f} in the geometric mean, {most:.2f} at most")
    for worker in workers:
        worker.stdin.close()
    return None


if __name__ == "__main__":
    sys.exit(main())
