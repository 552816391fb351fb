"""Atomic writes: permissions, links, leftovers of killed processes, and sets of files replaced together."""

import errno
import os
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

from gpt2.errors import UserError
from gpt2.storage import files
from tests import ROOT
from tests.support.faults import Faults, full, kill

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes and links")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_modes_of_the_temporary_file_of_a_new_one_and_of_one_that_is_replaced(tmp_path):
    path = tmp_path / "file"
    with files.replacing(path) as file:
        (temporary,) = tmp_path.iterdir()
        file.write(b"x")
        assert mode(temporary) == 0o600
    assert mode(path) == files.NEW_MODE and [*tmp_path.iterdir()] == [path]
    path.chmod(0o640)
    files.write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o640)


@posix
def test_pipes_and_devices_are_not_replaced(tmp_path):
    """Root could replace /dev/null by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"cannot write .*{name}: not a regular file"):
            files.write_atomically(tmp_path / name, b"new")
    assert stat.S_ISFIFO((tmp_path / "link").stat().st_mode) and len([*tmp_path.iterdir()]) == 2


@posix
def test_file_system_without_modes_can_be_written_to(tmp_path, monkeypatch):
    """As a share of Windows is: it refuses to change a mode."""

    def refuse(*args):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refuse)
    files.write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@posix
def test_link_with_the_name_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 2 * n)
    (tmp_path / f".gpt2-{files.HOST}-{'0' * 16}.tmp").symlink_to(other)
    with pytest.raises(UserError, match="cannot write .*file: File exists"):
        files.write_atomically(tmp_path / "file", b"new")
    assert other.read_bytes() == b"precious"


def test_exception_keeps_the_old_file_and_leaves_no_other(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), files.replacing(tmp_path / "file") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def touch_temporary(folder, host=files.HOST, number=1):
    path = folder / f".gpt2-{host}-{number:016x}.tmp"
    path.touch()
    return path


def test_next_write_removes_leftovers_of_killed_processes_only(tmp_path):
    left, other_host, idle = (touch_temporary(tmp_path, host) for host in (files.HOST, "0" * 8, "1" * 8))
    os.utime(idle, (0, 0))
    kept = [tmp_path / name for name in (".gpt2-notes.tmp", "a.tmp", ".a.0123abcd", f"x{left.name}")]
    for path in kept:
        path.touch()
    files.write_atomically(tmp_path / "file", b"new")
    assert {*tmp_path.iterdir()} == {*kept, other_host, tmp_path / "file"}


def start_script(script, *arguments):
    """A new process, with pipes of bytes that are not buffered here."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


WRITE_UNTIL_KILLED = """
import sys
from gpt2.storage import files
with files.replacing(sys.argv[1]) as file:
    file.write(b"x" * 10000)
    print("begun", flush=True)
    sys.stdin.read()
"""


@posix
def test_file_of_a_running_process_is_not_removed(tmp_path):
    process = start_script(WRITE_UNTIL_KILLED, tmp_path / "file")
    assert process.stdout.readline() == b"begun\n"
    (unfinished,) = tmp_path.iterdir()
    os.utime(unfinished, (0, 0))  # its age does not matter
    files.write_atomically(tmp_path / "other", b"new")
    assert unfinished.exists()
    process.kill()
    process.communicate()
    files.write_atomically(tmp_path / "other", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_without_locks_only_old_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "lock_file", lambda file: True)
    fresh, idle = touch_temporary(tmp_path), touch_temporary(tmp_path, number=2)
    os.utime(idle, (0, 0))
    files.sweep(tmp_path)
    assert [*tmp_path.iterdir()] == [fresh]


def test_temporary_file_removed_before_its_lock_is_created_again(tmp_path, monkeypatch):
    lock, swept = files.lock_file, []

    def remove_and_lock(file):
        if not swept:
            swept.append(os.unlink(file.name))
        return lock(file)

    monkeypatch.setattr(files, "lock_file", remove_and_lock)
    files.write_atomically(tmp_path / "file", b"new")
    assert swept and (tmp_path / "file").read_bytes() == b"new"


# ---- Sets of files -----------------------------------------------------------------------------------------


def pair(folder, number):
    return {folder / name: bytes([number]) * 5 for name in ("weights", "words")}


def numbers(folder):
    return [(folder / name).read_bytes()[0] for name in ("weights", "words")]


@posix
def test_set_is_whole_or_refused_after_a_kill_at_any_call(tmp_path):
    with Faults() as faults:
        files.write_together(pair(tmp_path / "other", 0))
    seen = set()
    for at in range(1, len(faults.calls) + 1):
        folder = tmp_path / str(at)
        files.write_together(pair(folder, 1))
        child = os.fork()
        if not child:
            with Faults(at, kill):
                files.write_together(pair(folder, 2))
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        try:
            files.check_whole(folder / "weights")
            assert numbers(folder) in ([1, 1], [2, 2])
            seen.add(numbers(folder)[0])
        except UserError as error:
            assert "was interrupted" in str(error)
            seen.add("refused")
        files.write_together(pair(folder, 3))
        files.check_whole(folder / "weights")
        assert numbers(folder) == [3, 3] and len([*folder.iterdir()]) == 2
    assert seen == {1, 2, "refused"}


WRITE_A_SET = """
import os, sys
from pathlib import Path
from tests.storage.test_files import files, pair
replace = os.replace
def replace_and_wait(source, target):
    replace(source, target)
    print("renamed", flush=True)
    sys.stdin.readline()
os.replace = replace_and_wait
files.write_together(pair(Path(sys.argv[1]), int(sys.argv[2])))
"""


@posix
def test_sets_are_renamed_by_one_process_at_a_time(tmp_path):
    first = start_script(WRITE_A_SET, tmp_path, 1)
    assert first.stdout.readline() == b"renamed\n"
    second = start_script(WRITE_A_SET, tmp_path, 2)
    while len([path for path in tmp_path.iterdir() if files.TEMPORARY.fullmatch(path.name)]) < 3:
        time.sleep(0.01)  # until the second process has written its two files
    assert not select.select([second.stdout], [], [], 0.3)[0]
    for process in (first, second):
        process.communicate(b"\n" * 2)
        assert process.returncode == 0
    assert numbers(tmp_path) == [2, 2] and len([*tmp_path.iterdir()]) == 2


def test_full_disk_keeps_the_old_set(tmp_path):
    files.write_together(pair(tmp_path, 1))
    with Faults() as faults:
        files.write_together(pair(tmp_path, 1))
    first = faults.calls.index("replace") + 1
    for at in {*range(1, first + 1)} - {first - 1}:  # some file systems cannot sync a folder
        with Faults(at, full), pytest.raises(UserError, match="cannot write .*weights: No space left"):
            files.write_together(pair(tmp_path, 2))
        assert numbers(tmp_path) == [1, 1] and len([*tmp_path.iterdir()]) == 2
        files.check_whole(tmp_path / "weights")


def test_user_errors_escape_control_characters():
    assert str(UserError("a\nb\x1b[31m\u2028naïve 日\ud800")) == r"a\nb\x1b[31m\u2028naïve 日\ud800"
