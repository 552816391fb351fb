"""bench.optimizers: both optimizers train the same model, and the table has their ratios."""

from bench import optimizers
from bench.harness import sizes


def test_same_first_loss(monkeypatch):
    small = sizes.Size("small", sizes.GPT2Config(17, 8, n_layer=1, n_head=1, n_embd=8), 2, 8)
    monkeypatch.setitem(sizes.SIZES, "small", small)
    turns = [optimizers.work(None, name, 1, "small").turn(2) for name in optimizers.CONTENDERS]
    first, second = (turn["losses"] for turn in turns)
    assert first[0] == second[0] and first[1] != second[1]


def test_table_has_ratios():
    timed = {
        "adamw": {"rounds": [[1.0], [2.0]], "bytes": 2**30},
        "muon": {"rounds": [[1.5], [3.0]], "bytes": 2**29},
    }
    load = {"others": None}
    text = optimizers.as_text(
        {"size": "small", "threads": 2, "contenders": timed, "absent": {}, "load": load}
    )
    assert "1.50 [1.50 1.50]" in text and text.count("0.50") == 1 and "512 MiB" in text
