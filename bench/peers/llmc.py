"""llm.c's CPU program train_gpt2, run from a checkout.

    LLMC_DIR   the checkout, in which `make train_gpt2` was run

The program reads a model of any shape from its checkpoint, but its batch, 4 sequences of 64 tokens, is fixed
in the source. For another batch the two numbers are changed in a copy, which the checkout's Makefile builds.
It has its own data, so losses are not compared; it neither clips nor decays weights. It is stopped (SIGSTOP)
during others' turns. Steps are timed by its own clock, which leaves out validation and samples.
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

BATCH = (4, 64)  # of the unchanged program
TOKENS = 100_000
WARM = 2  # uncounted steps after a start, which touch memory for the first time
LAST = 19  # number of the last step before it generates samples, which take as long as twenty steps
STEP = re.compile(r"step (\d+): train loss \S+ \(took (\S+) ms\)")


def checkout():
    """The folder of LLMC_DIR. Raises Missing if train_gpt2 was not built there."""
    folder = os.environ.get("LLMC_DIR")
    if not folder or not os.access(Path(folder) / "train_gpt2", os.X_OK):
        raise Missing("LLMC_DIR names no checkout of llm.c in which make train_gpt2 was run")
    return Path(folder).resolve()


def with_batch(source, B, T):
    """The source with another batch. Raises Missing unless B and T are each set in one place."""
    for name, number in (("B", B), ("T", T)):
        source, count = re.subn(rf"\bint {name} = \d+;", f"int {name} = {number};", source)
        if count != 1:
            raise Missing(f"train_gpt2.c sets {name} at {count} places, expected one")
    return source


def built(source, B, T, folder):
    """The program for this batch: the checkout's, or one built in `folder` from a changed copy."""
    if (B, T) == BATCH:
        return source / "train_gpt2"
    shutil.copytree(source / "llmc", folder / "llmc")
    shutil.copy(source / "Makefile", folder)
    text = with_batch((source / "train_gpt2.c").read_text(encoding="utf-8"), B, T)
    (folder / "train_gpt2.c").write_text(text, encoding="utf-8")
    done = subprocess.run(["make", "train_gpt2"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"make failed for another batch: {(done.stderr.splitlines() or [''])[-1]}")
    return folder / "train_gpt2"


class Training:
    """The running program, and a temporary folder with its weights and token files.

    times   seconds of the warm-up steps
    """

    def __init__(self, size, variant, threads):
        source = checkout()
        self.folder = Path(tempfile.mkdtemp(prefix="bench-llmc-"))
        self.process = None
        self.shared_bytes = 0
        try:
            self.program = built(source, size.B, size.T, self.folder)
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
        self.about = "AdamW without clipping, its own data"
        if (size.B, size.T) != BATCH:
            self.about += f"; B and T changed in its source to {size.B} and {size.T}"

    @property
    def pids(self):
        return [self.process.pid]

    def _start(self):
        """Start or restart the program. Returns the seconds of its warm-up steps."""
        self._stop()
        # setpriv (util-linux) has the program killed if the worker is
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        ours, theirs = os.openpty()  # its output to a pipe would be buffered for some forty steps
        self.process = subprocess.Popen([*command, self.program], cwd=self.folder, stdout=theirs)
        os.close(theirs)
        self.lines = open(ours, encoding="utf-8", errors="replace")
        times = [self._read()[1] for _ in range(WARM)]
        os.kill(self.process.pid, signal.SIGSTOP)
        return times

    def _read(self):
        """(number, seconds) of the next reported step."""
        with suppress(OSError):  # the terminal is closed
            for line in self.lines:
                if match := STEP.search(line):
                    return int(match[1]), float(match[2]) / 1e3
        raise RuntimeError(f"{self.program} ended with status {self.process.wait()}")

    def block(self, steps):
        """Seconds of each step. The first is the remainder of the step that was paused."""
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
        os.kill(self.process.pid, signal.SIGSTOP)
        return times

    def _stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.lines.close()

    def close(self):
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


training = Training
