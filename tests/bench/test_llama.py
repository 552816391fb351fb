"""bench.llama: all contenders train the same model, and its operations are counted."""

import math

import numpy as np
import pytest

from bench import step
from bench.harness import engine, sizes
from bench.harness.sizes import step_flops
from examples import llama
from gpt2 import autodiff as ad

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
