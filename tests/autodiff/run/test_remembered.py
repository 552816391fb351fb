"""Choices in files: shared by processes, separate for each machine, robust against damaged files."""

import json
import os

import pytest

from gpt2.autodiff.run import remembered
from gpt2.autodiff.run.remembered import Choices

KEY, TEXT = (3, "C", 4), "3 C 4"


@pytest.fixture(autouse=True)
def isolated(monkeypatch):
    """No folder, and no choices from outside the test."""
    monkeypatch.setattr(remembered, "_all", [])
    monkeypatch.setattr(remembered, "_folder", None)


def make_choices(**kwargs):
    return Choices("ways.json", ("left", "right"), **kwargs)


def reopen(folder, **kwargs):
    """Choices as a new process sees them."""
    remembered.remember(folder)
    return make_choices(**kwargs)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ways = make_choices()
    assert ways.get(KEY) is None
    ways.put(KEY, "left")
    assert ways.get(KEY) == "left"
    remembered.forget()
    assert ways.get(KEY) is None and not list(tmp_path.iterdir())


def test_a_later_process_reads_them(tmp_path):
    folder = tmp_path / "created" / "when needed"
    ways = reopen(folder)
    assert not folder.exists()
    ways.put(KEY, "left")
    assert json.loads((folder / "ways.json").read_text()) == {
        ways.machine(): {TEXT: ["left", remembered.today()]}
    }
    assert [path.name for path in folder.iterdir()] == ["ways.json"]  # nothing temporary
    assert reopen(folder).get(KEY) == "left"
    assert reopen(folder).get((3, "C", 5)) is None


def test_choices_of_this_process_take_precedence_over_the_file(tmp_path):
    reopen(tmp_path).put(KEY, "left")
    remembered.forget()
    ways = make_choices()
    ways.put(KEY, "right")
    remembered.remember(tmp_path)
    assert ways.get(KEY) == "right"


def test_concurrent_processes_add_to_the_file(tmp_path):
    one, other = reopen(tmp_path), reopen(tmp_path)
    one.put((1,), "left")
    other.put((2,), "right")
    both = reopen(tmp_path)
    assert (both.get((1,)), both.get((2,))) == ("left", "right")


def test_other_machines_and_versions_have_their_own_choices(tmp_path, monkeypatch):
    reopen(tmp_path, software=lambda: "numexpr 2.10").put(KEY, "left")
    assert reopen(tmp_path, software=lambda: "numexpr 2.11").get(KEY) is None
    for function, result in (("processor", "Z80"), ("_version", "9.9")):
        with monkeypatch.context() as m:
            m.setattr(remembered, function, lambda *args, result=result: result)
            ways = reopen(tmp_path, software=lambda: "numexpr 2.10")
            assert ways.get(KEY) is None
            ways.put(KEY, "right")
    assert reopen(tmp_path, software=lambda: "numexpr 2.10").get(KEY) == "left"  # not overwritten
    assert len(json.loads((tmp_path / "ways.json").read_text())) == 3


DAMAGED = [
    "",
    "{",
    "[1]",
    "null",
    '{"x": 3}',
    '{"MACHINE": ["left"]}',
    '{"MACHINE": {"3 C 4": "left"}}',
    '{"MACHINE": {"3 C 4": ["left"]}}',
    '{"MACHINE": {"3 C 4": ["up", 20000]}}',
    '{"MACHINE": {"3 C 4": ["left", "20000"]}}',
    '{"MACHINE": {"3 C 4": ["left", 3, 20000]}}',
    "[" * 100_000,
    "\xff\xfe",
    "\0" * 40,
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_file_counts_as_empty_and_is_replaced(tmp_path, text):
    path = tmp_path / "ways.json"
    path.write_bytes(text.replace("MACHINE", reopen(tmp_path).machine()).encode("latin-1"))
    ways = reopen(tmp_path)
    assert ways.get(KEY) is None
    ways.put(KEY, "right")
    assert reopen(tmp_path).get(KEY) == "right"


def test_choice_expires_after_some_days(tmp_path, monkeypatch):
    now = remembered.today()
    reopen(tmp_path, days=30).put(KEY, "left")
    for later, expected in ((29, "left"), (30, None), (-1, None)):  # -1: the clock was once ahead
        monkeypatch.setattr(remembered, "today", lambda later=later: now + later)
        assert reopen(tmp_path, days=30).get(KEY) == expected
        assert reopen(tmp_path).get(KEY) == "left"


def test_keep_false_is_for_this_process_alone(tmp_path):
    ways = reopen(tmp_path)
    ways.put(KEY, "left", keep=False)
    ways.put((5,), "right")
    assert ways.get(KEY) == "left"
    assert reopen(tmp_path).get(KEY) is None and reopen(tmp_path).get((5,)) == "right"


def test_values_none_allows_any_text(tmp_path):
    remembered.remember(tmp_path)
    Choices("texts.json", None).put(KEY, "this and that")
    assert Choices("texts.json", None).get(KEY) == "this and that"


def test_unwritable_folder_is_ignored(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "ways.json").mkdir(parents=True)  # a folder in place of the file
    for folder in (tmp_path / "file", tmp_path / "folder"):
        ways = reopen(folder)
        ways.put(KEY, "left")
        assert ways.get(KEY) == "left"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["ways.json"]  # nothing temporary


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    old, recent = tmp_path / "choices.json.abc.tmp", tmp_path / "choices.json.def.tmp"
    old.write_text("{")
    recent.write_text("{")
    os.utime(old, (0, 0))
    remembered._write(tmp_path / "choices.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["choices.json", "choices.json.def.tmp"]
