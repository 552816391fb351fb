"""Standard output that goes away or takes no more: a run is saved, ends in one line, and loses no step."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2 import output
from gpt2.errors import exit_status
from gpt2.storage import runs
from gpt2.train.loop import Interrupts
from gpt2.weights import checkpoint
from tests.support.small_run import ROOT, command, environment, flags, python, run

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")
FULL = Path("/dev/full")
full = pytest.mark.skipif(not FULL.exists(), reason="needs POSIX processes")


def steps(folder):
    """The steps that stand in the metrics; the checkpoint is of the last one."""
    records = map(json.loads, (folder / runs.METRICS).read_text().splitlines())
    found = [record["step"] for record in records if "loss" in record]
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == found[-1]
    return found


@pytest.mark.slow
@posix
@pytest.mark.parametrize("lines", ["own", "llm.c"])
def test_a_reader_that_has_seen_enough(prose, tmp_path, lines):
    """As `head`: it reads some lines and closes the pipe."""
    more = ["--steps", "100000", "--lines", lines]
    process = subprocess.Popen(
        command(*flags(prose[0], tmp_path / "a", *more)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    for line in process.stdout:
        if re.match("step +3[/:]", line):
            break
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=120) == 128 + signal.SIGPIPE
    done = steps(tmp_path / "a")
    assert done == list(range(1, len(done) + 1)) and 3 <= len(done) < 100000
    said = [line for line in error.splitlines() if line.startswith("error")]
    assert said == [
        f"error: standard output: Broken pipe; stopped and saved at step {done[-1]}; "
        f"resume with: {sys.executable} {ROOT / 'train.py'} --resume {tmp_path / 'a'}"
    ]
    assert lines == "llm.c" or error.splitlines() == said


@pytest.mark.slow
@full
def test_an_output_that_is_full(prose, tmp_path):
    with FULL.open("w") as nowhere:
        done = run(command(*flags(prose[0], tmp_path / "a")), stdout=nowhere)
        assert done.returncode == 128 + signal.SIGPIPE
        assert done.stderr.count("\n") == 1 and "No space left on device; stopped and saved at" in done.stderr
        assert steps(tmp_path / "a") == [1]
        done = run(command("--resume", tmp_path / "a", "--steps", "2"), stdout=nowhere)
    assert done.returncode == 1  # nothing is missing but what it had to say
    assert done.stderr == (
        f"error: standard output: No space left on device; done and saved: 2 steps, all in {tmp_path / 'a'}\n"
    )
    assert steps(tmp_path / "a") == [1, 2]


@pytest.mark.slow
@posix
@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_an_output_that_was_closed_from_the_start(prose, tmp_path, closed):
    """Not reported; but no file of the run gets the number of standard output."""

    def close():
        for number in closed:
            os.close(number)

    done = run(command(*flags(prose[0], tmp_path / "a")), preexec_fn=close)
    assert done.returncode == 0 and done.stdout == ""
    if 2 not in closed:
        assert done.stderr.count("\n") == 1 and "standard output is closed" in done.stderr
    assert steps(tmp_path / "a") == [1, 2, 3, 4, 5, 6]


def test_an_output_that_is_closed_on_the_way(prose, tmp_path):
    script = """
import sys
from gpt2.train import program
from gpt2.train.run import Run
train_step = Run.train_step
def closes(run):
    if run.step == 3:
        sys.__stdout__.close()
    return train_step(run)
Run.train_step = closes
sys.exit(program.main(sys.argv[1:]))
"""
    done = python(script, *flags(prose[0], tmp_path / "a"))
    assert done.returncode == 141 and steps(tmp_path / "a") == [1, 2, 3, 4]
    assert done.stderr.count("\n") == 1 and "closed file; stopped and saved at step 4" in done.stderr


@full
@pytest.mark.parametrize("words", [["-m", "gpt2"], ["-m", "gpt2", "explain", "gelu"], ["train.py", "--help"]])
def test_other_commands_say_it_in_one_line(words):
    with FULL.open("w") as nowhere:
        done = run([sys.executable, *words], stdout=nowhere)
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


def test_a_reader_of_other_commands_that_has_seen_enough_is_no_error():
    script = "import sys\nfrom gpt2.errors import exit_status\n"
    script += "sys.exit(exit_status(lambda: [print('x' * 70000) for _ in range(100)] and 0))"
    words = [sys.executable, "-c", script]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(timeout=60) == 0


def test_standard_output_is_given_back(capsys):
    before = sys.stdout
    assert exit_status(lambda: print("words")) == 0
    assert sys.stdout is before and capsys.readouterr().out == "words\n"


def test_a_character_that_cannot_be_written_is_no_lost_output(tmp_path):
    with open(tmp_path / "file", "w", encoding="ascii") as file:
        out = output.Output(file)
        with pytest.raises(UnicodeEncodeError):
            out.write("é")
        assert out.lost is None


# ---- SIGHUP ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs POSIX signals")
def test_a_terminal_that_is_closed_says_so_twice(hangup):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received == signal.SIGHUP
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs POSIX signals")
def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received is None
    finally:
        signal.signal(signal.SIGHUP, before)
