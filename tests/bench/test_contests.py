"""Benchmarks of the same form: their contenders do the same work, and the table has their ratios."""

import math

import numpy as np
import pytest

from bench import optimizers, step, texts, time_to_loss
from bench.harness import contenders, contest, engine, sizes
from bench.harness.sizes import step_flops
from examples import llama
from gpt2 import autodiff as ad
from gpt2.data import corpora


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


# ---- bench.llama -------------------------------------------------------------------------------------------

SIZE = sizes.LLAMAS["llama-2x128-B2T64"]


def losses(trainer, count=3):
    stream = sizes.batches(SIZE)
    return [trainer.step(*next(stream)) for _ in range(count)]


@pytest.mark.slow
def test_contenders_train_the_same_model():
    torch = pytest.importorskip("torch")
    from bench.peers import pytorch

    try:
        theirs = losses(pytorch.llama(SIZE, "tuned", 1))
    finally:
        torch.set_flush_denormal(False)
    assert losses(engine.llama(SIZE, "whole", 1)) == pytest.approx(theirs, rel=step.TOLERANCE)
    shares = losses(engine.llama(SIZE, "shares", 2))
    assert shares == pytest.approx(theirs, rel=step.TOLERANCE)
    assert abs(theirs[0] - math.log(256)) < 0.1 and theirs[0] != theirs[1]


def test_step_flops_agree_with_the_compilers_count():
    """Except for attention: the compiler counts whole squares of scores, step_flops the lower triangle."""
    size, c = SIZE, SIZE.config
    params = {name: np.ones(shape, np.float32) for name, shape in llama.shapes(c).items()}
    tokens = np.zeros((size.B, size.T), int)
    counted = ad.flops(ad.value_and_grad(llama.loss_fn), params, tokens, tokens, c)
    width, N = c.num_attention_heads * c.head_dim, size.B * size.T
    above = 3 * 4 * c.num_hidden_layers * width * N * (size.T - (size.T + 1) / 2)
    assert math.isclose(counted, step_flops(size) + above, rel_tol=1e-12)


# ---- bench.time_to_loss ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "peer", "tolerance"),
    [("adamw", "torch-adamw", 1e-4), ("muon", "torch-muon", 0.05)],  # in bfloat16, and qkv is one matrix
)
def test_a_recipe_and_its_peer_have_one_loss(monkeypatch, prose, recipe, peer, tolerance):
    """Same weights, batches, schedule and validation: after four steps, relative to how far the loss fell."""
    torch = pytest.importorskip("torch")
    prepared = corpora.prepare(prose[0], "char")
    monkeypatch.setattr(corpora, "prepare", lambda corpus, tokenizer: prepared)
    monkeypatch.setattr(time_to_loss, "WARMUP", 2)
    losses = {}
    try:
        for name in (recipe, peer):
            work = time_to_loss.work(None, name, 1, seed=3)
            losses[name] = [work.turn(steps)["loss"] for steps in (1, 3)]
    finally:
        torch.set_flush_denormal(False)
    fall = losses[peer][0] - losses[peer][1]
    assert fall > 0.05
    assert np.abs(np.subtract(losses[recipe], losses[peer])).max() < tolerance * max(fall, 1.0)


def test_table_has_steps_seconds_and_ratios_within_seeds():
    def curves(*seconds):
        first = [[50, 1.0, 2.0], [100, seconds[0], 1.8]]
        return {"torch-adamw": first, "muon": [[50, seconds[1], 1.7]], "adamw": [[50, 3.0, 1.95]]}

    result = {"threads": 2, "target": 1.88, "seeds": [0, 1], "curves": [curves(4.0, 1.0), curves(4.0, 2.0)]}
    text = time_to_loss.as_text(result)
    rows = {line[:10]: line for line in text.splitlines()}
    assert "2 of 2" in rows["gpt2, Muon"] and "0.38 [0.25 0.50]" in rows["gpt2, Muon"]
    assert "0 of 2" in rows["gpt2, Adam"]
