"""Training some tensors only: frozen ones cost nothing and keep their values, whatever the backward."""

import tracemalloc

import numpy as np
import pytest

import gpt2
from gpt2.backward import compiled
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.layers.lora import lora_forward
from gpt2.layers.matmul import matmul_forward
from gpt2.model import GPT2, GPT2Config
from gpt2.model.description import Block, Description
from gpt2.model.optimizer import AdamW
from gpt2.model.tensors import Stack
from gpt2.model.tuning import Tuning, places_of
from gpt2.parallel.processes import Processes
from gpt2.parallel.shares import Shares
from gpt2.sampling import generate
from gpt2.train import cost, flops
from tests.support.models import greedy, slope

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=17, block_size=8, n_layer=3, n_head=3, n_embd=12, dtype="float64")
KINDS = {
    "frozen ends": Tuning(freeze="wte,wpe"),
    "frozen middle": Tuning(freeze="qkvw,lnfw,fcb"),
    "last": Tuning("last:1"),
    "last, only the MLP": Tuning("last:2", freeze="ln1w,ln1b,qkvw,qkvb,attprojw,attprojb,lnfw,lnfb"),
    "biases": Tuning("biases"),
    "lora": Tuning("lora:2"),
    "lora everywhere": Tuning("lora:3", lora_alpha=5.0, lora_targets="all-linear"),
    "lora of the MLP": Tuning("lora:2", lora_targets="mlp"),
}
BACKWARDS = [(None, False), (None, True), ("auto", True), ("whole", True)]  # and compile


def batch(B=2):
    return np.random.default_rng(3).integers(0, 17, (2, B, 5))


def model_of(tuning, backward=None, **options):
    """A model of random parameters, which do not depend on what is trained."""
    model = GPT2(CONFIG, backward, seed=1, train=tuning, **options)
    for k, tensor in enumerate(model.params.values()):
        noise = 0.2 * np.random.default_rng(k).standard_normal(tensor.shape)
        stacked = isinstance(tensor, Stack)
        for part, part_noise in zip(tensor.slices, noise) if stacked else [(tensor, noise)]:
            part += part_noise
    return model


def frozen_copies(model):
    return {name: np.array(tensor) for name, tensor in model.frozen.items()}


def assert_frozen(model, before):
    """The frozen tensors are those of frozen_copies before."""
    assert all(np.array_equal(before[name], x) for name, x in frozen_copies(model).items())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_full_training(kind):
    """By every backward; adapters, which full training lacks, are compared between backwards alone."""
    tuning, first, full = KINDS[kind], None, None
    if tuning.lora is None:
        full = model_of(Tuning(), compile=False)
        expected_loss = full.loss_and_grads(*batch())
    for backward, compile in BACKWARDS:
        model = model_of(tuning, backward, compile=compile)
        before = frozen_copies(model)
        loss = model.loss_and_grads(*batch())
        model.loss_and_grads(*batch(), scale=0.5, accumulate=True)
        first = model.flat_grads.copy() if first is None else first
        np.testing.assert_allclose(model.flat_grads, first, rtol=1e-9, atol=1e-12)
        model.forward(*batch())
        model.backward(1.5)
        np.testing.assert_allclose(model.flat_grads, first, rtol=1e-9, atol=1e-12)
        assert_frozen(model, before)
        if full is not None:
            assert loss == pytest.approx(expected_loss, rel=1e-12)
            for name, grad in model.grads.items():
                blocks = len(grad) if name in model.description.in_block else None
                expected = full.grads[name][-blocks:] if blocks else full.grads[name]
                np.testing.assert_allclose(grad, 1.5 * expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["all", "last", "last, only the MLP", "frozen ends"])
def test_on_ready_announces_each_trained_matrix_once(kind):
    """Each matrix of the blocks, when its gradient is final."""
    model, announced = model_of(KINDS.get(kind, kind), compile=False), []
    model.forward(*batch())
    model.backward(on_ready=lambda a, b: announced.append((a, b, model.flat_grads[a:b].copy())))
    matrices = sum(g.size for g in model.grads.values() if g.ndim == 3)
    assert sum(stop - start for start, stop, _ in announced) == matrices > 0
    ranges = sorted((start, stop) for start, stop, _ in announced)
    assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:]))
    assert all(np.array_equal(model.flat_grads[a:b], then) and then.any() for a, b, then in announced)


@pytest.mark.parametrize("kind", ["lora", "lora everywhere"])
def test_gradient_of_adapters_is_the_slope(kind):
    model = model_of(KINDS[kind], "whole")
    model.loss_and_grads(*batch())
    direction = np.random.default_rng(0).standard_normal(model.flat_params.shape)
    expected = slope(model, model.flat_params, direction, *batch())
    assert model.flat_grads @ direction == pytest.approx(expected, rel=1e-6)


def test_new_adapters_change_nothing():
    base = GPT2(CONFIG, seed=1)
    tuned = gpt2.lora(base, rank=2, targets="all-linear", seed=5)
    assert np.array_equal(tuned.forward(batch()[0]), base.forward(batch()[0]))
    assert np.abs(tuned.params["qkv_lora_a"]).min() > 0 and not tuned.params["qkv_lora_b"].any()
    assert np.shares_memory(tuned.params["qkvw"], base.params["qkvw"])


def test_adapter_adds_a_low_rank_matrix():
    """out = inp @ (weight + scale * b @ a).T + bias."""
    rng = np.random.default_rng(0)
    inp, weight, bias, a, b = (rng.standard_normal(s) for s in ((2, 5, 6), (7, 6), (7,), (2, 6), (7, 2)))
    out, _ = lora_forward(inp, weight, bias, a, b, scale=1.5)
    expected, _ = matmul_forward(inp, weight + 1.5 * b @ a, bias)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"lora_forward: a has shape \(2, 5\)"):
        lora_forward(inp, weight, bias, a[:, :5], b, scale=1.5)


@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
@pytest.mark.parametrize("kind", ["lora", "last", "biases", "frozen ends"])
def test_steps_change_trained_tensors_only(kind, backward):
    """And only trained tensors have gradients and moments."""
    tuning = KINDS[kind]
    model = model_of(tuning, "manual,lora=auto" if tuning.lora and backward == "manual" else backward)
    before, start = frozen_copies(model), model.flat_params.copy()
    optimizer = AdamW(model, lr=1e-2)
    losses = []
    for _ in range(4):
        losses.append(model.loss_and_grads(*batch()))
        optimizer.step()
    assert losses[-1] < losses[0]
    assert_frozen(model, before)
    trained = {name for name in model.params if name in model.description.trained}
    assert trained and set(model.grads) == trained and not np.array_equal(model.flat_params, start)
    n = sum(np.prod(shape, dtype=int) for _, shape in model.description.trained.shapes)
    assert model.flat_params.size == model.flat_grads.size == optimizer.m.size == optimizer.v.size == n


@pytest.mark.slow
def test_frozen_matrices_take_no_memory_for_gradients():
    """Weights of 8 MB, a batch of kilobytes: a step for biases or adapters allocates a fraction of that."""
    config = GPT2Config(vocab_size=17, block_size=8, n_layer=2, n_head=2, n_embd=288)
    peaks = {}
    for spec in ("all", "biases", "lora:2"):
        for backward in (None, "whole"):
            tracemalloc.start()
            model = GPT2(config, backward, seed=None, train=spec)
            model.freeze(np.zeros(model.num_parameters - model.flat_params.size, np.float32))
            optimizer = AdamW(model)
            tokens = np.zeros((1, 4), int)
            frozen = sum(x.nbytes for x in model.frozen.values())
            model.loss_and_grads(tokens, tokens)
            optimizer.step()
            peaks[spec, backward] = tracemalloc.get_traced_memory()[1] - 2 * frozen
            tracemalloc.stop()
    largest = 4 * config.n_embd * config.n_embd * 4
    for (spec, backward), peak in peaks.items():
        if spec != "all":
            assert peak < peaks["all", backward] / 4, (spec, backward)
    assert peaks["all", None] > 4 * 2 * 3 * largest  # as training everything does


def matmuls(graph):
    """How many matrix products a graph has, including those of the block graphs that it calls."""
    return sum(matmuls(n.attrs["body"]) if n.op == "outlined" else n.op == "matmul" for n in graph.nodes)


def test_programs_have_no_products_for_frozen_matrices():
    """One product fewer for each frozen matrix: four in each block, and the head's."""
    counts = []
    for train in (Tuning(freeze="wpe"), "biases"):  # frozen tensors in both, so both pass blocks one by one
        model = GPT2(CONFIG, "whole", seed=0, train=train)
        graphs = model.program.graphs(*model._arrays(), *batch())
        counts.append(sum(map(matmuls, graphs)))
    assert counts[0] - counts[1] == 4 * CONFIG.n_layer + 1


@pytest.mark.parametrize("kind", ["lora", "lora everywhere", "last", "biases", "frozen ends"])
def test_frozen_tensors_leave_blocks_alike(kind):
    """Seven blocks are derived and compiled once or twice: the first may lack a gradient."""
    config = GPT2Config(vocab_size=17, block_size=8, n_layer=7, n_head=3, n_embd=12)
    model = GPT2(config, "whole", seed=None, train=KINDS[kind])
    forward, backward = model.program.graphs(*model._arrays(), *batch())
    for graph, most in (forward, 3), (backward, 2):
        calls = [n for n in graph.nodes if n.op == "outlined"]
        bodies = {id(n.attrs["body"]) for n in calls}
        assert len(bodies) <= most and (calls or kind == "last")
    assert sum(n.op == "outlined" for n in forward.nodes) == config.n_layer


def test_compiled_manual_backward_computes_wanted_gradients_only():
    """Here matmul's gradient of the bias alone, then none."""
    layer = compiled(LAYERS["matmul"]).wanting((False, False, True))
    rng = np.random.default_rng(0)
    inp, weight, bias, dout = (rng.standard_normal(s) for s in ((4, 6), (7, 6), (7,), (4, 7)))
    _, saved = layer.forward(inp, weight, bias)
    gradients = layer.backward(dout, saved)
    assert gradients[:2] == (None, None)
    np.testing.assert_allclose(gradients[2], dout.sum(axis=0), rtol=1e-12)
    forward_only = compiled(LAYERS["matmul"]).wanting((False, False, False))
    out, saved = forward_only.forward(inp, weight, bias)
    np.testing.assert_allclose(out, inp @ weight.T + bias, rtol=1e-12)
    assert saved == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "last", "frozen ends"])
def test_shares_and_processes_take_equal_steps(kind):
    results = []
    for team_type in (Shares, Processes):
        model = model_of(KINDS[kind])
        optimizer = AdamW(model, lr=1e-2)
        before = frozen_copies(model)
        options = {"options": {"backward": model.spec, **model.description.options}}
        with team_type(model, optimizer, 2, **(options if team_type is Processes else {})) as team:
            for _ in range(2):
                loss_and_norm = team.step([tuple(batch(4))])
            results.append((loss_and_norm, model.flat_params.copy()))
            assert_frozen(model, before)
    (a, p), (b, q) = results
    assert a == b and np.array_equal(p, q)


def test_generation_uses_adapters():
    model = model_of(KINDS["lora everywhere"])
    text = list(generate(model, [1, 2], 5, temperature=0))
    assert text == greedy(model, [1, 2], 5)
    merged = gpt2.merged(model)
    assert list(generate(merged, [1, 2], 5, temperature=0)) == text
    np.testing.assert_allclose(merged.forward(batch()[0]), model.forward(batch()[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "tensor, block, place", [("fcw", 1, "block 1 fc (matmul)"), ("qkv_lora_b", 2, "block 2 qkv (lora)")]
)
def test_non_finite_tensor_is_found(tensor, block, place):
    model = model_of(KINDS["lora"])
    model.params[tensor][block, 0, 0] = np.nan
    assert model.first_non_finite(*batch()) == place


def test_target_names_of_peft():
    assert places_of("c_attn") == ("qkv",) and places_of("c_proj") == ("attproj", "fcproj")
    assert places_of("mlp.c_proj, qkv") == ("qkv", "fcproj") and places_of("mlp") == ("fc", "fcproj")
    assert places_of("all-linear") == ("qkv", "attproj", "fc", "fcproj")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"train": "lora:0"}, "^train 'lora:0': expected a rank from 1, lora:8, got 0$"),
        ({"train": "lora"}, "^train 'lora': expected a rank from 1, lora:8$"),
        ({"train": "last:x"}, "^train 'last:x': expected a number of blocks from 1, last:2, got x$"),
        ({"train": "last:4"}, "^train 'last:4': the model has 3 blocks$"),
        ({"train": "biasses"}, r"^train 'biasses': expected all, .*, biases; did you mean biases\?$"),
        ({"train": "all:2"}, "^train 'all:2': all takes no number$"),
        ({"freeze": "wte,wpee"}, r"there is no tensor 'wpee'; did you mean wpe\?$"),
        ({"train": "lora:2", "freeze": "qkv_lora_a,qkv_lora_b"}, "^train: lora:2 .*: nothing is left to"),
        ({"train": "lora:2", "lora_targets": "c_atn"}, "'c_atn' is not a matrix .*did you mean c_attn"),
        ({"freeze": ["wte"]}, r"freeze \['wte'\]: expected names, separated by commas"),
        ({"train": "lora:2", "lora_targets": [1]}, r"lora_targets \[1\]: expected names, separated by"),
        ({"train": "lora:2", "lora_alpha": 0}, "lora_alpha 0: expected a number above 0"),
    ],
)
def test_bad_tuning_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        GPT2(CONFIG, train=Tuning(**options))


def test_manual_backward_of_adapters_is_refused():
    with pytest.raises(UserError, match="'manual': lora is lora_forward, .* take 'manual,lora=auto'"):
        GPT2(CONFIG, "manual", train="lora:2")


def test_own_layers_are_tuned_or_refused():
    def half(x, p, layers, config):
        norm = layers["layernorm"](x, p["ln1w"], p["ln1b"])
        return x + layers["matmul"](norm, p["attprojw"], p["attprojb"])

    block = Block(half, by_position=True)
    for backward in (None, "auto", "whole"):
        model = GPT2(CONFIG, backward, block=block, train="last:1", seed=0)
        model.loss_and_grads(*batch())
        assert set(model.grads) == {"ln1w", "ln1b", "attprojw", "attprojb", "lnfw", "lnfb"}
        assert model.grads["attprojw"].shape == (1, 12, 12) and model.flat_grads.all()
    matmul = {"matmul": lambda inp, weight, bias: inp @ weight.T}
    for name, options in (("block", {"block": block}), ("matmul", {"layers": matmul})):
        with pytest.raises(UserError, match=f"own {name} has taken the place of the matrices"):
            GPT2(CONFIG, **options, train="lora:2")


@pytest.mark.slow
def test_costs_leave_out_frozen_tensors():
    full = flops.training_flops(CONFIG, 2, 5)
    assert flops.training_flops(Description(CONFIG), 2, 5) == full
    forward = full / 3
    # for the head and the last block: gradients of the inputs, and of the last block's matrices
    C, T = CONFIG.n_embd, 5
    head, matrices, scores = 2 * 17 * C, 2 * 12 * C * C, 4 * C * T
    last = flops.training_flops(Description(CONFIG, train="last:1"), 2, 5)
    assert last == forward + 2 * T * (head + 2 * matrices + 2 * scores)
    lora = flops.training_flops(Description(CONFIG, train="lora:2"), 2, 5)
    assert forward < lora < 0.8 * full
    estimated = cost.estimate(CONFIG, 2, 5, backward="auto", train=Tuning("last:1"))
    assert estimated.bytes["moments"] == 2 * 8 * Description(CONFIG, train="last:1").trained.count
    assert estimated.bytes["parameters"] == 8 * CONFIG.num_parameters and estimated.seconds > 0
