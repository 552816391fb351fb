"""Times of derived functions on several Pythons, relative to the first: later calls, and steps of training.

    python -m bench.pythons 3.13=PYTHON "3.14=COMMAND TO A PYTHON" ...

PYTHON is a command that runs one with this project's requirements. Timed are `ad.grad` of the seven layers (a
call, guards included), the nineteen programs of the studies, and a step at 4x128 by `auto` and `whole`. Each
Python is one process with one thread; they take turns. A row has medians over the rounds, and of the ratios
within a round the median and the quartiles.
"""

import math
import shlex
import statistics
from functools import partial

import numpy as np

from bench import programs
from bench.harness import program, ratios
from bench.harness.contenders import Contender
from bench.harness.turns import Contest
from bench.harness.worker import Work, seconds_of
from bench.programs import own
from bench.programs.inputs import inputs
from gpt2 import GPT2, GPT2Config
from gpt2 import autodiff as ad
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at

MODULE = "bench.pythons"
ROUNDS, TURN_S = 7, 0.02
LAYER, STEP = "grad of ", "step, "
NAMES = (*(LAYER + name for name in LAYERS), *programs.NAMES, STEP + "auto", STEP + "whole")


def subject(name):
    """What is timed: a function without arguments."""
    if name.startswith(LAYER):
        case = at(Sizes(B=2, T=32, C=64, OC=64, NH=4, V=96, max_t=32))[name.removeprefix(LAYER)]
        arrays = case.inputs()
        floats = [k for k, x in enumerate(arrays) if x is not None and x.dtype.kind == "f"]

        def f(*arrays):
            return np.sum(LAYERS[case.layer].forward(*arrays, **case.static)[0])

        return partial(ad.grad(f, argnums=tuple(floats)), *arrays)
    if name.startswith(STEP):
        config = GPT2Config.preset("shakespeare-char-cpu")
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, (12, 65))
        model = GPT2(config, backward=name.removeprefix(STEP), seed=0)
        return partial(model.loss_and_grads, tokens[:, :-1], tokens[:, 1:])
    return own.program(name, "", inputs(name, tiny=True))


def work(module, variant, threads, name):
    """The Work of a Python's process, in which all is compiled."""
    call = subject(name)
    for _ in range(3):
        call()
    return Work(lambda steps: {"times": {"call": [seconds_of(call) for _ in range(steps)]}})


def main(argv):
    parser = program.plain_parser(MODULE, __doc__.split("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="NAME=COMMAND", help="what starts each Python")
    given = [one.partition("=") for one in parser.parse_args(argv).pythons]
    if len(given) < 2 or not all(command for _, _, command in given):
        parser.error("expected two or more of NAME=COMMAND, as 3.13=python3.13 3.15=python3.15")
    commands = {name: tuple(shlex.split(command)) for name, _, command in given}
    players = {name: Contender(name, MODULE, python=command) for name, command in commands.items()}
    first, *others = players

    def set_up(subject, player):
        return player.ask(do="work", make=f"{MODULE}:work", name=subject)

    found = {name: [] for name in others}
    print(f"{'':24}" + "".join(f"{name:>26}" for name in players))
    with Contest(players, 1, partial(set_up, NAMES[0])) as contest:
        if contest.absent:
            raise UserError("; ".join(f"{name}: {why['reason']}" for name, why in contest.absent.items()))
        for name in NAMES:
            contest.set_work(partial(set_up, name))
            contest.play(ROUNDS, math.inf, TURN_S, block=1)
            calls = {python: parts["call"] for python, parts in contest.samples.items()}
            text = f"{name:24}{1e3 * ratios.times(calls[first])['median']:23.1f} us"
            for python in others:
                spread = ratios.ratio(calls[python], calls[first])
                found[python].append(spread["median"])
                us = 1e3 * ratios.times(calls[python])["median"]
                text += f"{us:10.1f} us {ratios.shown(spread)}"
            print(text, flush=True)
    for python, medians in found.items():
        mean, most = statistics.geometric_mean(medians), max(medians)
        print(f"{python}: {mean:.3f} in the geometric mean, {most:.2f} at most")


if __name__ == "__main__":
    program.run(main)
