"""llm.c's own program for the CPU, as its users run it: train_gpt2 of a checkout in which it was built.

    LLMC_DIR   the checkout, in which `make train_gpt2` was run

The program reads a model of any shape from its checkpoint, but has its batch in its source, 4 sequences of 64
tokens. For another batch these two numbers are changed in a copy of the source, and that is built by the
checkout's own Makefile. It reads its own data, so there is no comparison of losses; it does not clip, and
decays no weight. It is stopped in the turns of others (SIGSTOP). A step is timed by its own clock, which
leaves out validation and samples.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench.harness.contenders import Missing
from bench.harness.sizes import initial_weights
from gpt2.data.tokens import write_tokens
from gpt2.weights import llmc

BATCH = (4, 64)  # of the program as it is
NUMBERS = (r"\bint B = 4;", r"\bint T = 64;")  # where its source has it
TOKENS = 100_000
WARM = 2  # steps after a start that touch the memory for the first time
LAST = 19  # the number of the last step before it writes samples, which takes as long as twenty steps
STEP = re.compile(r"step (\d+): train loss \S+ \(took (\S+) ms\)")


def checkout():
    """The folder of LLMC_DIR. Raises Missing where no program was built in it."""
    folder = os.environ.get("LLMC_DIR")
    if not folder or not os.access(Path(folder) / "train_gpt2", os.X_OK):
        raise Missing("LLMC_DIR names no checkout of llm.c in which make train_gpt2 was run")
    return Path(folder).resolve()


def with_batch(source, B, T):
    """The program's source with another batch. Raises Missing where it does not say its own in two places."""
    for pattern, name, number in zip(NUMBERS, "BT", (B, T)):
        source, count = re.subn(pattern, f"int {name} = {number};", source)
        if count != 1:
            raise Missing(f"train_gpt2.c sets {name} at {count} places, expected one")
    return source


def built(source, size, folder):
    """The program for this batch: that of the checkout `source`, or one that is built in `folder`."""
    if (size.B, size.T) == BATCH:
        return source / "train_gpt2"
    shutil.copytree(source / "llmc", folder / "llmc")
    shutil.copy(source / "Makefile", folder)
    text = (source / "train_gpt2.c").read_text(encoding="utf-8")
    (folder / "train_gpt2.c").write_text(with_batch(text, size.B, size.T), encoding="utf-8")
    try:
        done = subprocess.run(["make", "train_gpt2"], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(f"its batch has to be built in, and make is not there: {error.strerror}") from None
    if done.returncode:
        raise Missing(
            f"its batch has to be built in, and make failed: {(done.stderr.splitlines() or [''])[-1]}"
        )
    return folder / "train_gpt2"


class Training:
    """The program, and a folder with what it reads: weights, and files of tokens.

    times   seconds of the steps that it did to get warm
    """

    def __init__(self, size, threads):
        source = checkout()
        self.folder = Path(tempfile.mkdtemp(prefix="bench-llmc-"))
        self.process = None
        self.shared_bytes = 0
        try:
            self.program = built(source, size, self.folder)
            llmc.write(self.folder / "gpt2_124M.bin", initial_weights(size.config), size.config)
            data = self.folder / "dev" / "data" / "tinyshakespeare"
            data.mkdir(parents=True)
            ids = np.random.default_rng(0).integers(0, size.config.vocab_size, TOKENS)
            for part in ("train", "val"):
                write_tokens(data / f"tiny_shakespeare_{part}.bin", ids)
            self.times = self._start()
        except BaseException:
            self.close()
            raise
        changed = (
            "" if (size.B, size.T) == BATCH else f"; B and T changed in its source to {size.B} and {size.T}"
        )
        self.about = f"AdamW without clipping, data of its own{changed}"

    @property
    def pids(self):
        return [self.process.pid]

    def _start(self):
        """Begin anew; the seconds of its first steps."""
        self._stop()
        # with util-linux, a worker that is killed takes the program with it
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        ours, theirs = os.openpty()  # into a pipe it would write some forty steps at once
        self.process = subprocess.Popen([*command, self.program], cwd=self.folder, stdout=theirs)
        os.close(theirs)
        self.lines = self._lines(ours)
        times = [self._read()[1] for _ in range(WARM)]
        self._pause()
        return times

    @staticmethod
    def _lines(terminal):
        """What is written to a terminal, until it is closed."""
        with open(terminal, encoding="utf-8", errors="replace") as lines, suppress(OSError):
            yield from lines

    def _pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def _read(self):
        """(number, seconds) of the next step that the program reports."""
        for line in self.lines:
            if match := STEP.search(line):
                return int(match[1]), float(match[2]) / 1e3
        raise RuntimeError(f"{self.program} ended with status {self.process.wait()}")

    def block(self, steps):
        """Seconds of each of so many steps; the first holds the rest of the one that a pause cut off."""
        times = []
        os.kill(self.process.pid, signal.SIGCONT)
        begin = time.perf_counter()
        while len(times) < steps:
            number, seconds = self._read()
            times.append(seconds if times else time.perf_counter() - begin)
            if number == LAST:
                self._start()
                os.kill(self.process.pid, signal.SIGCONT)
                self._read()
        self._pause()
        return times

    def _stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.lines.close()

    def close(self):
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def training(size, variant, threads):
    return Training(size, threads)


def layer(case, variant, threads):
    raise Missing("its program trains the whole model; bench.studies enzyme has layers in C++")
