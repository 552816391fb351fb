"""llm.c's own program for the CPU, as its users run it: the binary train_gpt2 of a checkout that is built.

    LLMC_DIR   the checkout, in which `make train_gpt2` was run

The program has its batch in its source, 4 sequences of 64 tokens, and its own data, so it takes part at
124M-B4T64 alone, without a comparison of losses; it does not clip, and decays no weight. It is stopped in the
turns of others (SIGSTOP). Its own clock gives the time of a step, which leaves out its validation and its
samples.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.contenders import Missing
from bench.sizes import initial_weights
from gpt2.data.tokens import write_tokens
from gpt2.weights import llmc

BATCH = (4, 64)
TOKENS = 100_000
WARM = 2  # steps after a start that touch the memory for the first time
LAST = 19  # the number of the last step before it writes samples, which takes as long as twenty steps
STEP = re.compile(r"step (\d+): train loss \S+ \(took (\S+) ms\)")


class Training:
    """The program, and a folder with what it reads: weights, and files of tokens.

    seconds   of the last step, by the program's clock; of the first after a pause, by ours
    """

    def __init__(self, size, threads):
        self.program = Path(os.environ.get("LLMC_DIR", "")) / "train_gpt2"
        if "LLMC_DIR" not in os.environ or not os.access(self.program, os.X_OK):
            raise Missing("LLMC_DIR names no checkout of llm.c in which make train_gpt2 was run")
        if (size.B, size.T) != BATCH:
            raise Missing(f"the program trains on B={BATCH[0]}, T={BATCH[1]} alone")
        self.folder = Path(tempfile.mkdtemp(prefix="bench-llmc-"))
        llmc.write(self.folder / "gpt2_124M.bin", initial_weights(size.config), size.config)
        data = self.folder / "dev" / "data" / "tinyshakespeare"
        data.mkdir(parents=True)
        ids = np.random.default_rng(0).integers(0, size.config.vocab_size, TOKENS)
        for part in ("train", "val"):
            write_tokens(data / f"tiny_shakespeare_{part}.bin", ids)
        self.shared_bytes = 0
        self.process = None
        self._start()

    @property
    def pids(self):
        return [self.process.pid]

    def _start(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        # with util-linux, a worker that is killed takes the program with it
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self.process = subprocess.Popen(
            [*command, self.program.resolve()],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for _ in range(WARM):
            self._read()
        self._pause()

    def _pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def _read(self):
        """(number, seconds) of the next step that the program reports."""
        for line in self.process.stdout:
            if found := STEP.search(line):
                return int(found[1]), float(found[2]) / 1e3
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

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def training(size, variant, threads):
    return Training(size, threads)


def layer(case, variant, threads):
    raise Missing("its program trains the whole model; bench.studies enzyme has layers in C++")
