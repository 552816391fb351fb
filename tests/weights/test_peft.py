"""LoRA adapters written for peft and by peft: the same logits in both programs."""

import json
import shutil

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.tuning import Tuning
from gpt2.train import from_preset
from gpt2.weights import huggingface, peft, pretrained

pytestmark = pytest.mark.numeric
save_file = pytest.importorskip("safetensors.numpy").save_file

CONFIG = GPT2Config(vocab_size=19, block_size=8, n_layer=3, n_head=2, n_embd=12)
TOKENS = np.random.default_rng(0).integers(0, 19, (2, 7))
TARGETS = ["c_attn", "c_proj", "all-linear", "attn.c_proj,c_fc"]


def noisy(model, seed=4):
    """The model with noise added to its trainable parameters."""
    model.flat_params += np.random.default_rng(seed).normal(0.0, 0.1, model.flat_params.shape).astype("f4")
    return model


@pytest.fixture
def base(tmp_path):
    """A Hugging Face folder with the weights below the adapters."""
    gpt2.save(noisy(GPT2(CONFIG, seed=2)), tmp_path / "base")
    return tmp_path / "base"


def adapted(base, targets="c_attn", rank=3, alpha=6.0):
    return noisy(gpt2.lora(gpt2.load(base), rank, alpha, targets, seed=3), 5)


@pytest.fixture
def adapter(base, tmp_path):
    """A folder with an adapter of the base."""
    peft.write(tmp_path / "adapter", adapted(base), str(base))
    return tmp_path / "adapter"


def logits_by_torch(torch, model):
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)).logits.numpy()


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", TARGETS)
def test_peft_reads_our_adapter(base, tmp_path, peers, targets):
    theirs, (torch, transformers) = pytest.importorskip("peft"), peers
    model = adapted(base, targets)
    paths = gpt2.save(model, tmp_path / "adapter")
    assert {path.name for path in paths} == {peft.CONFIG, peft.WEIGHTS}
    peer = transformers.GPT2LMHeadModel.from_pretrained(base)
    peer = theirs.PeftModel.from_pretrained(peer, str(tmp_path / "adapter")).eval()
    assert_close(logits_by_torch(torch, peer), model.forward(TOKENS))


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("targets", TARGETS)
def test_adapter_written_by_peft_is_read(base, tmp_path, peers, targets, rslora):
    theirs, (torch, transformers) = pytest.importorskip("peft"), peers
    settings = theirs.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=targets if targets == "all-linear" else targets.split(","),
        fan_in_fan_out=True,
        use_rslora=rslora,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    model = theirs.get_peft_model(model, settings).eval()
    model.save_pretrained(tmp_path / "theirs")
    expected = logits_by_torch(torch, model)
    merged = logits_by_torch(torch, model.merge_and_unload())
    ours = gpt2.load(tmp_path / "theirs")
    assert ours.description.lora is not None and ours.flat_params.size < ours.num_parameters / 2
    assert_close(ours.forward(TOKENS), expected)
    paths = convert.convert(str(tmp_path / "theirs"), tmp_path / "whole", merge=True)
    assert {path.name for path in paths} >= {"config.json", "model.safetensors"}
    assert_close(gpt2.load(tmp_path / "whole").forward(TOKENS), merged)


def test_training_goes_as_with_peft(base, tmp_path, peers):
    """Losses and gradient norms of 40 steps with the finetune preset's settings for adapters."""
    theirs, (torch, transformers) = pytest.importorskip("peft"), peers
    s = from_preset("finetune", init=str(base), train="lora:3")
    model = gpt2.lora(gpt2.load(base), 3, s.lora_alpha, "c_attn,mlp", seed=3)
    gpt2.save(model, tmp_path / "adapter")
    peer = transformers.GPT2LMHeadModel.from_pretrained(base)
    peer = theirs.PeftModel.from_pretrained(peer, str(tmp_path / "adapter"), is_trainable=True)
    peer.eval()  # no dropout, as here
    options = {"lr": s.lr, "betas": (s.beta1, s.beta2), "eps": s.eps, "weight_decay": s.weight_decay}
    trained = [p for p in peer.parameters() if p.requires_grad]
    ours, other = gpt2.AdamW(model, **options), torch.optim.AdamW(trained, **options)
    losses = []
    for _ in range(40):
        loss = model.loss_and_grads(TOKENS[:, :-1], TOKENS[:, 1:])
        norm = ours.step(clip=s.clip)
        tokens = torch.from_numpy(TOKENS)
        expected = peer(tokens, labels=tokens).loss  # which shifts the labels by one
        other.zero_grad()
        expected.backward()
        same_norm = torch.nn.utils.clip_grad_norm_(trained, s.clip)
        other.step()
        losses.append((loss, norm, expected.item(), same_norm.item()))
    loss, norm, expected, same_norm = np.array(losses).T
    np.testing.assert_allclose(loss, expected, rtol=1e-3)
    np.testing.assert_allclose(norm, same_norm, rtol=1e-3)
    assert loss[-1] < loss[0] - 0.05


def test_adapter_round_trip_is_exact(base, tmp_path):
    model = adapted(base, "all-linear")
    for where in ("adapter", "again"):
        peft.write(tmp_path / where, model, str(base))
        model = gpt2.load(tmp_path / where)
    first, again = (gpt2.load(tmp_path / name) for name in ("adapter", "again"))
    assert np.array_equal(first.flat_params, again.flat_params)
    assert first.description.lora == again.description.lora
    # close only: in the file matrices are (in, out), for which BLAS sums in another order
    assert_close(first.forward(TOKENS), adapted(base, "all-linear").forward(TOKENS))


def test_frozen_weights_are_views_of_the_file(base, adapter, tmp_path):
    model = gpt2.load(adapter)
    for name in ("wte", "qkvw", "fcw", "lnfb"):
        tensor = model.params[name]
        parts = [tensor] if isinstance(tensor, np.ndarray) else tensor.slices
        assert not any(part.flags.owndata or part.flags.writeable for part in parts)
    assert model.params["qkv_lora_a"].flags.writeable
    for name in ("mine.bin", "mine.safetensors"):
        gpt2.save(gpt2.load(base), tmp_path / name)
        tuned = GPT2(CONFIG, seed=None, train=Tuning("last:1"))
        pretrained.find(str(tmp_path / name)).into(tuned)
        assert not tuned.params["wte"].flags.writeable
        assert np.array_equal(tuned.forward(TOKENS), gpt2.load(base).forward(TOKENS))
    # another dtype needs a copy
    tuned = GPT2(GPT2Config(**{**vars(CONFIG), "dtype": "float64"}), seed=None, train=Tuning("biases"))
    pretrained.find(str(base), "float64").into(tuned)
    assert tuned.params["wte"].flags.owndata


def test_merged_model_is_saved_in_every_format_and_adapters_in_some(base, tmp_path):
    model = adapted(base)
    expected = model.forward(TOKENS)
    for name in ("m.bin", "m.safetensors", "m"):
        gpt2.save(gpt2.merged(model), tmp_path / name)
        assert_close(gpt2.load(tmp_path / name).forward(TOKENS), expected)
    with pytest.raises(UserError, match=r"x\.bin: llm\.c has no adapters; merge them with merge"):
        gpt2.save(model, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()
    gpt2.save(model, tmp_path / "x.safetensors")  # base and adapters
    again = gpt2.load(tmp_path / "x.safetensors")
    assert again.description.lora == model.description.lora
    assert np.array_equal(again.forward(TOKENS), expected)
    with pytest.raises(UserError, match=r"^merge: .*base has no adapters; leave it out$"):
        convert.convert(str(base), tmp_path / "y", merge=True)
    with pytest.raises(UserError, match="the model has no adapters to merge"):
        gpt2.merged(gpt2.load(base))
    with pytest.raises(UserError, match=r"has adapters already \(lora:3 .*\); merge them first"):
        gpt2.lora(model)


REFUSED = {
    "other kind of adapter": ({"peft_type": "IA3"}, "peft_type is 'IA3', only LORA can be read"),
    "no magnitudes": ({"use_dora": True}, r"lora_magnitude_vector of attn\.c_attn is missing in block 0"),
    "no biases": ({"bias": "all"}, r"transformer\.h\.0\.attn\.c_proj\.bias, which it trains, is missing"),
    "unknown biases": ({"bias": "some"}, "bias is 'some', expected none, all or lora_only"),
    "no head": ({"modules_to_save": ["lm_head"]}, r"lm_head\.weight, which it trains, is missing"),
    "modules that are no names": (
        {"modules_to_save": "lm_head"},
        "modules_to_save is 'lm_head', expected names",
    ),
    "rank per module": ({"rank_pattern": {"c_attn": 4}}, r"has shape \(3, 12\), expected \(4, 12\) for r=4"),
    "broken pattern": ({"rank_pattern": {"c_(": 4}}, r"rank_pattern is \{'c_\(': 4\}, expected patterns"),
    "rank of text": (
        {"alpha_pattern": {"c_attn": "4"}},
        "alpha_pattern is .*, expected patterns with numbers",
    ),
    "tokens that are no ids": (
        {"trainable_token_indices": ["a"]},
        "trainable_token_indices is .*, expected ids",
    ),
    "no rows of tokens": (
        {"trainable_token_indices": [1]},
        r"trainable_token_indices are \[1\], and its rows",
    ),
    "changed base": ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda', which cannot"),
    "base that peft cannot change": (
        {"init_lora_weights": "olora"},
        r"'olora' for transformer\.h\.0\.attn\.c_attn, which peft's own forward cannot compute",
    ),
    "random start": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which"),
    "rank 0": ({"r": 0}, "r is 0 and lora_alpha 6, expected numbers above 0"),
    "wrong rank": ({"r": 2}, r"attn\.c_attn has shape \(3, 12\), expected \(2, 12\) for r=2"),
    "no base": ({"base_model_name_or_path": None}, "base_model_name_or_path is empty; enter the base"),
    "base that is no text": ({"base_model_name_or_path": ["x"]}, r"base_model_name_or_path is \['x'\]"),
    "rank of 400 digits": ({"r": 10**400, "use_rslora": True}, "expected numbers above 0"),
    "alpha of 400 digits": ({"lora_alpha": 10**400}, "expected numbers above 0"),
    "unknown setting": ({"something_new": 3}, "something_new is 3, which this program does not know"),
}


def change_config(adapter, **changes):
    path = adapter / peft.CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED)
def test_unsupported_adapter_is_one_error_line(adapter, change, message):
    change_config(adapter, **change)
    with pytest.raises(UserError, match=message) as error:
        gpt2.load(adapter)
    assert "\n" not in str(error.value)


def test_adapter_whose_base_is_an_adapter_is_refused(adapter):
    """Such as itself."""
    change_config(adapter, base_model_name_or_path=str(adapter))
    with pytest.raises(UserError, match="its base .* is not GPT-2 as it was released"):
        gpt2.load(adapter)


def test_adapter_of_another_model_is_refused(base, tmp_path):
    for changes, message in (
        ({"n_embd": 16}, r"a of .*h\.0\.attn\.c_attn has shape \(3, 12\), expected \(3, 16\)"),
        ({"n_layer": 2}, r".*h\.2\.attn\.c_attn\.lora_A\.weight in a model of 2 blocks"),
    ):
        gpt2.save(GPT2(GPT2Config(**{**vars(CONFIG), **changes})), tmp_path / "other")
        peft.write(tmp_path / "adapter", adapted(base), str(tmp_path / "other"))
        with pytest.raises(UserError, match=f"an adapter of another model: {message}"):
            gpt2.load(tmp_path / "adapter")
        shutil.rmtree(tmp_path / "other")
    with pytest.raises(UserError, match=r"other: no such file or folder"):
        gpt2.load(tmp_path / "adapter")


def test_missing_or_unknown_tensors_are_refused(adapter):
    path = adapter / peft.WEIGHTS
    tensors = {name: np.array(x.array()) for name, x in huggingface.tensors_of(path).items()}
    name = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"
    save_file({k: x for k, x in tensors.items() if k != name}, path)
    with pytest.raises(UserError, match=r"lora_B of attn\.c_attn is missing in block 1"):
        gpt2.load(adapter)
    save_file({**tensors, "base_model.model.lm_head.lora_A.weight": tensors[name]}, path)
    with pytest.raises(UserError, match=r"lora_B of lm_head is missing$"):
        gpt2.load(adapter)
    save_file({**tensors, name.replace("h.1.", "h.999999999."): tensors[name]}, path)
    with pytest.raises(UserError, match=r"h\.999999999\..* is not an adapter"):  # and not 10^9 missing ones
        gpt2.load(adapter)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="no safetensors file, or damaged"):
        gpt2.load(adapter)


def test_base_is_the_one_that_peft_would_take(base, adapter, tmp_path, monkeypatch):
    """A folder of this name comes before a released model; a revision names a commit of the hub."""
    expected = gpt2.load(adapter).forward(TOKENS)
    work = tmp_path / "work"
    change_config(adapter, base_model_name_or_path="gpt2")
    shutil.copytree(base, work / "gpt2")
    gpt2.save(GPT2(CONFIG, seed=8), tmp_path / "data" / "gpt2")
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(work)
    assert np.array_equal(gpt2.load(adapter).forward(TOKENS), expected)
    gpt2.save(gpt2.load(adapter), tmp_path / "again")
    monkeypatch.chdir(tmp_path)  # read from another folder, too
    assert np.array_equal(gpt2.load(tmp_path / "again").forward(TOKENS), expected)
    names = {("a/b", "v2"): "hf:a/b@v2", ("a/b", ""): "hf:a/b", ("gpt2", "main"): "gpt2"}
    names |= {("gpt2", "607a30d"): "hf:openai-community/gpt2@607a30d"}
    names |= {("openai-community/gpt2-xl", ""): "gpt2-xl", ("./there", ""): "./there"}
    assert {key: pretrained._of_peft(*key) for key in names} == names
