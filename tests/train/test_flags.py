"""A dataclass of settings read from flags and TOML: types, limits and error messages."""

import argparse
import dataclasses
from dataclasses import dataclass

import pytest

from gpt2.cli import Parser
from gpt2.errors import UserError
from gpt2.train.flags import add_arguments, parse, read_toml, setting, table, to_toml


@dataclass(frozen=True)
class Example:
    batch_size: int = setting("data", 4, "sequences", minimum=1)
    name: str = setting("data", "", "any text")
    lr: float = setting("rate", 0.5, "learning rate", minimum=0, below=1)
    mode: str = setting("rate", "a", "one of two", choices=("a", "b"))
    loud: bool = setting("rate", False, "whether to print it")


def read(*argv):
    parser = Parser("test")
    parser.add_argument("--config")
    add_arguments(parser, Example)
    return parse(parser, Example, list(argv))


def test_only_given_flags_are_returned():
    assert read() == ({}, {"config": None})
    given, other = read("--batch-size", "8", "--lr=1e-1", "--loud", "--config", "x")
    assert given == {"batch_size": 8, "lr": 0.1, "loud": True} and other == {"config": "x"}
    assert Example(**given) == Example(batch_size=8, lr=0.1, loud=True)


def test_underscores_may_stand_for_dashes():
    assert read("--batch_size=3", "--name=a_b")[0] == {"batch_size": 3, "name": "a_b"}


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--batchsize", "3"], "unknown argument --batchsize; did you mean --batch-size?"),
        (["--batch", "3"], "unknown argument --batch"),  # a prefix could mean another flag tomorrow
        (["--zzz"], "unknown argument --zzz; --help lists"),
        (["stray"], "unknown argument stray"),
        (["--batch-size", "many"], "--batch-size: expected a whole number, got 'many'"),
        (["--batch-size", "1.5"], "--batch-size: expected a whole number, got '1.5'"),
        (["--batch-size", "0"], "--batch-size: expected 1 or more, got 0"),
        (["--batch-size"], "expected one argument"),
        (["--lr", "1"], "--lr: expected less than 1, got 1.0"),
        (["--lr", "nan"], "--lr: expected 0 or more, got nan"),
        (["--lr", "fast"], "--lr: expected a number, got 'fast'"),
        (["--mode", "c"], "--mode: expected one of a, b; got 'c'"),
    ],
)
def test_invalid_flag_is_named(argv, message):
    with pytest.raises(UserError) as error:
        read(*argv)
    assert message in error.value.as_flag and "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # with a byte order mark
def test_toml_settings_may_be_in_tables(tmp_path, encoding):
    path = tmp_path / "c.toml"
    path.write_text('batch-size = 8\n[any]\nlr = 0\nname = "x"\nloud = true\n', encoding)
    assert read_toml(path, Example) == {"batch_size": 8, "lr": 0.0, "name": "x", "loud": True}


@pytest.mark.parametrize(
    "text, message",
    [
        ("batch_sise = 1", "unknown setting 'batch_sise'; did you mean batch_size?"),
        ("batch_size = 'x'", "batch_size: expected a whole number, got 'x'"),
        ("batch_size = true", "batch_size: expected a whole number, got True"),
        ("batch_size = 2.5", "batch_size: expected a whole number, got 2.5"),
        ("batch_size = [1]", "batch_size: expected a whole number, got [1]"),
        ("lr = inf", "lr: expected 0 or more, got inf"),
        ("name = 3", "name: expected text, got 3"),
        ("loud = 1", "loud: expected true or false, got 1"),
        ("lr = 0.1\n[t]\nlr = 0.2", "lr is set twice"),
        ("[a.b]\nlr = 0.1", "table 'b' inside a table"),
        ("lr = ", "not a TOML file"),
    ],
)
def test_invalid_toml_is_named(tmp_path, text, message):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_toml(path, Example)
    assert message in error.value.as_flag and "c.toml" in str(error.value) and "\n" not in str(error.value)


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(UserError, match="none.toml: No such file"):
        read_toml(tmp_path / "none.toml", Example)
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UserError, match="not a TOML file"):
        read_toml(tmp_path / "c.toml", Example)


@pytest.mark.parametrize(
    "example",
    [
        Example(),
        Example(batch_size=10**12, name='C:\\new "日😀"\n\x00\t\x7f\u2028', lr=1 / 3, mode="b", loud=True),
    ],
)
def test_toml_round_trip(tmp_path, example):
    path = tmp_path / "c.toml"
    path.write_text(to_toml(example), encoding="utf-8")
    assert Example(**read_toml(path, Example)) == example


def test_table_shows_changed_settings_by_group():
    assert table(Example(lr=0.25)) == "data  batch_size=4\nrate  lr=0.25 mode=a loud=False"


def test_help_lists_groups_defaults_and_units(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    text = capsys.readouterr().out
    assert "data:" in text and "rate:" in text
    assert "sequences (default: 4)" in text and "one of two (default: a)" in text


def test_settings_of_training_have_help_groups_and_distinct_flags():
    from gpt2.train.settings import Settings

    for field in dataclasses.fields(Settings):
        assert len(field.metadata["help"]) > 5 and field.metadata["group"], field.name
    parser = argparse.ArgumentParser()
    add_arguments(parser, Settings)  # argparse refuses a flag that is there
