"""What is left when a process dies or the disk refuses. tests/long/crashes.py kills two hundred times."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.storage import files, lock, runs
from gpt2.storage.lock import Lock
from gpt2.train import program
from gpt2.train.run import Run
from gpt2.weights import checkpoint
from tests.support.faults import Faults, full, kill, read_only

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --steps 6 "
    "--eval-every 0 --eval-batches 1 --sample-tokens 0 --save-every 2 --compile off"
).split()

pytestmark = pytest.mark.usefixtures("quick_peak")
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")


@pytest.fixture
def small(prose):
    return ["--data", str(prose[0]), *SMALL]


def arrays(number):
    return {"a": np.full((3, 4), number, np.float32), "b": np.arange(5) + number}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, arrays(1), {"number": 1})
    return path


def points(path):
    """What a save asks of the disk, one word a call."""
    with Faults() as faults:
        checkpoint.save(path, arrays(0), {"number": 0})
    return faults.calls


def test_what_a_save_asks_of_the_disk(tmp_path):
    # header, two arrays, checksum; at last the folder
    assert points(tmp_path / "c") == ["open", *["write"] * 4, "fsync", "replace", "replaced", "fsync"]


# ---- Killed ------------------------------------------------------------------------------------------------


@posix
def test_killed_at_any_point_of_a_save(saved):
    calls = points(saved.with_name("other"))
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
    checkpoint.save(saved, arrays(3), {"number": 3})  # leftovers of killed runs do not matter
    assert checkpoint.load(saved)[1]["number"] == 3 and not list(saved.parent.glob(".*.tmp"))


@pytest.mark.slow
@posix
def test_killed_runs_end_as_if_nothing_had_happened():
    command = [sys.executable, "-m", "tests.long.crashes", "--kills", "6", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^6 kills .*: 0 lost or differing$", done.stdout, re.M), done.stdout


def test_what_a_killed_run_left_is_swept_up(small, tmp_path):
    folder = tmp_path / "a"
    assert program.main([*small, "--out", str(folder), "--steps", "2"]) == 0
    (folder / f".gpt2-{files.HOST}-0123456789abcdef.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("the user's own")
    assert program.main(["--resume", str(folder), "--steps", "4"]) == 0
    assert {path.name for path in folder.iterdir()} == {
        "notes.txt",
        runs.SETTINGS,
        runs.TOKENIZER,
        runs.METRICS,
        runs.LAST,
        runs.BEST,
    }


def test_what_a_killed_run_left_is_swept_up_by_the_next_one_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = runs.new("x") / f".gpt2-{files.HOST}-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    assert runs.new("x").name == "x-2" and not left.exists()


def test_a_run_that_is_done_loses_nothing_when_it_is_resumed(small, tmp_path, capsys):
    """The text at its end is recorded before the last save: it is there after a kill that comes later."""
    folder = tmp_path / "a"
    assert program.main([*small, "--out", str(folder), "--sample-tokens", "4"]) == 0
    before = (folder / runs.METRICS).read_bytes()
    assert b'"sample"' in before.splitlines()[-1]
    assert checkpoint.load_state(folder / runs.LAST)["metrics_bytes"] == len(before)
    assert program.main(["--resume", str(folder)]) == 2
    assert "has done its 6 steps" in capsys.readouterr().err
    assert (folder / runs.METRICS).read_bytes() == before


# ---- A disk that refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act, words", [(full, "No space left on device, free some space"), (read_only, "Read-only file system")]
)
def test_a_disk_that_refuses_leaves_the_checkpoint_before(saved, act, words):
    calls = points(saved.with_name("other"))
    for at in range(1, calls.index("replaced") + 1):
        with Faults(at, act):
            with pytest.raises(UserError, match=words + ".*; the previous checkpoint is intact"):
                checkpoint.save(saved, arrays(2), {"number": 2})
        assert checkpoint.load(saved)[1]["number"] == 1
        assert {path.name for path in saved.parent.iterdir()} == {saved.name, "other"}


def test_a_disk_that_fills_up_ends_the_run_in_one_line(small, tmp_path, capsys):
    """The second save meets a full disk: the first is there, the run goes on from it once there is room."""
    folder = tmp_path / "a"
    with Faults() as faults:
        assert program.main([*small, "--out", str(folder)]) == 0
    second = [i for i, what in enumerate(faults.calls) if what == "replace"][3]  # settings, tokenizer, step 2
    with Faults(at=second - 1):
        assert program.main([*small, "--out", str(folder), "--overwrite"]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: cannot write {folder}/last.safetensors: No space left on device, free some "
        "space; the previous checkpoint is intact\n"
    )
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == 2
    assert program.main(["--resume", str(folder)]) == 0
    assert checkpoint.load(folder / runs.LAST)[1]["step"] == 6


def test_metrics_that_cannot_be_written_end_the_run_in_one_line(small, tmp_path, capsys, monkeypatch):
    class Full:
        """Takes five bytes of a line of step 4, and no more."""

        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, line):
            if b'"step": 4' in line:
                return self.file.write(line[:5])
            if line.startswith(b'p": 4'):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(line)

    begin = Run.begin

    def begins(run, folder):
        begin(run, folder)
        run.metrics = Full(run.metrics)

    folder = tmp_path / "a"
    monkeypatch.setattr(Run, "begin", begins)
    assert program.main([*small, "--out", str(folder)]) == 2
    error = capsys.readouterr().err
    assert (
        error.startswith(
            f"error: cannot write {folder}/metrics.jsonl: No space left on device; the last "
            "checkpoint is intact."
        )
        and error.count("\n") == 1
    )
    monkeypatch.setattr(Run, "begin", begin)
    assert program.main(["--resume", str(folder)]) == 0
    steps = [line.split(b",")[0] for line in (folder / runs.METRICS).read_bytes().splitlines()]
    assert steps == [b'{"step": %d' % step for step in (1, 2, 3, 4, 5, 6, 6)]  # no half line, none twice


@pytest.mark.slow
@posix
def test_a_limit_on_the_size_of_files(small, tmp_path):
    """The kernel's own refusal, in a new process."""
    folder = tmp_path / "a"
    assert program.main([*small, "--out", str(folder), "--steps", "2"]) == 0
    before = (folder / runs.LAST).read_bytes()
    script = (
        "import resource, sys\nfrom gpt2.train import program\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2},) * 2)\n"
        "sys.exit(program.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--resume", str(folder), "--steps", "6"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr and "is intact" in done.stderr
    assert (folder / runs.LAST).read_bytes() == before
    assert not list(folder.glob(".*.tmp"))


@pytest.fixture
def read_only_folder(small):
    """A run in a folder where this process may not write, and the flags of the run."""
    with tempfile.TemporaryDirectory() as place:  # not tmp_path, which belongs to root alone
        folder = Path(place) / "run"
        assert program.main([*small, "--out", str(folder)]) == 0
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
def test_a_read_only_folder_is_one_line(read_only_folder):
    with pytest.raises(UserError, match="run: cannot be written to: Permission denied; .* with --out"):
        Lock(read_only_folder)
    with pytest.raises(UserError, match="Permission denied"):
        runs.new("x", str(read_only_folder / "new"))


# ---- Two runs in one folder --------------------------------------------------------------------------------


def test_two_runs_in_one_folder(small, tmp_path, capsys):
    folder = tmp_path / "a"
    assert program.main([*small, "--out", str(folder)]) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Lock(folder):
        for argv in (
            ["--resume", str(folder), "--steps", "8"],
            [*small, "--out", str(folder), "--overwrite"],
            [*small, "--out", str(folder)],
        ):
            assert program.main(argv) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"error: {folder} is in use by process {os.getpid()} on ")
            assert error.count("\n") == 1 and "--out" in error
        after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != lock.NAME}
        assert after == before
    assert program.main(["--resume", str(folder), "--steps", "8"]) == 0
    assert not (folder / lock.NAME).exists()


def test_a_run_that_fails_lets_go(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "train_step", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        program.main([*small, "--out", str(tmp_path / "a")])
    Lock(tmp_path / "a").release()


HOLDS = """
import sys, time
from gpt2.storage.lock import Lock
lock = Lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


@posix
def test_the_lock_of_a_killed_process_is_free(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid} on "):
        Lock(tmp_path)
    process.kill()
    process.communicate()
    assert (tmp_path / lock.NAME).exists()
    with Lock(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / lock.NAME).read_text()
    assert not (tmp_path / lock.NAME).exists()


COUNTS = """
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
def test_no_two_have_the_lock_at_once(tmp_path):
    """Three processes take it and remove its file in turn; each adds one under it, and none gets lost."""
    (tmp_path / "counter").write_text("0")
    command = [sys.executable, "-c", COUNTS, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert (tmp_path / "counter").read_text() == "300"


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuses(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with Lock(tmp_path), Lock(tmp_path):
        pass


def test_the_lock_on_windows(tmp_path, monkeypatch):
    """With a stand-in for its module: one byte, far behind the text, which stays readable; no waiting."""
    held = set()

    def locking(handle, how, count):
        assert (how, count, os.lseek(handle, 0, os.SEEK_CUR)) == (2, 1, lock.FAR)
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


def test_a_users_own_file_called_lock_is_left_alone(tmp_path):
    (tmp_path / lock.NAME).write_text("a poem")
    with pytest.raises(UserError, match="lock: not the lock of a run; .* move the file"):
        Lock(tmp_path)
    assert (tmp_path / lock.NAME).read_text() == "a poem"
    (tmp_path / lock.NAME).write_text(
        "process 1 on earth since 2001-01-01 00:00:00"
    )  # of a run that was killed
    Lock(tmp_path).release()
    assert not (tmp_path / lock.NAME).exists()
