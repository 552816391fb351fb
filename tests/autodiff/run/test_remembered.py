"""Choices kept in files: by machine, by any number of processes, and whatever the files hold."""

import json
import os

import pytest

from gpt2.autodiff.run import remembered
from gpt2.autodiff.run.remembered import Choices

KEY, TEXT = (3, "C", 4), "3 C 4"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No other choices than those of the test, and no folder."""
    monkeypatch.setattr(remembered, "_all", [])
    monkeypatch.setattr(remembered, "_folder", None)


def kept(folder, **kwargs):
    """Choices as a new process has them."""
    remembered.remember(folder)
    return Choices("ways.json", ("left", "right"), **kwargs)


def test_without_a_folder_choices_last_as_long_as_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ways = Choices("ways.json", ("left", "right"))
    assert ways.get(KEY) is None
    ways.put(KEY, "left")
    assert ways.get(KEY) == "left"
    remembered.forget()
    assert ways.get(KEY) is None and not list(tmp_path.iterdir())


def test_a_later_process_finds_them(tmp_path):
    folder = tmp_path / "made" / "when needed"
    ways = kept(folder)
    assert not folder.exists()
    ways.put(KEY, "left")
    assert json.loads((folder / "ways.json").read_text()) == {
        ways.machine(): {TEXT: ["left", 1, remembered.today()]}
    }
    assert [path.name for path in folder.iterdir()] == ["ways.json"]  # nothing temporary
    assert kept(folder).get(KEY) == "left"
    assert kept(folder).get((3, "C", 5)) is None
    late = Choices("ways.json", ("left", "right"))  # made when the folder was known already
    assert late.get(KEY) == "left"


def test_what_this_process_chose_stays(tmp_path):
    kept(tmp_path).put(KEY, "left")
    remembered.forget()
    ways = Choices("ways.json", ("left", "right"))
    ways.put(KEY, "right")
    remembered.remember(tmp_path)
    assert ways.get(KEY) == "right"


def test_processes_at_the_same_time_add_to_the_file(tmp_path):
    one, other = kept(tmp_path), kept(tmp_path)
    one.put((1,), "left")
    other.put((2,), "right")
    both = kept(tmp_path)
    assert (both.get((1,)), both.get((2,))) == ("left", "right")


def test_another_machine_and_another_version_choose_for_themselves(tmp_path, monkeypatch):
    kept(tmp_path, software=lambda: "numexpr 2.10").put(KEY, "left")
    assert kept(tmp_path, software=lambda: "numexpr 2.11").get(KEY) is None
    for what, value in (("processor", lambda: "Z80"), ("_version", lambda: "9.9")):
        with monkeypatch.context() as changed:
            changed.setattr(f"gpt2.autodiff.run.remembered.{what}", value)
            ways = kept(tmp_path, software=lambda: "numexpr 2.10")
            assert ways.get(KEY) is None
            ways.put(KEY, "right")
    assert kept(tmp_path, software=lambda: "numexpr 2.10").get(KEY) == "left"  # theirs lies beside it
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
    '{"MACHINE": {"3 C 4": ["up", 3, 20000]}}',
    '{"MACHINE": {"3 C 4": ["left", "3", 20000]}}',
    '{"MACHINE": {"3 C 4": ["left", -1, 20000]}}',
    "[" * 100_000,
    "\xff\xfe",
    "\0" * 40,
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_counts_as_empty_and_is_mended(tmp_path, text):
    path = tmp_path / "ways.json"
    path.write_bytes(text.replace("MACHINE", kept(tmp_path).machine()).encode("latin-1"))
    ways = kept(tmp_path)
    assert ways.get(KEY) is None
    ways.put(KEY, "right")
    assert kept(tmp_path).get(KEY) == "right"


def test_a_choice_is_believed_once_enough_processes_have_come_to_it(tmp_path):
    """One of them may have met the machine at a bad time; and a process has one vote, however often it
    saves."""
    for found in ("right", "right", "left", "left", "left"):
        ways = kept(tmp_path, sure=3)
        assert ways.get(KEY) is None
        ways.put(KEY, found)
        ways.put((found, 5), "left")
        assert ways.get(KEY) == found  # in this process
    # right had two votes and lost one, then left took its place, and has two
    assert kept(tmp_path, sure=3).get(KEY) is None
    assert kept(tmp_path, sure=2).get(KEY) == "left"


def test_a_choice_that_is_believed_can_be_voted_out(tmp_path):
    for found in ("left", "left", "left", "right", "right", "right", "right"):
        kept(tmp_path, sure=2).put(KEY, found)
    assert kept(tmp_path, sure=2).get(KEY) == "right"


def test_after_some_days_it_is_measured_again(tmp_path, monkeypatch):
    now = remembered.today()
    kept(tmp_path, days=30).put(KEY, "left")
    for later, found in ((29, "left"), (30, None), (-1, None)):  # the last: the clock was wrong at one time
        monkeypatch.setattr(remembered, "today", lambda later=later: now + later)
        assert kept(tmp_path, days=30).get(KEY) == found
        assert kept(tmp_path).get(KEY) == "left"


def test_what_is_not_worth_keeping_is_for_this_process_alone(tmp_path):
    ways = kept(tmp_path)
    ways.put(KEY, "left", keep=False)
    ways.put((5,), "right")
    assert ways.get(KEY) == "left"
    assert kept(tmp_path).get(KEY) is None and kept(tmp_path).get((5,)) == "right"


def test_any_text_may_be_chosen_where_no_values_are_named(tmp_path):
    remembered.remember(tmp_path)
    Choices("texts.json", None).put(KEY, "this and that")
    assert Choices("texts.json", None).get(KEY) == "this and that"


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "ways.json").mkdir(parents=True)  # a folder where the file belongs
    for folder in (tmp_path / "file", tmp_path / "folder"):
        ways = kept(folder)
        ways.put(KEY, "left")
        assert ways.get(KEY) == "left"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["ways.json"]  # nothing temporary


def test_what_a_killed_writer_left_goes(tmp_path):
    left, fresh = tmp_path / "choices.json.abc.tmp", tmp_path / "choices.json.def.tmp"
    left.write_text("{")
    fresh.write_text("{")
    os.utime(left, (0, 0))
    remembered._write(tmp_path / "choices.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["choices.json", "choices.json.def.tmp"]
