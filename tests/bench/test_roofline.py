"""bench.roofline: the time of a step's statements beside the machine's bounds."""

import ast
import re

import numpy as np
import pytest

from bench import roofline
from bench.harness import rates, sizes
from gpt2.model import GPT2Config


def test_statements_report_flops_bytes_and_time(monkeypatch):
    monkeypatch.setattr(rates, "sgemm_peak", lambda threads: 1e11)
    monkeypatch.setattr(rates, "copy_bandwidth", lambda: 1e10)
    size = sizes.Size("tiny", GPT2Config(512, 64, 3, 2, 32), 4, 64)
    result = roofline.measure(size, "whole", 1, 1)
    products = {row["name"]: row for row in result["rows"] if row["kind"] == "product"}
    # the qkv product of each of three blocks with its two gradients, and the head
    for name, calls in {
        "256 x 32 x 96": 3,
        "256 x 96 x 32": 3,
        "96 x 256 x 32": 3,
        "256 x 32 x 512": 1,
    }.items():
        assert products[name]["calls"] == calls
        assert products[name]["flops"] == 2 * calls * np.prod([int(n) for n in name.split(" x ")])
    assert products["8 of 64 x 16 x 64"]["flops"] >= 2 * 3 * 8 * 64 * 16 * 64
    memory = {row["name"]: row for row in result["rows"] if row["kind"] == "memory"}
    parameters = size.config.num_parameters
    assert memory["AdamW"]["bytes"] == 28 * parameters and memory["norm"]["bytes"] == 4 * parameters
    assert memory["AdamW"]["bound_ms"] == pytest.approx(28 * parameters / 1e7)
    assert memory["gelu"]["bytes"] >= 3 * 3 * 4 * 256 * 128  # three blocks, each array once
    known = sum(row["ms"] for row in result["rows"])
    assert 0.5 * result["clocked_ms"] < known <= 1.001 * result["clocked_ms"]
    result["load"] = {"others": None}
    assert "512 x 256 x 32" in roofline.as_text(result)
    by_layer = roofline.measure(size, "manual", 1, 1)["rows"]
    assert products.keys() <= {row["name"] for row in by_layer}


def test_clock_is_read_after_each_statement():
    clock = roofline.Clock()
    source = (
        "import numpy as np\n\n\ndef f(x, out, memory):\n    t = np.exp(x)  # a.py:1\n\n"
        "    def rows(k, i, j):\n        np.multiply(x[i:j], 2.0, out=out[i:j])  # b.py:2\n\n"
        "    run_blocks(rows, blocks1, scratch1)\n    return (out,)\n"
    )
    text = clock.instrumented(source)
    assert [f"_look({i})" in text for i in (-1, 0, 1, 2)] == [True, True, True, False]
    assert re.sub(r"    _look\(-?\d\)\n", "", text) == ast.unparse(ast.parse(source))
    assert [*map(ast.unparse, clock.statements)] == ["t = np.exp(x)", "run_blocks(rows, blocks1, scratch1)"]
    assert clock.files == ["a", "b"]
