"""Estimates of memory and time, counted or measured on two blocks, compared with the whole model."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.parallel import cores
from gpt2.train import Settings, cost, opened, resolve
from gpt2.train.flops import training_flops
from tests.support.peaks import peak_of

CONFIG = GPT2Config(vocab_size=300, block_size=32, n_layer=6, n_head=4, n_embd=64)


def peak_of_a_step(config, B, T, **options):
    """Peak memory of a step in bytes, above what was allocated before it."""
    model = GPT2(config, **options)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (B, T + 1))
    return peak_of(lambda: model.loss_and_grads(tokens[:, :-1], tokens[:, 1:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [dict(backward="manual"), dict(backward="manual", compile=False), dict(backward="auto")],
    ids=str,
)
def test_memory_estimate_fits_the_whole_model(options):
    """From one and two blocks to six: within a tenth, as compiled code differs a little by block."""
    estimated = cost.estimate(CONFIG, 8, 32, **options)
    measured = peak_of_a_step(CONFIG, 8, 32, **options)
    assert abs(estimated.bytes["activations"] - measured) < 0.1 * measured


@pytest.mark.slow
def test_memory_estimate_leaves_out_logits_that_fit_the_gradient_buffer():
    """With twelve blocks they fit; with one or two, which are measured, they do not."""
    config = GPT2Config(vocab_size=8000, block_size=64, n_layer=12, n_head=2, n_embd=128)
    measured = min(peak_of_a_step(config, 4, 64, backward="auto") for _ in range(2))  # the first compiles
    estimated = [cost.estimate(config, 4, 64, n, backward="auto").bytes["activations"] for n in (1, 2)]
    assert abs(estimated[0] - measured) < 0.1 * measured
    # with a second batch the buffer holds gradients of the first
    assert estimated[1] - estimated[0] > 0.9 * 4 * 64 * 8000 * 4


def test_estimate_counts_parameters_and_flops():
    estimated = cost.estimate(CONFIG, 2, 16, accumulate=3, backward="manual", compile=False)
    stored = 4 * CONFIG.num_parameters
    assert estimated.parameters == CONFIG.num_parameters
    kinds = [estimated.bytes[kind] for kind in ("parameters", "gradients", "moments")]
    assert kinds == [stored, stored, 2 * stored]
    assert estimated.flops == 3 * training_flops(CONFIG, 2, 16)
    assert estimated.seconds > 0


@pytest.mark.parametrize(
    "size", [dict(block_size=10**8), dict(n_embd=2**32), dict(vocab_size=10**10)], ids=str
)
def test_step_too_large_for_memory_is_not_measured(size, monkeypatch):
    monkeypatch.setattr(cost, "free_memory", lambda: 1 << 34)
    config = dataclasses.replace(CONFIG, **size)
    estimated = cost.estimate(config, 8, config.block_size)
    assert estimated.seconds is None and estimated.bytes["parameters"] == 4 * config.num_parameters
    scores = 8 * 4 * config.block_size**2 * 4, 8 * config.block_size * config.vocab_size * 4
    assert estimated.bytes["activations"] == max(scores)
    lines = cost.lines(estimated, 100, cost.free_memory())
    assert "not measured" in lines[-2] and "does not fit" in lines[-1]
    assert any(line.startswith("memory in all") and "more than" in line for line in lines)


def test_a_step_that_memory_cannot_hold_is_refused(monkeypatch, tmp_path):
    stored, scores = 16 * CONFIG.num_parameters, 8 * 32 * 300 * 4
    monkeypatch.setattr(cost, "free_memory", lambda swap: stored + scores)
    cost.check_memory(CONFIG, 8, 32, CONFIG.num_parameters, 0)
    for free, ranks in ((stored + scores - 1, 0), (stored, 2)):
        monkeypatch.setattr(cost, "free_memory", lambda swap, free=free: free)
        with pytest.raises(UserError, match=r"not enough memory.*\(8 x 32 x 300 numbers\)"):
            cost.check_memory(CONFIG, 8, 32, CONFIG.num_parameters, ranks)
    monkeypatch.setattr(cost, "free_memory", lambda swap: None)
    cost.check_memory(CONFIG, 8, 10**9, CONFIG.num_parameters)
    (tmp_path / "my.txt").write_text("to be or not to be that is the question " * 600, encoding="utf-8")
    monkeypatch.setattr(cost, "free_memory", lambda swap: 10**7)
    settings = Settings(data=str(tmp_path / "my.txt"), tokenizer="char", batch_size=500, block_size=5000)
    with pytest.raises(UserError, match="not enough memory"), opened(settings):
        pass


@pytest.mark.parametrize(
    "environment, ranks, sequences",
    [
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2, 4),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, 4, 16),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 0, 0),  # a limit, of a job of unknown size
        ({"SLURM_NTASKS_PER_NODE": "8", "PMI_SIZE": "2"}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_mpi_rank_counts_the_ranks_known_to_be_on_its_machine(environment, ranks, sequences, monkeypatch):
    for name in (*cores.LOCAL_RANKS, *cores.ROOM, *cores.RANKS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check = Mock()
    monkeypatch.setattr(resolve, "check_memory", check)
    resolve.check_fits(Settings(parallel="mpi", batch_size=16), CONFIG)
    config, B, T, trained, counted = check.call_args.args
    assert (counted, B) == (ranks, sequences)


def test_estimate_as_printed():
    estimate = cost.Cost(10**9, {"parameters": 4 * 2**30, "activations": 512}, 10**12, 2.0)
    lines = cost.lines(estimate, 5000, available=2**30)
    labels = "parameters|memory: parameters|memory: activations|memory in all|arithmetic|time|note"
    assert [line.split("  ")[0].strip() for line in lines] == labels.split("|")
    assert "1,000,000,000" in lines[0] and "4.0 GiB" in lines[1] and lines[2].endswith("512 bytes")
    assert "4.0 GiB of 1.0 GiB free" in lines[3] and "1000.00 GFLOP" in lines[4]
    assert "2.0 s a step (500 GFLOP/s), 2.8 h for 5,000 steps" in lines[5] and "does not fit" in lines[6]
    assert len(cost.lines(estimate, 5000)) == 6
