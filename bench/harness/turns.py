"""Interleaved timing: several contenders, each in its own process, run one at a time.

The machine's speed drifts by a third from hour to hour, so only times measured side by side can be compared.
Contenders take short turns for many rounds, and ratios are taken within a round. Idle threads of PyTorch and
OpenBLAS spin for a while and would take cores from the next contender. So each contender has a process, and a
turn begins when all threads of the last one sleep.
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
from bench.harness.contenders import reason_missing
from gpt2.machine import free_memory
from gpt2.parallel.cores import thread_variables

ROOT = Path(__file__).resolve().parents[2]
SETTLE = 1.0  # seconds to wait at most for a contender's threads to fall asleep
# A round is disturbed if other programs took more than this share of the machine during one of its turns.
# Disturbed rounds are discarded if at least ENOUGH quiet ones remain.
DISTURBED = 0.08
ENOUGH = 5
LONG_S = 2.0  # seconds; a turn counts one step if steps take longer


class Failed(Exception):
    """A contender cannot take part. missing: it is not installed; memory: there is too little."""

    def __init__(self, text, missing=False, memory=False):
        super().__init__(text)
        self.facts = {"reason": text, "missing": missing, "memory": memory}


class Player:
    """The coordinator's handle of a contender's process."""

    def __init__(self, name, contender, threads):
        if reason := reason_missing(contender):
            raise Failed(reason, missing=True)
        self.name = name
        self.began = time.perf_counter()
        self.fastest = float("inf")  # seconds of the fastest step so far
        self.share = 1.0  # of a step that it does, where its times are scaled up to a whole one
        self.helpers = []  # pids of its worker processes
        arguments = contender.module, contender.variant, str(threads)
        debug = bool(os.environ.get("GPT2_BENCH_DEBUG"))
        self.process = subprocess.Popen(
            [*contender.python, "-m", "bench.harness.worker", *arguments],
            cwd=ROOT,
            env={**environment(threads), **contender.environment},
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
        self.share = answer.get("share", self.share)
        if "times" in answer:
            steps = [self.share * sum(parts) for parts in zip(*answer["times"].values())]
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
    """Environment variables that set every numerical library to this many threads."""
    return {**os.environ, **thread_variables(threads), "JAX_PLATFORMS": "cpu"}


def settle(*pids):
    """Wait until no thread of the processes runs in three checks in a row, for SETTLE seconds at most."""
    quiet, end = 0, time.perf_counter() + SETTLE
    while quiet < 3 and time.perf_counter() < end:
        quiet = 0 if any(map(machine.is_running, pids)) else quiet + 1
        time.sleep(0.001)


@contextlib.contextmanager
def busy(count, threads):
    """Run `count` programs that compute all the time, each in its own session, on the contenders' cores."""
    code = f"from bench.harness import worker as w\nw.watch_coordinator()\nw.pin({threads})\nwhile True: pass"
    programs = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
            stack.enter_context(process)  # waits for its end,
            stack.callback(process.kill)  # after this
            programs.append(process)
        yield programs


# ---- Rounds ------------------------------------------------------------------------------------------------


def orders(names, rounds, seconds, least=3):
    """Yield the names in a new random order each round, so that none always follows the same one.

    At most `rounds`; fewer, but at least `least`, if they would take more than `seconds` in all.
    """
    order, shuffle = list(names), random.Random(0).shuffle
    begin = time.perf_counter()
    for done in range(rounds):
        spent = time.perf_counter() - begin
        if done >= least and spent + spent / done > seconds:
            return
        shuffle(order)
        yield order


def play_rounds(turns, rest, pids, rounds, seconds):
    """Call all turns in a new random order each round, and measure the load of other programs.

    turns     name -> function without arguments
    rest      rest(name) is called after each turn; load during it is ignored
    pids      the contenders' processes, whose load is not that of others
    rounds, seconds    limits, as of `orders`

    Returns the indices of the rounds that count (the quiet ones, if there are enough) and the load as a dict.
    """
    load = machine.Load(pids)
    others = []  # per round, other programs' largest share of the machine during a turn
    for order in orders(turns, rounds, seconds):
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


class Contest:
    """Time contenders that do the same work, in interleaved rounds.

        with Contest(contenders, threads, setup) as contest:
            contest.play(rounds=20, seconds=60)

    contenders   name -> Contender, the reference first if it takes part
    threads  per contender
    setup    setup(player) -> dict, kept in facts[name]: builds the player's work and runs a step or two. Its
             "peak", in bytes, estimates the memory that another contender needs

    After `play`, samples[name][part] has for each counted round a list of seconds, load is that of other
    programs, and absent[name] says why a contender is missing or failed.
    """

    def __init__(self, contenders, threads, setup):
        self.contenders, self.threads = contenders, threads
        self.players, self.facts, self.absent = {}, {}, {}
        self.samples, self.load = {}, None
        for name, contender in contenders.items():
            self._admit(name, contender, setup)

    def set_work(self, setup):
        """Set up new work for every contender. One that fails is skipped until the next set_work."""
        self.facts, self.samples = {}, {}
        self.absent = {name: why for name, why in self.absent.items() if name not in self.players}
        for name, player in self.players.items():
            player.fastest = float("inf")
            try:
                self.facts[name] = setup(player)
            except Failed as error:
                self._leave_out(name, error)
            settle(*player.pids)

    def _admit(self, name, contender, setup):
        """Start a contender's process, if there is memory: swapping would time the disk."""
        player, free = None, free_memory()
        largest = max((facts["peak"] for facts in self.facts.values() if "peak" in facts), default=0)
        try:
            if free is not None and free < 1.5 * largest:
                left = f"not enough memory beside the others ({free / 1e9:.1f} GB left)"
                raise Failed(left, memory=True)
            player = Player(name, contender, self.threads)
            self.facts[name] = setup(player)
            settle(*player.pids)
            self.players[name] = player
        except Failed as error:
            self._leave_out(name, error)
            if player:
                player.close()

    def _leave_out(self, name, error):
        self.absent[name] = {**error.facts, "title": self.contenders[name].title}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for player in self.players.values():
            player.close()

    def play(self, rounds, seconds, turn_s=0.0, block=0, long_s=LONG_S):
        """Play the rounds; `rounds` and `seconds` are limits as in play_rounds.

        turn_s  a turn has as many steps as fill this time,
        block   but counts at least this many, or one if a step takes longer than long_s

        A turn begins with an uncounted step, as the last contender left the caches cold. Exception: with
        block 0, and steps that take turn_s or longer, a turn is a single step, which counts.
        """
        pids = [pid for player in self.players.values() for pid in player.pids]
        active = [name for name in self.players if name in self.facts]
        turns = {}
        for name in active:  # steps of a turn after the first, chosen from the fastest step so far
            shortest = self.players[name].fastest
            more = 0 if shortest >= turn_s else min(1000, round(turn_s / max(shortest, 1e-7)))
            slow = block and long_s < shortest < float("inf")
            turns[name] = partial(self._turn, name, 1 if slow else max(block, more))
        counted, self.load = play_rounds(turns, self._rest, pids, rounds, seconds)
        for parts in self.samples.values():
            for part, turns in parts.items():
                parts[part] = [turns[i] for i in counted]

    def _turn(self, name, more):
        """Run one contender's turn and record its times. One that fails is removed with its earlier times."""
        if name not in self.players:
            return
        try:
            times = self.players[name].ask(do="turn", steps=1 + more)["times"]
        except Failed as error:
            self._leave_out(name, error)
            self.samples.pop(name, None)
            self.players.pop(name).close()
            return
        for part, seconds in times.items():
            rounds = self.samples.setdefault(name, {}).setdefault(part, [])
            rounds.append(seconds[1:] if more else seconds)

    def _rest(self, name):
        if name in self.players:
            settle(*self.players[name].pids)

    def peak(self, name):
        """Peak memory of this contender's process, in bytes."""
        return self.players[name].ask(do="peak")["bytes"]
