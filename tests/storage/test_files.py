"""Files that appear whole or not at all: who may read them, what is left, what is not followed."""

import os
import stat

import pytest

from gpt2.errors import UserError
from gpt2.storage import files

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes and links")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("alone", [False, True])
def test_what_is_being_written_is_private(tmp_path, alone):
    with files.replacing(tmp_path / "file", alone) as file:
        (temporary,) = tmp_path.iterdir()
        file.write(b"x")
        assert mode(temporary) == 0o600
    assert mode(tmp_path / "file") == files.NEW_MODE
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@posix
def test_the_mode_of_the_file_before_is_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    files.write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o640)


@posix
def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / "file.tmp").symlink_to(other)
    with files.replacing(tmp_path / "file", alone=True) as file:
        file.write(b"new")
    assert other.read_bytes() == b"precious" and (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()


def test_what_raises_leaves_nothing(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        with files.replacing(tmp_path / "file") as file:
            file.write(b"new")
            raise KeyboardInterrupt
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_leftovers_are_ours_alone(tmp_path):
    ours = {".a.0123abcd", "a.tmp", ".b.c.00000000"}
    for name in (*ours, "a", ".a.0123abc", ".a.0123ABCD", ".x.0123abcd", "b_c.tmp", ".bxc.00000000"):
        (tmp_path / name).touch()
    assert {path.name for path in files.leftovers(tmp_path, ["a", "b.c"])} == ours


def test_errors_are_one_line_whatever_they_quote():
    assert str(UserError("a\nb\x1b[31m\u2028naïve 日\ud800")) == r"a\nb\x1b[31m\u2028naïve 日\ud800"
