"""Killed processes, full and read-only disks, locks of run folders. tests/long/crashes.py kills 200 times."""

import errno
import os
import re
import signal
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from gpt2.data import corpora
from gpt2.errors import UserError
from gpt2.storage import files, lock, runs
from gpt2.storage.lock import Lock
from gpt2.train import program
from gpt2.train.run import Run
from gpt2.weights import checkpoint
from tests.support import small_run
from tests.support.faults import Faults, full, kill, read_only
from tests.support.small_run import flags, posix

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def folder(tmp_path):
    """The folder of a run, not made yet."""
    return tmp_path / "a"


@pytest.fixture
def new_run(prose, folder):
    """The command line of a run that begins there."""
    return flags(prose[0], folder)


def arrays(number):
    return {"a": np.full((3, 4), number, np.float32), "b": np.arange(5) + number}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, arrays(1), {"number": 1})
    return path


def calls_of_a_save(path):
    """The names of the operating system's calls that a save makes."""
    with Faults() as faults:
        checkpoint.save(path, arrays(0), {"number": 0})
    return faults.calls


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_calls_of_a_save(tmp_path):
    # the writes are of the header, two arrays and the checksum, the last fsync is of the folder
    expected = "open write write write write fsync replace replaced fsync"
    assert " ".join(calls_of_a_save(tmp_path / "c")) == expected


# ---- Killed ------------------------------------------------------------------------------------------------


@posix
def test_kill_at_any_call_of_a_save_leaves_a_whole_checkpoint(saved):
    calls = calls_of_a_save(saved.with_name("other"))
    for at in range(1, len(calls) + 1):
        child = os.fork()
        if not child:
            with Faults(at, kill):
                checkpoint.save(saved, arrays(2), {"number": 2})
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        loaded, state = checkpoint.load(saved)
        assert state["number"] == (2 if "replaced" in calls[:at] else 1)
        assert (loaded["a"] == state["number"]).all()
    checkpoint.save(saved, arrays(3), {"number": 3})  # removes what the killed processes left
    assert checkpoint.load(saved)[1]["number"] == 3 and not list(saved.parent.glob(".*.tmp"))


@pytest.mark.slow
@posix
def test_killed_runs_end_with_the_bits_of_an_uninterrupted_one():
    words = "-m tests.long.crashes --kills 6 --seed 1".split()
    done = small_run.run([sys.executable, *words], timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^6 kills .*: 0 lost or differing$", done.stdout, re.M), done.stdout


TEMPORARY = f".gpt2-{files.HOST}-0123456789abcdef.tmp"


def test_resumed_run_removes_temporary_files_of_a_killed_one(new_run, folder):
    assert program.main([*new_run, "--steps", "2"]) == 0
    (folder / TEMPORARY).write_bytes(b"half")
    (folder / "notes.txt").write_text("the user's own")
    assert program.main(["--resume", str(folder), "--steps", "4"]) == 0
    assert names(folder) == {"notes.txt", *runs.FILES}


def test_new_run_removes_temporary_files_of_a_killed_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = runs.new("x") / TEMPORARY
    left.write_bytes(b"half")
    assert runs.new("x").name == "x-2" and not left.exists()


def test_resuming_an_ended_run_changes_nothing(new_run, folder, refusal):
    """Its last sample is recorded before the last save, so that no later kill can lose it."""
    assert program.main([*new_run, "--sample-tokens", "4"]) == 0
    before = (folder / runs.METRICS).read_bytes()
    assert b'"sample"' in before.splitlines()[-1]
    assert checkpoint.load_state(folder / runs.LAST)["metrics_bytes"] == len(before)
    assert "has done its 6 steps" in refusal(program.main, "--resume", folder)
    assert (folder / runs.METRICS).read_bytes() == before


# ---- Full and read-only disks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act, message",
    [(full, "No space left on device, free some space"), (read_only, "Read-only file system")],
    ids=["full", "read-only"],
)
def test_failed_save_keeps_the_previous_checkpoint(saved, act, message):
    calls = calls_of_a_save(saved.with_name("other"))
    for at in range(1, calls.index("replaced") + 1):
        with Faults(at, act):
            with pytest.raises(UserError, match=message + ".*; the previous checkpoint is intact"):
                checkpoint.save(saved, arrays(2), {"number": 2})
        assert checkpoint.load(saved)[1]["number"] == 1
        assert names(saved.parent) == {saved.name, "other"}


def test_run_on_a_full_disk_ends_in_one_line_and_can_be_resumed(prose, new_run, folder, refusal):
    corpora.prepare(str(prose[0]), "byte")  # or the first run alone would write tokens
    with Faults() as faults:
        assert program.main(new_run) == 0
    # after settings, tokenizer and the checkpoint of step 2
    second_checkpoint = [i for i, call in enumerate(faults.calls) if call == "replace"][3]
    with Faults(at=second_checkpoint - 1):
        error = refusal(program.main, *new_run, "--overwrite")
    assert error == (
        f"error: cannot write {folder}/last.safetensors: No space left on device, free some "
        "space; the previous checkpoint is intact\n"
    )
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == 2
    assert program.main(["--resume", str(folder)]) == 0
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == 6


def test_metrics_that_cannot_be_written_end_the_run_in_one_line(new_run, folder, refusal, monkeypatch):
    begin = Run.begin

    def begin_on_a_full_disk(run, folder):
        begin(run, folder)
        file = run.metrics

        def write(line):  # full after five bytes of the line of step 4
            if line.startswith(b'p": 4'):
                full()
            return file.write(line[:5] if b'"step": 4' in line else line)

        run.metrics = Mock(wraps=file, write=write)

    monkeypatch.setattr(Run, "begin", begin_on_a_full_disk)
    reason = "No space left on device; the last checkpoint is intact."
    error = refusal(program.main, *new_run)
    assert error.startswith(f"error: cannot write {folder}/metrics.jsonl: {reason}")
    monkeypatch.setattr(Run, "begin", begin)
    assert program.main(["--resume", str(folder)]) == 0
    steps = [line.split(b",")[0] for line in (folder / runs.METRICS).read_bytes().splitlines()]
    assert steps == [b'{"step": %d' % step for step in (1, 2, 3, 4, 5, 6, 6)]  # no half line, none twice


@pytest.mark.slow
@posix
def test_limit_on_file_sizes_keeps_the_previous_checkpoint(new_run, folder):
    """The kernel's own limit, in a new process."""
    assert program.main([*new_run, "--steps", "2"]) == 0
    before = (folder / runs.LAST).read_bytes()
    script = (
        "import resource, sys\nfrom gpt2.train import program\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2},) * 2)\n"
        "sys.exit(program.main(sys.argv[1:]))"
    )
    done = small_run.python(script, "--resume", folder, "--steps", "6")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr and "is intact" in done.stderr
    assert (folder / runs.LAST).read_bytes() == before
    assert not list(folder.glob(".*.tmp"))


@pytest.fixture
def read_only_folder(prose):
    """The folder of a run, where this process may not write."""
    with tempfile.TemporaryDirectory() as place:  # not tmp_path, which belongs to root alone
        folder = Path(place) / "run"
        assert program.main(flags(prose[0], folder)) == 0
        for path in (Path(place), folder, *folder.iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            yield folder
        finally:
            if user == 0:
                os.seteuid(0)
            for path in (folder, Path(place)):
                path.chmod(0o755)


@posix
def test_read_only_folder_is_refused(read_only_folder):
    with pytest.raises(UserError, match="run: cannot be written to: Permission denied; .* with out"):
        Lock(read_only_folder)
    with pytest.raises(UserError, match="Permission denied"):
        runs.new("x", str(read_only_folder / "new"))


# ---- Two runs in one folder --------------------------------------------------------------------------------


def test_folder_in_use_by_another_run_is_refused(new_run, folder, refusal):
    assert program.main(new_run) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    longer = ["--resume", str(folder), "--steps", "8"]
    with Lock(folder):
        for argv in (longer, [*new_run, "--overwrite"], new_run):
            error = refusal(program.main, *argv)
            assert error.startswith(f"error: {folder} is in use by process {os.getpid()} on ")
            assert "--out" in error
        after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != lock.NAME}
        assert after == before
    assert program.main(longer) == 0
    assert not (folder / lock.NAME).exists()


HOLDER = """
import sys, time
from gpt2.storage.lock import Lock
lock = Lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


@posix
def test_lock_of_a_killed_process_is_free(tmp_path):
    process = small_run.start([sys.executable, "-c", HOLDER, str(tmp_path)])
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid} on "):
        Lock(tmp_path)
    process.kill()
    process.communicate()
    assert (tmp_path / lock.NAME).exists()
    with Lock(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / lock.NAME).read_text()
    assert not (tmp_path / lock.NAME).exists()


COUNTER = """
import os, sys
from gpt2.errors import UserError
from gpt2.storage.lock import Lock
counter = sys.argv[1] + "/counter"
done = 0
while done < 100:
    try:
        lock = Lock(sys.argv[1])
    except UserError:
        continue
    with lock:
        number = int(open(counter).read())
        open(counter, "w").write(str(number + 1))
    done += 1
"""


@posix
def test_lock_excludes_other_processes(tmp_path):
    """Three processes take it in turn to add one to a number in a file: no addition is lost."""
    (tmp_path / "counter").write_text("0")
    command = [sys.executable, "-c", COUNTER, str(tmp_path)]
    processes = [small_run.start(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert (tmp_path / "counter").read_text() == "300"


def test_file_system_without_locks_is_used_without_them(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with Lock(tmp_path), Lock(tmp_path):
        pass


def test_lock_on_windows(tmp_path, monkeypatch):
    """With a stand-in for msvcrt: one byte far behind the text, which stays readable, without waiting."""
    held = set()

    def locking(handle, mode, count):
        assert (mode, count, os.lseek(handle, 0, os.SEEK_CUR)) == (2, 1, lock.FAR)
        if held:
            raise PermissionError(errno.EACCES, "Permission denied")
        held.add(handle)

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(lock, "sys", types.SimpleNamespace(platform="win32"))
    first = Lock(tmp_path)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        Lock(tmp_path)
    held.clear()  # as closing the file does
    first.release()
    assert not (tmp_path / lock.NAME).exists()


def test_lock_replaces_locks_of_killed_runs_but_no_file_of_the_users(tmp_path):
    file = tmp_path / lock.NAME
    file.write_text("a poem")
    with pytest.raises(UserError, match="lock: not the lock of a run; .* move the file"):
        Lock(tmp_path)
    assert file.read_text() == "a poem"
    file.write_text("process 1 on earth since 2001-01-01 00:00:00")
    Lock(tmp_path).release()
    assert not file.exists()
