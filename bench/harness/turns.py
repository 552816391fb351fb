"""Interleaved timing: several contenders, each in its own process, run one at a time.

Times measured a minute apart cannot be compared: the machine drifts by a third from hour to hour. So the
contenders take short turns, for many rounds, and ratios are taken within a round. Each has a process, because
idle threads of PyTorch and OpenBLAS spin for a while and would take cores from the next contender: a turn
begins when every thread of the last one sleeps.
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
# A round is discarded if other programs took more than this share of the machine during one of its turns,
# unless hardly any round was quieter.
DISTURBED = 0.08
LONG_S = 2.0  # seconds; of steps longer than this a turn counts one
ENOUGH = 5  # quiet rounds; with fewer, disturbed ones count too


class Failed(Exception):
    """A contender failed. missing: it is not installed; memory: there is too little."""

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
        self.helpers = []  # pids of its worker processes
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
        with contextlib.suppress(BrokenPipeError):  # it has died, with a request still in the buffer
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
    """Wait until no thread of the processes runs, three checks in a row, or SETTLE seconds have passed."""
    quiet, end = 0, time.perf_counter() + SETTLE
    while quiet < 3 and time.perf_counter() < end:
        quiet = 0 if any(map(machine.is_running, pids)) else quiet + 1
        time.sleep(0.001)


# ---- Rounds ------------------------------------------------------------------------------------------------


def play_rounds(turns, rest, pids, rounds, seconds):
    """Call all the turns, in a new order each round, and measure the load of other programs.

    turns     name -> function without arguments
    rest      rest(name) is called after each turn; load during it is ignored
    pids      our own processes
    rounds    at most; fewer if they would take more than `seconds` together, but at least three

    Returns the indices of the rounds that count, the quiet ones if there are enough, and the load of other
    programs as a dict.
    """
    load, order, shuffle = machine.Load(pids), list(turns), random.Random(0).shuffle
    others = []  # per round, the largest share of the machine that other programs took in a turn
    begin = time.perf_counter()
    for done in range(rounds):
        spent = time.perf_counter() - begin
        if done >= 3 and spent + spent / done > seconds:
            break
        shuffle(order)  # so that no contender always follows the same one
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

    names    contenders, the reference first if it is among them
    threads  per contender
    nice     their processes' niceness
    setup    setup(player) -> dict: builds the player's work and runs a step or two. Kept in facts[name];
             "peak" there, in bytes, estimates the memory that another contender needs

        with Contest(names, threads, setup) as contest:
            contest.play(rounds=20, seconds=60)

    After `play`: samples[name][part] has a list of seconds for each round that counts; load is that of
    other programs, with the number of disturbed rounds. absent: contender -> why it is missing or failed.
    """

    def __init__(self, names, threads, setup, nice=0):
        self.threads, self.nice = threads, nice
        self.players, self.facts, self.absent = {}, {}, {}
        self.samples, self.load = {}, None
        for name in names:
            self._admit(name, setup)

    def set_work(self, setup):
        """Give every contender new work by `setup`. One that fails is skipped until the next set_work."""
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
        """Check that a process as large as the largest so far fits: swapping would time the disk."""
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

        turn_s  the least seconds of a turn
        block   the least steps that a turn counts; one if a step takes more than long_s

        A turn begins with an uncounted warm-up step, as the last contender left the caches cold. Only if
        block is 0 and a step takes turn_s is a turn one step, which counts.
        """
        pids = [pid for player in self.players.values() for pid in player.pids]
        active = [name for name in self.players if name in self.facts]
        turns = {
            name: partial(self._turn, name, self._more_steps(name, turn_s, block, long_s)) for name in active
        }
        counted, self.load = play_rounds(turns, self._rest, pids, rounds, seconds)
        for parts in self.samples.values():
            for part, turns in parts.items():
                parts[part] = [turns[i] for i in counted]

    def _more_steps(self, name, turn_s, block, long_s=LONG_S):
        """Steps of a turn beyond the first, from the fastest step so far."""
        shortest = self.players[name].fastest
        if block and long_s < shortest < float("inf"):
            return 1
        return max(block, 0 if shortest >= turn_s else min(1000, round(turn_s / max(shortest, 1e-7))))

    def _turn(self, name, more):
        """Run one contender's turn and record its times."""
        for part, times in self._ask(name, 1 + more)["times"].items():
            self.samples.setdefault(name, {}).setdefault(part, []).append(times[1:] if more else times)

    def _rest(self, name):
        if name in self.players:
            settle(*self.players[name].pids)

    def _ask(self, name, steps):
        """The answer to a turn. A contender that fails is removed, with all its times."""
        empty = {"times": {}, "losses": []}
        if name not in self.players:
            return empty
        try:
            return self.players[name].ask(do="turn", steps=steps)
        except Failed as error:
            self.absent[name] = error.facts
            self.samples.pop(name, None)
            self.players.pop(name).close()
            return empty

    def peak(self, name):
        """Peak memory of this contender's process, in bytes."""
        return self.players[name].ask(do="peak")["bytes"]
