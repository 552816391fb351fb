"""Benchmarks of the same form: their contenders do the same work, and the table has their ratios."""

import math

import numpy as np

from bench import optimizers, texts
from bench.harness import contenders, contest, sizes


def test_both_optimizers_have_the_same_first_loss(monkeypatch):
    small = sizes.Size("small", sizes.GPT2Config(17, 8, n_layer=1, n_head=1, n_embd=8), 2, 8)
    monkeypatch.setitem(sizes.SIZES, "small", small)
    turns = [optimizers.work(None, name, 1, "small").turn(2) for name in optimizers.CONTENDERS]
    first, second = (turn["losses"] for turn in turns)
    assert first[0] == second[0] and first[1] != second[1]


def test_same_tokens_and_half_of_the_targets(tmp_path, gpt2_tokenizer):
    texts.write_texts(tmp_path, 3, 30_000)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [10_000] * 3
    counts = {name: texts.work(None, name, 1, tmp_path).turn(1)["tokens"] for name in ("tiktoken", "gpt2")}
    assert counts["tiktoken"] == counts["gpt2"] > 3_000
    alone = {name: texts.work(None, name, 1, tmp_path).turn(1)["losses"] for name in ("all", "half")}
    assert np.isfinite([*alone.values()]).all() and alone["all"] != alone["half"]


def test_table_has_ratios_within_rounds_and_names_those_that_differ():
    timed = {
        "full": {"rounds": [[2.0], [4.0]], "first": 4.0, "bytes": 2**30},
        "lora": {"rounds": [[1.0], [2.0]], "first": 4.00001, "bytes": 2**29},
        "half": {"rounds": [[1.0], [1.0]], "first": None, "bytes": 2**20},
    }
    assert contest.differing(timed, 1e-4) == {}
    assert contest.differing(timed, 0.0) == {"lora": 4.00001}
    timed["half"]["first"] = math.nan
    assert [*contest.differing(timed, 1e-4)] == ["half"]
    result = {"threads": 2, "contenders": timed, "differing": {"half": 4.1}, "absent": {}, "load": None}
    players = {name: contenders.Contender(f"the {name}", "m") for name in timed}
    text = contest.as_text("gpt2", result, players, {"lora": ["full", "gone"]})
    rows = {line[:8]: line for line in text.splitlines()}
    assert "gpt2, threads: 2" in text and "half: NOT THE SAME, begins with 4.1" in text
    assert "1500.0 ms" in rows["the lora"] and "512 MiB" in rows["the lora"]
    assert rows["the lora"].endswith("0.50 [0.50 0.50] of the full")
