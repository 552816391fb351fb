"""Standard output that is closed or full: a run is saved, ends in one line, and loses no step."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from gpt2 import output
from gpt2.errors import exit_status
from gpt2.storage import runs
from gpt2.train.loop import Interrupts
from gpt2.weights import checkpoint
from tests.support.small_run import ROOT, command, flags, posix, python, run, start

sighup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs POSIX signals")
FULL = Path("/dev/full")
full = pytest.mark.skipif(not FULL.exists(), reason="needs POSIX processes")


def saved_steps(folder):
    """The steps in the metrics, after a check that the checkpoint is of the last one."""
    records = map(json.loads, (folder / runs.METRICS).read_text().splitlines())
    steps = [record["step"] for record in records if "loss" in record]
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == steps[-1]
    return steps


@pytest.mark.slow
@posix
@pytest.mark.parametrize("lines", ["own", "llm.c"])
def test_pipe_closed_by_its_reader_stops_and_saves_the_run(prose, tmp_path, lines):
    """As `head` does, after some lines."""
    more = ["--steps", "100000", "--lines", lines]
    process = start(command(*flags(prose[0], tmp_path / "a", *more)))
    for line in process.stdout:
        if re.match("step +3[/:]", line):
            break
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=120) == 128 + signal.SIGPIPE
    steps = saved_steps(tmp_path / "a")
    assert steps == list(range(1, len(steps) + 1)) and 3 <= len(steps) < 100000
    errors = [line for line in error.splitlines() if line.startswith("error")]
    assert errors == [
        f"error: standard output: Broken pipe; stopped and saved at step {steps[-1]}; "
        f"resume with: {sys.executable} {ROOT / 'train.py'} --resume {tmp_path / 'a'}"
    ]
    assert lines == "llm.c" or error.splitlines() == errors


@pytest.mark.slow
@full
def test_full_output_stops_and_saves_the_run(prose, tmp_path):
    with FULL.open("w") as nowhere:
        done = run(command(*flags(prose[0], tmp_path / "a")), stdout=nowhere)
        assert done.returncode == 128 + signal.SIGPIPE
        assert done.stderr.count("\n") == 1 and "No space left on device; stopped and saved at" in done.stderr
        assert saved_steps(tmp_path / "a") == [1]
        done = run(command("--resume", tmp_path / "a", "--steps", "2"), stdout=nowhere)
    assert done.returncode == 1  # all steps are done, only their output is lost
    assert done.stderr == (
        f"error: standard output: No space left on device; done and saved: 2 steps, all in {tmp_path / 'a'}\n"
    )
    assert saved_steps(tmp_path / "a") == [1, 2]


@pytest.mark.slow
@posix
@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_run_without_standard_output_is_trained(prose, tmp_path, closed):
    """No file of the run gets the number of standard output."""

    def close():
        for number in closed:
            os.close(number)

    done = run(command(*flags(prose[0], tmp_path / "a")), preexec_fn=close)
    assert done.returncode == 0 and done.stdout == ""
    if 2 not in closed:
        assert done.stderr.count("\n") == 1 and "standard output is closed" in done.stderr
    assert saved_steps(tmp_path / "a") == [1, 2, 3, 4, 5, 6]


def test_output_closed_while_running_stops_and_saves_the_run(prose, tmp_path):
    script = """
import sys
from gpt2.train import program
from gpt2.train.run import Run
train_step = Run.train_step
def close_at_3(run):
    if run.step == 3:
        sys.__stdout__.close()
    return train_step(run)
Run.train_step = close_at_3
sys.exit(program.main(sys.argv[1:]))
"""
    done = python(script, *flags(prose[0], tmp_path / "a"))
    assert done.returncode == 141 and saved_steps(tmp_path / "a") == [1, 2, 3, 4]
    assert done.stderr.count("\n") == 1 and "closed file; stopped and saved at step 4" in done.stderr


@full
@pytest.mark.parametrize("words", [["-m", "gpt2"], ["-m", "gpt2", "explain", "gelu"], ["train.py", "--help"]])
def test_full_output_of_other_commands_is_one_line(words):
    with FULL.open("w") as nowhere:
        done = run([sys.executable, *words], stdout=nowhere)
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


def test_pipe_of_other_commands_closed_by_its_reader_is_no_error():
    script = "import sys\nfrom gpt2.errors import exit_status\n"
    script += "sys.exit(exit_status(lambda: [print('x' * 70000) for _ in range(100)] and 0))"
    process = start([sys.executable, "-c", script])
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=60) == 0


def test_exit_status_restores_standard_output(capsys):
    before = sys.stdout
    assert exit_status(lambda: print("words")) == 0
    assert sys.stdout is before and capsys.readouterr().out == "words\n"


def test_character_that_cannot_be_encoded_does_not_count_as_lost_output(tmp_path):
    with open(tmp_path / "file", "w", encoding="ascii") as file:
        out = output.Output(file)
        with pytest.raises(UnicodeEncodeError):
            out.write("é")
        assert out.lost is None


# ---- SIGHUP ------------------------------------------------------------------------------------------------


@sighup
def test_repeated_sighup_of_a_closed_terminal_does_not_interrupt_the_save(hangup):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received == signal.SIGHUP
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@sighup
def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received is None
    finally:
        signal.signal(signal.SIGHUP, before)
