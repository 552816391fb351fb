"""gpt2 check compares gradients; the derived source of each layer is the one in tests/golden.

After a change of the compiler: GPT2_GOLDEN=write pytest tests/commands/test_check.py; read the difference.
"""

import dataclasses
import os

import pytest

from gpt2.commands import check
from gpt2.commands.explain.parts import explain
from gpt2.layers import ALL_LAYERS, LAYERS
from tests import ROOT

pytestmark = pytest.mark.numeric

GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.parametrize("name", LAYERS)
def test_derived_source_is_the_golden_one(name):
    file = GOLDEN / f"{name}.py.txt"
    source = explain(name).derived
    if os.environ.get("GPT2_GOLDEN") == "write":
        file.write_text(source, encoding="utf-8")
    assert source == file.read_text(encoding="utf-8")


def test_gradients_of_all_layers_and_the_model_agree(capsys):
    assert check.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in (*ALL_LAYERS, "model", "variant"))
    assert "BAD" not in out and "all hold" in out


def test_relative_error_of_1e_6_in_a_manual_gradient_is_found(monkeypatch, capsys):
    gelu = LAYERS["gelu"]

    def backward(dout, saved):
        return (gelu.backward(dout, saved)[0] * (1 + 1e-6),)

    monkeypatch.setitem(LAYERS, "gelu", dataclasses.replace(gelu, backward=backward))
    assert not check.check_gradients()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "BAD" in line] == ["gelu", "model", "BAD"]


def test_likely_cause_is_named_for_own_layers_too(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "from gpt2.layers import Layer\n"
        "def double_forward(inp):\n"
        "    return inp * inp, (inp,)\n"
        "def double_backward(dout, saved):\n"
        "    return (-2.0 * saved[0] * dout,)\n"
        "LAYERS = {'gelu': Layer('double', double_forward, double_backward)}\n"
    )
    assert check.main(["--layers", str(file)]) == 1
    out = capsys.readouterr().out
    assert "BAD gelu_backward (mine.py:5) is not the derivative" in out and "likely cause: the sign" in out


def test_wrong_derived_gradient_is_not_blamed_on_the_manual_one(monkeypatch, capsys):
    errors = {"manual~differences": (1e-10, 1e-6), "auto~differences": (1.0, 1e-6)}
    errors["manual~auto"] = (1.0, 1e-8)
    monkeypatch.setattr(check, "check_layer", lambda name, *args, **options: errors)
    assert check.main(["gelu"]) == 1
    out = capsys.readouterr().out
    assert "gelu: the backward by hand agrees with differences, the derived one does not" in out
    assert "gelu_backward" not in out
