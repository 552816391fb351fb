"""The certificate, the page of sources, and the derived source of each layer as it was last looked at.

After a change of the compiler: GPT2_GOLDEN=write pytest tests/test_certificate.py, and read the difference.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from gpt2.commands import certificate
from gpt2.layers import LAYERS

pytestmark = pytest.mark.numeric

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", LAYERS)
def test_derived_source_is_the_golden_one(name):
    file = GOLDEN / f"{name}.py.txt"
    source = certificate.derived_source(name)
    if os.environ.get("GPT2_GOLDEN") == "write":
        file.write_text(source, encoding="utf-8")
    assert source == file.read_text(encoding="utf-8")


def test_certificate_passes_and_prints_every_layer(capsys):
    assert certificate.main(["--check"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in (*LAYERS, "model"))
    assert "BAD" not in out and "all hold" in out


def test_certificate_finds_a_wrong_gradient(monkeypatch, capsys):
    """A factor of 1 + 1e-6 in a hand-written backward is enough."""
    gelu = LAYERS["gelu"]
    wrong = dataclasses.replace(
        gelu, backward=lambda dout, saved: (gelu.backward(dout, saved)[0] * (1 + 1e-6),)
    )
    monkeypatch.setitem(LAYERS, "gelu", wrong)
    assert certificate.main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "BAD" in line] == ["gelu", "model"]


def test_page_shows_all_three(capsys):
    assert certificate.main(["layernorm"]) == 0
    out = capsys.readouterr().out
    assert "def layernorm_forward(inp, weight, bias):" in out and "dinp = (dnorm - shift" in out
    assert "def layernorm_backward(inp, weight, mean, rstd, dout):" in out
    assert certificate.main(["gelu", "--emitted"]) == 0
    assert "out=" in capsys.readouterr().out


def test_wrong_command_line_is_one_line(capsys):
    assert certificate.main([]) == 2
    assert "name a layer" in capsys.readouterr().err
