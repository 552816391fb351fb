"""bench.llama: all contenders train the same model, and its operations are counted."""

import math

import numpy as np
import pytest

from bench import step
from bench.harness import contenders, engine, program, sizes
from bench.harness.sizes import step_flops
from bench.harness.worker import Worker
from bench.studies import llama as study
from examples import llama
from gpt2 import autodiff as ad

SIZE = sizes.LLAMAS["llama-2x128-B2T64"]


def losses(trainer, count=3):
    stream = sizes.batches(SIZE)
    return [trainer.step(*next(stream)) for _ in range(count)]


def test_contenders_train_the_same_model():
    torch = pytest.importorskip("torch")
    from bench.peers import pytorch

    try:
        theirs = losses(pytorch.llama(SIZE, "tuned", 1))
    finally:
        torch.set_flush_denormal(False)
    assert losses(engine.llama(SIZE, "whole", 1)) == pytest.approx(theirs, rel=step.TOLERANCE)
    try:
        shares = losses(engine.llama(SIZE, "shares", 2))
    finally:
        ad.set_threads(1)
    assert shares == pytest.approx(theirs, rel=step.TOLERANCE)
    assert abs(theirs[0] - math.log(256)) < 0.1 and theirs[0] != theirs[1]


def test_contender_without_llama_is_missing():
    with pytest.raises(contenders.Missing, match="one program"):
        engine.llama(SIZE, "manual", 1)
    worker = Worker("bench.peers.llmc", "", 1)
    with pytest.raises(contenders.Missing, match="no llama"):
        worker.do_training(SIZE.name)


def test_step_flops_agree_with_the_compilers_count():
    """Except for attention: the compiler counts whole squares of scores, step_flops the lower triangle."""
    size, c = SIZE, SIZE.config
    params = {name: np.ones(shape, np.float32) for name, shape in llama.shapes(c).items()}
    tokens = np.zeros((size.B, size.T), int)
    counted = ad.flops(ad.value_and_grad(llama.loss_fn), params, tokens, tokens, c)
    width, N = c.num_attention_heads * c.head_dim, size.B * size.T
    above = 3 * 4 * c.num_hidden_layers * width * N * (size.T - (size.T + 1) / 2)
    assert math.isclose(counted, step_flops(size) + above, rel_tol=1e-12)


def test_command_has_its_own_sizes_and_contenders(monkeypatch):
    from bench import llama as command

    calls = []
    monkeypatch.setattr(step, "measure", lambda *args: calls.append(args) or {"rows": {}})
    monkeypatch.setattr(step, "as_text", lambda result: "")
    assert command.main(["--threads", "1"]) == 1  # nothing was measured
    assert command.main(["--sizes=llama-2x128-B2T64", "--contenders", "whole"]) == 1
    (size, threads, names, _), (other, _, chosen, _) = calls[0], calls[-1]
    assert (size.name, threads) == ("llama-8x512-B4T256", 1) and names == list(command.CONTENDERS)
    assert other is SIZE and chosen == ["whole"]


def test_llama_sizes_are_unknown_to_gpt2_benchmarks():
    with pytest.raises(program.UserError, match="no size 'llama-2x128-B2T64'"):
        sizes.find(SIZE.name)


@pytest.mark.parametrize("name", study.LAYERS)
def test_manual_backwards_are_right(name):
    layer, case = study.LAYERS[name], study.study_cases(2, 5, 12, 7, 3)[name]
    ad.check_backward(layer.forward, layer.backward, [case.inputs()])
