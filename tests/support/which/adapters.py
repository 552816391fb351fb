"""Adapters of every kind that peft writes for a GPT-2, by name.

VARIANTS                 name -> fields of LoraConfig
made(base, settings)     a model of peft with such adapters, beside a folder of transformers
rows()                   those of docs/models.md
"""

import warnings
from functools import partial

import numpy as np

import gpt2
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from tests.support.which.configs import cells, refused

TITLE, FIRST = "Adapters of peft", "what peft wrote"
CONFIG = GPT2Config(vocab_size=19, block_size=8, n_layer=3, n_head=2, n_embd=12)
TOKENS = np.random.default_rng(0).integers(0, 19, (2, 2, 7))
ATTENTION = {"target_modules": ["c_attn"]}
DORA = {**ATTENTION, "use_dora": True}
ALL = {"target_modules": "all-linear"}
VARIANTS = {
    "one block": {**ATTENTION, "layers_to_transform": [1]},
    "blocks by pattern": {**ATTENTION, "layers_to_transform": [0, 2], "layers_pattern": "h"},
    "blocks by regex": {"target_modules": r".*h\.[12]\.mlp\.c_fc"},
    "modules by name": {"target_modules": ["h.0.attn.c_attn", "h.1.mlp.c_proj"]},
    "excluded modules": {"target_modules": ["c_proj"], "exclude_modules": ["mlp.c_proj"]},
    "excluded block": {**ATTENTION, "exclude_modules": r".*h\.0\..*"},
    "ranks": {**ALL, "rank_pattern": {"c_attn": 4, r"h\.1\.mlp\.c_fc": 2}},
    "alphas": {**ALL, "alpha_pattern": {"c_attn": 7, r"^transformer\.h\.1\.mlp\.c_fc": 2}},
    "rslora and ranks": {**ALL, "use_rslora": True, "rank_pattern": {"attn.c_proj": 5, "h.0.mlp.c_proj": 1}},
    "biases beside": {**ATTENTION, "bias": "lora_only"},
    "biases beside one": {**ATTENTION, "bias": "lora_only", "layers_to_transform": [1]},
    "all biases": {**ATTENTION, "bias": "all"},
    "saved ln_f": {**ATTENTION, "modules_to_save": ["ln_f"]},
    "saved ln_1, wpe": {**ATTENTION, "modules_to_save": ["ln_1", "wpe"]},
    "saved ln_2 of a block": {**ATTENTION, "modules_to_save": ["h.1.ln_2"]},
    "saved MLP": {**ATTENTION, "modules_to_save": ["mlp"]},
    "saved c_fc, biases": {**ATTENTION, "modules_to_save": ["c_fc"], "bias": "all"},
    "saved head": {**ATTENTION, "modules_to_save": ["lm_head"]},
    "saved wte": {**ATTENTION, "modules_to_save": ["wte"]},
    "saved wte, head": {**ATTENTION, "modules_to_save": ["wte", "lm_head"]},
    "saved head, tied": {**ATTENTION, "modules_to_save": ["lm_head"], "ensure_weight_tying": True},
    "saved wte, tied": {**ATTENTION, "modules_to_save": ["wte"], "ensure_weight_tying": True},
    "DoRA": {**ALL, "use_dora": True},
    "DoRA in one block": {**DORA, "layers_to_transform": [0]},
    "DoRA, rslora, ranks": {**DORA, "use_rslora": True, "rank_pattern": {"h.0.attn.c_attn": 5}},
    "DoRA of wte": {"target_modules": ["wte"], "use_dora": True},
    "DoRA of the head": {"target_modules": ["lm_head", "wpe"], "use_dora": True},
    "biases of adapters": {"target_modules": ["c_attn", "c_fc"], "lora_bias": True},
    "tokens": {**ATTENTION, "trainable_token_indices": [5, 3]},
    "tokens of wte": {**ATTENTION, "trainable_token_indices": {"wte": [3, 5]}},
    "wte": {"target_modules": ["c_attn", "wte"]},
    "wpe": {"target_modules": ["wpe"]},
    "head": {"target_modules": ["c_attn", "lm_head"]},
    "wte, head": {"target_modules": ["wte", "lm_head"]},
    "PiSSA": {"target_modules": ["c_attn", "c_proj"], "init_lora_weights": "pissa"},
    "OLoRA": {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora"},
    "orthogonal": {**ATTENTION, "init_lora_weights": "orthogonal", "r": 4},
    "more tokens": {**ATTENTION, "rows": 23},
    "more tokens, some trained": {**ATTENTION, "rows": 23, "trainable_token_indices": [20, 22]},
}
ROWS = {
    "some blocks: `layers_to_transform`": "one block",
    "some modules: `exclude_modules`, names, patterns": "excluded block",
    "`rank_pattern`": "ranks",
    "`alpha_pattern`": "alphas",
    "`use_rslora`": "rslora and ranks",
    "`bias` lora_only": "biases beside",
    "`bias` all": "all biases",
    "`modules_to_save` in the blocks": "saved MLP",
    "`modules_to_save` wte, lm_head: a head of its own": "saved wte, head",
    "`use_dora`": "DoRA",
    "`lora_bias`": "biases of adapters",
    "`trainable_token_indices`": "tokens",
    "`wte` and `lm_head` as targets": "wte, head",
    "`init_lora_weights` pissa": "PiSSA",
    "`init_lora_weights` olora, of `attn.c_proj`": "OLoRA",
    "`init_lora_weights` eva, with its `eva_config`; gaussian, orthogonal": "EVA",
    "`init_lora_weights` corda or lora_ga, saved with `path_initial_model_for_weight_conversion`": "CorDA",
    "`init_lora_weights` olora, of another matrix, where peft's forward fails": "olora of c_attn",
    "`init_lora_weights` corda, loftq, lora_ga, mica or pissa_niter_4, saved without": "pissa_niter_4",
    "a vocabulary of another size": "more tokens",
    "`ensure_weight_tying` with lm_head: no longer tied, as in peft": "saved head, tied",
}
# Only in ROWS
STARTS = {
    "EVA": {**ATTENTION, "init_lora_weights": "eva"},
    "CorDA": {**ATTENTION, "init_lora_weights": "corda"},
    "olora of c_attn": {**ATTENTION, "init_lora_weights": "olora"},
    "pissa_niter_4": {**ATTENTION, "init_lora_weights": "pissa_niter_4"},
}


def base_in(folder):
    """A folder of transformers with random weights."""
    model = GPT2(CONFIG, seed=2)
    model.flat_params += np.random.default_rng(4).normal(0.0, 0.1, model.flat_params.shape).astype("f4")
    gpt2.save(model, folder)
    return folder


def made(base, settings):
    """A model of peft with adapters that have been trained a little; CorDA's start is in `start`."""
    import peft
    import torch
    import transformers
    from peft.tuners.lora.corda import preprocess_corda

    torch.manual_seed(0)
    defaults = dict(r=3, lora_alpha=5, init_lora_weights=False, fan_in_fan_out=True, task_type="CAUSAL_LM")
    with warnings.catch_warnings(action="ignore"):
        model = transformers.GPT2LMHeadModel.from_pretrained(base)
        fields = {**defaults, **settings}
        model.resize_token_embeddings(fields.pop("rows", CONFIG.vocab_size))
        config = peft.LoraConfig(**fields)
        if config.init_lora_weights == "corda":
            texts = [torch.from_numpy(ids[None]) for ids in TOKENS.reshape(-1, TOKENS.shape[-1])]
            preprocess_corda(model.eval(), config, run_model=lambda: [model(text) for text in texts * 5])
        model = peft.get_peft_model(model, config).eval()
        if config.init_lora_weights == "corda":
            model.start = base.with_name("start")
            model.save_pretrained(model.start)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p += 0.05 * torch.randn_like(p)
    return model


def saved(model, folder):
    with warnings.catch_warnings(action="ignore"):
        model.save_pretrained(folder, path_initial_model_for_weight_conversion=getattr(model, "start", None))
    return folder


def loaded(base, folder):
    """The model that peft loads."""
    import peft
    import safetensors
    import transformers

    with warnings.catch_warnings(action="ignore"):
        model = transformers.GPT2LMHeadModel.from_pretrained(base)
        with safetensors.safe_open(folder / "adapter_model.safetensors", "np") as file:
            embeddings = [file.get_slice(name).get_shape()[0] for name in file.keys() if ".wte." in name]
        model.resize_token_embeddings(max([CONFIG.vocab_size, *embeddings]))
        return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True).eval()


def state(model, values=None):
    """peft's names of what it saves -> arrays; values: of the model's parameters, by default their own."""
    import peft

    with warnings.catch_warnings(action="ignore"):
        tensors = peft.get_peft_model_state_dict(model, values)
    # with bias="all", those of modules_to_save are there three times
    names = [n for n in tensors if ".modules_to_save." not in n and ".original_module." not in n]
    return {name: tensors[name].detach().numpy() for name in names}


def torch_loss(model):
    import torch

    tokens, targets = torch.from_numpy(TOKENS)
    return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())


def rows():
    """What the row is -> a function of a folder that gives its cells: read, trained, written back."""
    return {what: partial(_cells, name) for what, name in ROWS.items()}


def _cells(name, folder):
    import torch

    base, tokens = base_in(folder / "base"), TOKENS[0]
    peer = made(base, {**VARIANTS, **STARTS}[name])
    saved(peer, folder / "a")
    try:
        model = gpt2.load(folder / "a")
    except UserError as error:
        return refused(error, folder / "a")
    return cells(model, peer(torch.tensor(tokens)).logits, partial(loaded, base), folder / "b", *TOKENS)
