"""Checkpoints of nanoGPT, ckpt.pt: sizes in model_args, tensors in model, AdamW's moments in optimizer.

Tensors have transformers' names, but its linear layers are torch's, which store weights as (out, in) as here,
and its GELU is that by erf. Names may have the prefix of a compiled model, _orig_mod. GPT-2's vocabulary is
padded to 50,304 rows there: the 47 that no text has are left out. The characters of a smaller one are in a
meta.pkl, which is looked for where nanoGPT's sample.py does, and beside the checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt2.data.shards import META
from gpt2.data.shards import tokenizer_of as letters
from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.storage import pickles
from gpt2.weights import huggingface
from gpt2.weights.huggingface import Tensor

SUFFIXES = (".pt", ".pth", ".ckpt")
PADDED, RELEASED_VOCABULARY = 50304, 50257
SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
PREFIXES = ("_orig_mod.", "module.", huggingface.PREFIX)  # of torch.compile, of DDP, of the model


def load(path: Path) -> dict[str, Any]:
    """The content of a ckpt.pt. Raises UserError for another file."""
    content = pickles.load(path)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(k), dict) for k in ("model", "model_args")
    ):
        raise UserError(
            f"{path}: holds no model and model_args, expected nanoGPT's ckpt.pt; weights of transformers, "
            "pytorch_model.bin, are read as a folder, with their config.json"
        )
    return content


def read_config(path: Path, content: Mapping[str, Any], dtype: str = "float32") -> GPT2Config:
    sizes = dict(content["model_args"])
    if missing := [name for name in SIZES if name not in sizes]:
        raise UserError(f"{path}: model_args lacks {missing[0]}")
    if sizes["vocab_size"] == PADDED:
        sizes["vocab_size"] = RELEASED_VOCABULARY
    settings = {"activation_function": "gelu", "bias": sizes.get("bias", True)}
    try:
        return GPT2Config(**{name: sizes[name] for name in SIZES}, dtype=dtype, **settings)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_views(path: Path, content: Mapping[str, Any], config: GPT2Config) -> Iterator[tuple[str, Any]]:
    """(name, array), or arrays of the blocks, as huggingface.read_views."""
    tensors = _named(path, content["model"], config)
    head, wte = (tensors.pop(huggingface.HEAD, None), tensors.get(huggingface.EMBEDDING))
    if head is not None and wte is not None and not np.array_equal(head.array(), wte.array()):
        raise UserError(f"{path}: its lm_head is not its wte, which nanoGPT ties")
    return huggingface.views_of(path, tensors, config, linear=True)


def _named(path, tensors, config):
    """transformers' name -> Tensor, without the rows of padding."""
    found = {}
    for name, stored in tensors.items():
        if not isinstance(name, str) or not isinstance(stored, pickles.StoredTensor):
            raise UserError(f"{path}: model holds {name!r}, which is no tensor")
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if not name.endswith(huggingface.BUFFERS):
            found[name] = _unpadded(Tensor.of_torch(path, name, stored), config)
    return found


def _unpadded(tensor, config):
    V, shape = config.vocab_size, tensor.shape
    has_row_a_token = tensor.name in (huggingface.HEAD, huggingface.EMBEDDING)
    if not has_row_a_token or (V, *shape[:1]) != (RELEASED_VOCABULARY, PADDED):
        return tensor
    return replace(tensor, shape=(V, *shape[1:]), stored=lambda: tensor.stored()[:V])


def moments(
    path: Path, content: Mapping[str, Any], config: GPT2Config
) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """(steps, first moments, second moments) of its AdamW by our names, or None if they do not fit.

    Its parameters are numbered: first those of two axes, which decay, then the others, as in the model.
    """
    tensors = _named(path, content["model"], config)
    tensors.pop(huggingface.HEAD, None)
    axes = {name: len(tensor.shape) for name, tensor in tensors.items()}
    names = [*(n for n in axes if axes[n] > 1), *(n for n in axes if axes[n] < 2)]
    try:
        states = [content["optimizer"]["state"][i] for i in range(len(names))]
        steps = {
            int(np.asarray(s["step"].array() if isinstance(s["step"], pickles.StoredTensor) else s["step"]))
            for s in states
        }
        m, v = (
            dict(read_views(path, {"model": {n: s[key] for n, s in zip(names, states)}}, config))
            for key in ("exp_avg", "exp_avg_sq")
        )
    except (KeyError, TypeError, ValueError):
        return None
    return (steps.pop(), m, v) if len(steps) == 1 else None


def tokenizer_of(path: Path, content: Mapping[str, Any], config: GPT2Config) -> Tokenizer | None:
    """The letters of its data set, or None: GPT-2's."""
    settings = content.get("config")
    name = settings.get("dataset") if isinstance(settings, dict) else None
    folders = [path.absolute().parent]
    if isinstance(name, str) and Path(name).name == name:
        folders += [Path("data") / name, path.absolute().parent.parent / "data" / name]
    for meta in (folder / META for folder in folders):
        if meta.exists() and (words := letters(meta)).vocab_size == config.vocab_size:
            return words
    return None
