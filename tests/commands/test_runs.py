"""gpt2 runs, what gpt2 convert writes about a run, and gpt2 sample in a pipe: on two short runs."""

import json

import pytest

from gpt2.commands import convert
from gpt2.commands import runs as command
from gpt2.train import program
from gpt2.train.flops import Peak
from tests.support import small_run
from tests.support.small_run import posix

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the runs runs/a and runs/b, of which b has seen more steps."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "secret" / "my.txt"
    text.parent.mkdir()
    text.write_text("to be or not to be, that is the question\n" * 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt2.train.console.flops.matmul_peak", lambda dtype: Peak(1e11))
        for name, steps in (("a", "2"), ("b", "8")):
            out = folder / "runs" / name
            assert program.main(small_run.flags(text, out, "--steps", steps)) == 0
    return folder


def test_runs_are_listed_best_first_with_the_settings_that_differ(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert command.main([]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "steps", "loss", "val_loss", "settings"]
    assert first.split()[:2] == ["runs/b", "8/8"] and first.endswith("  steps=8")
    assert second.split()[:2] == ["runs/a", "2/2"] and second.endswith("  steps=2")
    assert command.main(["runs/a", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["name"], run["step"], run["settings"]["steps"]) == ("runs/a", 2, 2)
    assert run["val_loss"] == pytest.approx(float(second.split()[3]), abs=1e-4)


def test_no_run_is_one_line(tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert "no run in " in refusal(command.main)
    assert "nothing: no run here" in refusal(command.main, "nothing")


def test_model_card_names_data_steps_and_loss_and_no_folders(folder, tmp_path):
    out = tmp_path / "mine"
    paths = convert.convert(str(folder / "runs" / "b"), out)
    text = (out / "README.md").read_text()
    assert out / "README.md" in paths and "secret" not in text and str(folder) not in text
    assert "| data | my.txt |" in text and "| steps | 8 of " in text and 'from_pretrained("mine")' in text
    assert text.startswith("---\nlibrary_name: transformers\n") and "nats per token" in text
    convert.convert(str(folder / "runs" / "a"), out)  # replaces its own card, and no other
    assert "| steps | 2 of " in (out / "README.md").read_text()
    (out / "README.md").write_text("# By hand")
    convert.convert(str(folder / "runs" / "b"), out)
    assert (out / "README.md").read_text() == "# By hand"


@posix
def test_sample_takes_its_prompt_from_a_pipe(folder):
    flags = ["--run", folder / "runs" / "b", "--max-tokens", 3, "--json"]
    done = small_run.module("gpt2", "sample", *flags, input="to be\n")
    answer = json.loads(done.stdout)
    assert answer["prompt"] == "to be" and len(answer["samples"][0]["tokens"]) == 3
    assert "logprobs" not in answer["samples"][0]
