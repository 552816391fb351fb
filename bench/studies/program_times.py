"""Study: programs that are not neural networks, beside JAX, PyTorch and HIPS autograd (bench/programs)."""

import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from bench.harness import ratios
from bench.harness.turns import Contest
from bench.harness.worker import Work, seconds_of
from bench.programs import CONTENDERS, NAMES
from bench.programs.inputs import flat, inputs
from bench.studies.markdown import number
from bench.studies.measure import Sample
from bench.studies.study import Result, Study

TOLERANCE = 1e-8  # of derivatives, relative to the largest: sums in different orders, over hundreds of steps
QUICK = ("hello", "gaussian-process", "rk4")
ROUNDS, TURN_S = 9, 0.02
OWN, COMPILED, EAGER = "own", "torch-compile", "torch"
PEERS = {"autograd": "HIPS autograd", "jax": "JAX, jit", "torch": "PyTorch"}


def run(options):
    result = Result()
    names = QUICK if options.quick else NAMES
    players = {key: player for key, player in CONTENDERS.items() if not (options.quick and key == COMPILED)}
    first, later = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        begin = partial(setup, "hello", True, folder)  # initialises libraries before first calls count
        with Contest(players, 1, begin) as contest:
            result.missing |= {facts["title"]: facts["reason"] for facts in contest.absent.values()}
            for name in names:
                contest.set_work(partial(setup, name, options.quick, folder))
                check(name, folder, contest.facts)
                contest.play(3 if options.quick else ROUNDS, options.seconds / len(names) / 2, TURN_S)
                first[name] = {key: facts["first"] for key, facts in contest.facts.items()}
                later[name] = {
                    key: Sample(ratios.of_rounds(parts["call"])) for key, parts in contest.samples.items()
                }
                for facts in contest.absent.values():
                    if facts["title"] not in result.missing:
                        result.note(f"{name}: {facts['title']} failed, {facts['reason']}.")
    tell(result, first, later)
    return result


def setup(name, tiny, folder, player):
    """Build and first call the player's program; two more calls show how long one takes."""
    make, file = "bench.studies.program_times:work", str(Path(folder) / f"{player.name}.npy")
    facts = player.ask(do="work", make=make, name=name, tiny=tiny, answer=file)
    player.ask(do="turn", steps=2)
    return facts


def work(module, variant, threads, name, tiny, answer):
    """The Work of a contender's process: builds and calls the program, and saves its derivatives to a file.

    first: seconds of both.
    """
    program_inputs = inputs(name, tiny)
    begin = time.perf_counter()
    run = module.program(name, variant, program_inputs)
    result = run()
    first = time.perf_counter() - begin
    np.save(answer, flat(result))
    return Work(lambda steps: {"times": {"call": [seconds_of(run) for _ in range(steps)]}}, {"first": first})


def check(name, folder, facts):
    """Raise AssertionError unless all have the same derivatives."""
    answers = {player: np.load(Path(folder) / f"{player}.npy") for player in facts}
    own = answers[OWN]
    assert np.all(np.isfinite(own)) and np.any(own != 0.0), f"{name}: derivatives are not finite, or zero"
    for player, values in answers.items():
        assert values.shape == own.shape, f"{name}, {player}: {values.shape} numbers, not {own.shape}"
        error = np.max(np.abs(values - own)) / np.max(np.abs(own))
        assert error < TOLERANCE, f"{name}, {player}: derivatives are off by {error:.1e}"


def tell(result, first, later):
    """Tables of ratios and of times, and notes."""
    against = {name: of_peers(times) for name, times in later.items()}
    shown = [p for p in PEERS if any(p in by_player for by_player in against.values())]
    columns = [f"{PEERS[p]} / derived [x]" for p in shown]
    table = result.table("Time of a later call, relative to the derived program", "program", *columns)
    for name, by_player in against.items():
        table.add(name, *(by_player.get(p) for p in shown))
    titles = {key: contender.title for key, contender in CONTENDERS.items()}
    for title, cells in (("Time of a later call", later), ("Time of the first call", first)):
        keys = [key for key in titles if any(key in by_player for by_player in cells.values())]
        table = result.table(title, "program", *(f"{titles[key]} [s]" for key in keys))
        for name, by_player in cells.items():
            table.add(name, *(by_player.get(key) for key in keys))
    for p in shown:
        medians = {name: of[p].median for name, of in against.items() if p in of}
        slower = [name for name in sorted(medians, key=medians.get) if medians[name] < 1.0]
        text = (
            f"{PEERS[p]} takes {number(float(np.median([*medians.values()])))} times as long as the derived "
            f"programs in the median of {len(medians)}, and at least as long in {len(medians) - len(slower)}"
        )
        less = "; less in " + ", ".join(f"{name} ({number(medians[name])})" for name in slower)
        result.note(f"{text}{less if slower else ''}.")


def of_peers(times):
    """Peer -> Sample of its time relative to ours; for PyTorch that of the faster of eager and compiled."""
    samples = {key: sample.over(times[OWN]) for key, sample in times.items() if key != OWN}
    compiled = samples.pop(COMPILED, None)
    if compiled and (EAGER not in samples or times[COMPILED].median < times[EAGER].median):
        samples[EAGER] = compiled
    return samples


STUDY = Study(
    "programs",
    "What does the compiler gain for programs other than GPT-2? Derivatives of nineteen of them, beside "
    "JAX, PyTorch and HIPS autograd: the first call, which records and compiles, and those after it.",
    "GradBench's twelve evaluations at sizes of its own, and seven programs that people write: forces of the "
    "embedded-atom model (216 atoms), Lorenz 1996 by Runge and Kutta's method (200 steps), a Kalman filter "
    "(200 steps), a Gaussian process (300 points), a hidden Markov model (16 states, 500 steps), k-means by "
    "its definition, and a recurrent network (50 steps). In float64, every process on the same one core. JAX "
    "is jitted, with lax.scan and lax.while_loop; PyTorch is eager and compiled (of loops the step), and the "
    "faster of the two counts; autograd runs its Python. Inputs are arrays of each library; a call ends "
    "when its result is there. For `particle` and `saddle` a call is one gradient of the outer descent; it "
    "does not depend on the loop of `saddle`, and compilers leave that out. "
    "Derivatives are compared first, to 1e-8; then all take turns, each in a process of its own.",
    run,
    seconds=500,
)
