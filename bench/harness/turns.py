"""Turns: several contenders, each in its own process, of which exactly one works at any time.

Times of one contender measured now and of another measured a minute later cannot be compared: the machine
drifts by a third from hour to hour. So every contender does a little work in turn, many rounds, and what
counts is the ratio within a round. Processes, because the idle threads of PyTorch and of OpenBLAS spin for a
while and would take the cores from whoever is next: a turn begins when every thread of the last one sleeps.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.harness import machine
from bench.harness.contenders import CONTENDERS, reason_missing
from gpt2.machine import free_memory
from gpt2.parallel.cores import thread_variables

ROOT = Path(__file__).resolve().parents[2]
SETTLE = 1.0  # seconds to wait at most for a contender's threads to fall asleep
# A round in which others took more than this share of the machine during one of its turns is not counted,
# unless hardly any round was quieter.
DISTURBED = 0.08
LONG_S = 2.0  # seconds of a step from which on a turn counts one
ENOUGH = 5  # quiet rounds, from which on disturbed ones are left out


class Failed(Exception):
    """A contender could not do what it was told. missing: it is not there; memory: there is too little."""

    def __init__(self, text, missing=False, memory=False):
        super().__init__(text)
        self.facts = {"reason": text, "missing": missing, "memory": memory}


class Player:
    """A contender's process, as the coordinator sees it."""

    def __init__(self, name, threads, nice=0):
        if reason := reason_missing(name):
            raise Failed(reason, missing=True)
        self.name = name
        self.began = time.perf_counter()
        self.fastest = float("inf")  # seconds of the fastest step so far
        self.helpers = []  # pids of processes that it has started for its work
        debug = bool(os.environ.get("GPT2_BENCH_DEBUG"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.harness.worker", name, str(threads), str(nice)],
            cwd=ROOT,
            env={**environment(threads), **CONTENDERS[name].environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debug else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    @property
    def pids(self):
        return [self.process.pid, *self.helpers]

    def ask(self, **request):
        """Send a request and wait for its answer. Raises Failed."""
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"its process ended (status {self.process.wait()}); GPT2_BENCH_DEBUG=1 shows why")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer["missing"])
        self.helpers = answer.get("pids", self.helpers)
        if "times" in answer:
            steps = [sum(parts) for parts in zip(*answer["times"].values())]
            self.fastest = min([self.fastest, *steps])
        return answer

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # it has died: what was asked last is still in the buffer
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment(threads):
    """The environment in which every numerical library takes this many threads."""
    return {**os.environ, **thread_variables(threads), "JAX_PLATFORMS": "cpu"}


def settle(*pids):
    """Wait until no thread of the processes runs, three looks in a row, or SETTLE seconds have passed."""
    quiet, end = 0, time.perf_counter() + SETTLE
    while quiet < 3 and time.perf_counter() < end:
        quiet = 0 if any(map(machine.is_running, pids)) else quiet + 1
        time.sleep(0.001)


# ---- Rounds ------------------------------------------------------------------------------------------------


def play_rounds(turns, rest, pids, rounds, seconds):
    """Call all the turns, in a new order each round, and see what others do meanwhile.

    turns     name -> function without arguments
    rest      rest(name) is called behind each turn, and what others do then does not matter
    pids      our own processes
    rounds    at most; fewer if they would take more than `seconds` together, and at least three

    Returns the numbers of the rounds that count, the quiet ones if there are enough of them, and a dict that
    says what others did.
    """
    load, order, shuffle = machine.Load(pids), list(turns), random.Random(0).shuffle
    others = []  # per round, the largest share that others had in one of its turns
    begin = time.perf_counter()
    for done in range(rounds):
        spent = time.perf_counter() - begin
        if done >= 3 and spent + spent / done > seconds:
            break
        shuffle(order)  # so that none always follows the same one
        others.append(0.0)
        for name in order:
            during = machine.Load(pids)
            turns[name]()
            others[-1] = max(others[-1], during.report(pids)["others"] or 0.0)
            rest(name)
    quiet = [i for i, share in enumerate(others) if share <= DISTURBED]
    counted = quiet if len(quiet) >= ENOUGH else range(len(others))
    return counted, {
        **load.report(pids),
        "rounds": len(others),
        "rounds_counted": len(counted),
        "rounds_disturbed": len(others) - len(quiet),
    }


# ---- A contest ---------------------------------------------------------------------------------------------


class Contest:
    """Contenders that do the same work, round after round.

    names    contenders, the reference first where it takes part
    threads  for each of them, one contender at a time
    nice     their processes' niceness
    setup    setup(player) -> dict: has the player build its work and do a step or two. Kept in facts[name];
             "peak" there, in bytes, says how much memory another contender may need

        with Contest(names, threads, setup) as contest:
            contest.play(rounds=20, seconds=60)

    After `play`: samples[name][part] is a list with one list of seconds per round, of the rounds that count;
    load says what others did meanwhile, and how many rounds they spoilt. absent: who could not take part, or
    dropped out, and why.
    """

    def __init__(self, names, threads, setup, nice=0):
        self.threads, self.nice = threads, nice
        self.players, self.facts, self.absent = {}, {}, {}
        self.samples, self.load = {}, None
        for name in names:
            self._admit(name, setup)

    def set_work(self, setup):
        """Give everyone new work, as `setup` does. Who fails sits out until the next work."""
        self.facts, self.samples = {}, {}
        self.absent = {name: why for name, why in self.absent.items() if name not in self.players}
        for name, player in self.players.items():
            player.fastest = float("inf")
            try:
                self.facts[name] = setup(player)
            except Failed as error:
                self.absent[name] = error.facts
            settle(*player.pids)

    def _admit(self, name, setup):
        player = None
        try:
            self._require_memory()
            player = Player(name, self.threads, self.nice)
            self.facts[name] = setup(player)
            settle(*player.pids)
            self.players[name] = player
        except Failed as error:
            self.absent[name] = error.facts
            if player:
                player.close()

    def _require_memory(self):
        """Another one as large as the largest so far must fit, or the machine would swap, and time disks."""
        free = free_memory()
        largest = max((facts["peak"] for facts in self.facts.values() if "peak" in facts), default=0)
        if free is not None and free < 1.5 * largest:
            raise Failed(f"not enough memory beside the others ({free / 1e9:.1f} GB left)", memory=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for player in self.players.values():
            player.close()

    def play(self, rounds, seconds, turn_s=0.0, block=0, long_s=LONG_S):
        """Up to `rounds` rounds, fewer if they would take more than `seconds` together; at least three.

        turn_s  seconds that a turn should last at least
        block   steps that a turn counts at least; one alone where a step takes more than long_s

        A turn begins with a step that is not counted, which finds the caches and the memory as the last
        contender left them. Only where block is 0 and a step takes turn_s is it one step, and counted.
        """
        pids = [pid for player in self.players.values() for pid in player.pids]
        taking_part = [name for name in self.players if name in self.facts]
        turns = {
            name: partial(self._turn, name, self._more_steps(name, turn_s, block, long_s))
            for name in taking_part
        }
        counted, self.load = play_rounds(turns, self._rest, pids, rounds, seconds)
        for parts in self.samples.values():
            for part, turns in parts.items():
                parts[part] = [turns[i] for i in counted]

    def _more_steps(self, name, turn_s, block, long_s=LONG_S):
        """Steps of a turn beyond the first, judging by the fastest so far."""
        shortest = self.players[name].fastest
        if block and long_s < shortest < float("inf"):
            return 1
        return max(block, 0 if shortest >= turn_s else min(1000, round(turn_s / max(shortest, 1e-7))))

    def _turn(self, name, more):
        """Let one contender play, and note its times."""
        for part, times in self._ask(name, 1 + more)["times"].items():
            self.samples.setdefault(name, {}).setdefault(part, []).append(times[1:] if more else times)

    def _rest(self, name):
        if name in self.players:
            settle(*self.players[name].pids)

    def _ask(self, name, steps):
        """The answer to a turn. A contender that fails is out, with all its times."""
        nothing = {"times": {}, "losses": []}
        if name not in self.players:
            return nothing
        try:
            return self.players[name].ask(do="turn", steps=steps)
        except Failed as error:
            self.absent[name] = error.facts
            self.samples.pop(name, None)
            self.players.pop(name).close()
            return nothing

    def peak(self, name):
        """The most bytes this contender's process has held."""
        return self.players[name].ask(do="peak")["bytes"]
