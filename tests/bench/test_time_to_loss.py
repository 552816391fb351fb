"""bench.time_to_loss: recipes of the same mathematics see the same text, and the table of their curves."""

import numpy as np
import pytest

from bench import time_to_loss
from gpt2.data import corpora


@pytest.fixture
def torch():
    """Undoes what a recipe sets, which otherwise has a process of its own."""
    module = pytest.importorskip("torch")
    yield
    module.set_flush_denormal(False)


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("recipe", "peer", "tolerance"),
    [("adamw", "torch-adamw", 1e-4), ("muon", "torch-muon", 0.05)],  # in bfloat16, and qkv is one matrix
)
def test_a_recipe_and_its_peer_have_one_loss(monkeypatch, prose, recipe, peer, tolerance):
    """Same weights, batches, schedule and validation: after four steps, relative to how far the loss fell."""
    prepared = corpora.prepare(prose[0], "char")
    monkeypatch.setattr(corpora, "prepare", lambda corpus, tokenizer: prepared)
    monkeypatch.setattr(time_to_loss, "WARMUP", 2)
    losses = {}
    for name in (recipe, peer):
        work = time_to_loss.work(None, name, 1, seed=3)
        losses[name] = [work.turn(steps)["loss"] for steps in (1, 3)]
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
