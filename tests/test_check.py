"""The checks of gradients, the sources, and the derived source of each layer as it was last looked at.

After a change of the compiler: GPT2_GOLDEN=write pytest tests/test_check.py, and read the difference.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from gpt2.commands import check
from gpt2.commands.explain import __main__ as explain
from gpt2.commands.explain.sources import derived_source
from gpt2.layers import LAYERS

pytestmark = pytest.mark.numeric

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", LAYERS)
def test_derived_source_is_the_golden_one(name):
    file = GOLDEN / f"{name}.py.txt"
    source = derived_source(name)
    if os.environ.get("GPT2_GOLDEN") == "write":
        file.write_text(source, encoding="utf-8")
    assert source == file.read_text(encoding="utf-8")


def test_all_gradients_agree_and_every_layer_is_printed(capsys):
    assert check.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in (*LAYERS, "model"))
    assert "BAD" not in out and "all hold" in out


def test_a_wrong_gradient_is_found(monkeypatch, capsys):
    """A factor of 1 + 1e-6 in a hand-written backward is enough."""
    gelu = LAYERS["gelu"]
    wrong = dataclasses.replace(
        gelu, backward=lambda dout, saved: (gelu.backward(dout, saved)[0] * (1 + 1e-6),)
    )
    monkeypatch.setitem(LAYERS, "gelu", wrong)
    assert not check.check_gradients()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "BAD" in line] == ["gelu", "model"]


def test_a_wrong_rule_of_the_compiler_is_not_blamed_on_the_backward_by_hand(monkeypatch, capsys):
    errors = {
        "manual~auto": (1.0, 1e-8),
        "manual~differences": (1e-10, 1e-6),
        "auto~differences": (1.0, 1e-6),
    }
    monkeypatch.setattr(check, "check_layer", lambda name, *args, **options: errors)
    assert check.main(["gelu"]) == 1
    out = capsys.readouterr().out
    assert "gelu: the backward by hand agrees with differences, the derived one does not" in out
    assert "gelu_backward" not in out


def test_explain_shows_all_three(capsys):
    assert explain.main(["layernorm"]) == 0
    out = capsys.readouterr().out
    assert "def layernorm_forward(inp, weight, bias):" in out and "dinp = (dnorm - shift" in out
    assert "def layernorm_backward(inp, weight, mean, rstd, dout):" in out
    assert explain.main(["gelu", "--emitted"]) == 0
    assert "out=" in capsys.readouterr().out
