"""bench.texts: both tokenizers have the same tokens of the same files, and the table has their ratio."""

import numpy as np

from bench import texts


def test_same_tokens_and_half_of_the_targets(tmp_path, gpt2_tokenizer):
    texts.write_texts(tmp_path, 3, 30_000)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [10_000] * 3
    counts = {name: texts.work(None, name, 1, tmp_path).turn(1)["tokens"] for name in ("tiktoken", "gpt2")}
    assert counts["tiktoken"] == counts["gpt2"] > 3_000
    alone = {name: texts.work(None, name, 1, tmp_path).turn(1)["losses"] for name in ("all", "half")}
    assert np.isfinite([*alone.values()]).all() and alone["all"] != alone["half"]


def test_table_has_ratios_within_rounds():
    rounds = {"tiktoken": [[2.0], [4.0]], "gpt2": [[1.0], [2.0]], "all": [[0.1], [0.1]]}
    timed = {name: {"rounds": r, "tokens": 7, "bytes": 10**8} for name, r in rounds.items()}
    load = {"others": None, "seconds": 1, "load_average": 0, "rounds": 2, "rounds_counted": 2}
    text = texts.as_text({"threads": 2, "contenders": timed, "absent": {}, "load": load})
    rows = {line[:10]: line for line in text.splitlines()}
    assert "1500.0 ms" in rows["gpt2, from"] and "0.50 [0.50 0.50]" in rows["gpt2, from"]
    assert "100 MB" in rows["step, all "]
