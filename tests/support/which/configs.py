"""Folders of every kind that transformers writes for a GPT-2, by name.

CASES                            the names: settings alone and in pairs, classes, changed folders
written(name, folder, dtype)     writes one by transformers itself; returns the model that it reads there
rows()                           those of docs/models.md
"""

import itertools
import json
from functools import partial

import numpy as np

import gpt2
from gpt2.errors import UserError
from gpt2.model.optimizer import AdamW

SIZES = dict(vocab_size=37, n_positions=12, n_layer=3, n_head=2, n_embd=16)

# name -> settings of transformers' GPT2Config
ACTIVATIONS = "gelu_new gelu_pytorch_tanh gelu_accurate gelu_fast gelu gelu_python quick_gelu relu silu swish"
ACTIVATION = {name: {"activation_function": name} for name in ACTIVATIONS.split()}
OTHERS = {
    "inner": {"n_inner": 20},
    "epsilon": {"layer_norm_epsilon": 1e-3},
    "unscaled": {"scale_attn_weights": False},
    "by-block": {"scale_attn_by_inverse_layer_idx": True},
    "untied": {"tie_word_embeddings": False},
}
EVERYTHING = {name: value for other in OTHERS.values() for name, value in other.items()}


def _configs():
    yield from ACTIVATION.items()
    yield from OTHERS.items()
    yield "no-epsilon", {"layer_norm_epsilon": 0.0}
    yield "upcast", {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}
    for (a, left), (b, right) in itertools.combinations(OTHERS.items(), 2):
        yield f"{a}+{b}", left | right
    for name in ("gelu", "gelu_fast", "quick_gelu", "relu", "silu"):
        for other, settings in OTHERS.items():
            yield f"{name}+{other}", ACTIVATION[name] | settings
        yield f"{name}+everything", ACTIVATION[name] | EVERYTHING


CONFIGS = dict(_configs())
# The folder is changed after transformers has written it, or written by another class
CLASSES = "GPT2Model GPT2DoubleHeadsModel GPT2ForSequenceClassification GPT2ForTokenClassification"
CLASSES = [*CLASSES.split(), "GPT2ForQuestionAnswering"]
FOLDERS = "aliases other-head only-head same-head variant sharded-variant bfloat16 no-bias".split()
CASES = [*CONFIGS, *CLASSES, *FOLDERS]


def written(name, folder, dtype="float32"):
    """Write a folder; returns the torch model that transformers reads there, all of its parameters random."""
    import torch
    import transformers

    torch.manual_seed(0)
    settings = CONFIGS.get(name, {})
    implementation = "eager" if "reorder_and_upcast_attn" in settings else "sdpa"
    config = transformers.GPT2Config(**SIZES, **settings)
    peer = getattr(transformers, name if name in CLASSES else "GPT2LMHeadModel")(config)
    peer = peer.to(getattr(torch, "bfloat16" if name == "bfloat16" else dtype))
    with torch.no_grad():
        for key, parameter in peer.named_parameters():
            parameter += 0.2 * torch.randn_like(parameter)
            if name == "no-bias" and key.endswith("bias"):
                parameter.zero_()
    variant = "fp16" if "variant" in name else None
    peer.save_pretrained(folder, variant=variant, max_shard_size="10KB" if "sharded" in name else "1GB")
    _change(name, folder)
    how = dict(variant=variant, dtype=getattr(torch, dtype), attn_implementation=implementation)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **how).eval()


def _change(name, folder):
    config = json.loads((folder / "config.json").read_text())
    if name == "aliases":
        for ours, alias in (("n_embd", "hidden_size"), ("n_positions", "max_position_embeddings")):
            config[alias] = config.pop(ours)
        config |= {"num_hidden_layers": config.pop("n_layer"), "num_attention_heads": config["n_head"]}
    if name == "no-bias":
        config["bias"] = False
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith("-head"):
        from safetensors.numpy import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        head = tensors["transformer.wte.weight"].copy()
        head[3] += 1e-6 if name == "other-head" else 0.0  # under tie_word_embeddings: true
        if name == "only-head":
            del tensors["transformer.wte.weight"]
        save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})


# ---- The page ----------------------------------------------------------------------------------------------

TITLE, FIRST = "Folders of transformers", "what transformers wrote"
# A row of the page: what it is, the name of its case
ROWS = {
    "as released, gelu_new; the same as gelu_pytorch_tanh, gelu_accurate, gelu_fast": "gelu_new",
    "`activation_function` gelu or gelu_python: by erf": "gelu",
    "`activation_function` quick_gelu": "quick_gelu",
    "`activation_function` relu": "relu",
    "`activation_function` silu or swish": "silu",
    "`n_inner` of any size": "inner",
    "`layer_norm_epsilon` of any size": "epsilon",
    "`scale_attn_weights` false": "unscaled",
    "`scale_attn_by_inverse_layer_idx` true": "by-block",
    "`reorder_and_upcast_attn` true: the same in float32": "upcast",
    "`tie_word_embeddings` false": "untied",
    "all of these settings at once": "gelu+everything",
    "no biases, as nanoGPT's `bias=False`: written with zeros": "no-bias",
    "sizes by their aliases, `hidden_size`, `num_hidden_layers`, ...": "aliases",
    "a head of other numbers, under `tie_word_embeddings` true": "other-head",
    "the head alone, without the embedding that is the same": "only-head",
    "bfloat16, float16, float64": "bfloat16",
    "a variant alone: model.fp16.safetensors": "variant",
    "a variant in shards": "sharded-variant",
    "GPT2Model, without a head": "GPT2Model",
    "GPT2ForSequenceClassification: its language model": "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification: its language model": "GPT2ForTokenClassification",
    "GPT2ForQuestionAnswering: its language model": "GPT2ForQuestionAnswering",
    "GPT2DoubleHeadsModel: its language model": "GPT2DoubleHeadsModel",
    "another activation, such as mish": "mish",
    "`add_cross_attention` true": "cross-attention",
}
CONFIGS |= {"mish": {"activation_function": "mish"}, "cross-attention": {"add_cross_attention": True}}


def rows():
    """What the row is -> a function of a folder that gives its cells: read, trained, written back."""
    return {what: partial(_cells, name) for what, name in ROWS.items()}


def _cells(name, folder):
    import torch
    import transformers

    peer = written(name, folder / "a")
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 12))
    try:
        model = gpt2.load(folder / "a")
    except UserError as error:
        return refused(error, folder / "a")
    read = transformers.AutoModelForCausalLM.from_pretrained
    return cells(model, peer(torch.tensor(tokens)).logits, read, folder / "b", tokens, tokens)


def cells(model, logits, read, folder, tokens, targets, lr=6e-4):
    """What a row says of a model that should have these logits: read, trained by a step, written back."""
    import torch

    assert_near(model.forward(tokens), logits)
    loss, norm = model.loss_and_grads(tokens, targets), AdamW(model, lr=lr).step()
    trained = "yes" if norm > 0 and model.loss(tokens, targets) < loss else "no"
    gpt2.save(model, folder)
    assert_near(model.forward(tokens), read(folder)(torch.tensor(tokens)).logits)
    return "yes", trained, "yes"


def refused(error, path):
    """The cells of a model that is refused: what the error says after the path of the file."""
    text = str(error).replace(str(path), "FOLDER")
    return f"refused: {text.partition('.json: ')[2] or text}", "", ""


def assert_near(ours, theirs):
    theirs = theirs.detach().numpy()
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
