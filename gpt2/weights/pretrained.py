"""Finds weights that were trained before, here or elsewhere: what --init names.

gpt2, gpt2-medium, gpt2-large, gpt2-xl    as OpenAI released them: from the folder of this name in
                                          GPT2_DATA_DIR, else through huggingface_hub and its cache
hf:OWNER/NAME                             another GPT-2 on the hub
path/to/folder                            of Hugging Face transformers, or a run of train.py
path/to/file.bin                          llm.c's checkpoint
path/to/file.safetensors                  a checkpoint of a run

found = find("gpt2")        what it is, found.config first of all; no weights are read yet
model = found.model()       the GPT2
model, words = load(run="runs/mine")    or load(init="gpt2")
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from gpt2.data import tokenizer
from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError, suggestion
from gpt2.model import GPT2, GPT2Config
from gpt2.storage import runs
from gpt2.weights import checkpoint, huggingface, huggingface_tokenizer, llmc

RELEASED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
RELEASED_VOCABULARY = 50257


@dataclass(frozen=True)
class Pretrained:
    """Where weights lie, and for what model.

    name, path   as asked for, and as found
    kind         huggingface, llm.c or checkpoint
    config       GPT2Config
    words        the Tokenizer that lies beside the weights, or None
    """

    name: str
    path: Path
    kind: str
    config: GPT2Config
    words: Any = None

    def check(self) -> None:
        """Raise UserError where the files are too small for a model of this config. To be asked before one is
        made: what a few bytes of a header promise may be more than any memory."""
        here = (
            huggingface.size_of_weights(self.path) if self.kind == "huggingface" else self.path.stat().st_size
        )
        needed = 2 * self.config.num_parameters  # as bfloat16, the smallest way to keep them
        if here < needed:
            raise UserError(
                f"{self.path}: described is a model of {self.config.num_parameters:,} "
                f"parameters, but the weights have {here:,} bytes; they are cut short, or of "
                "another model"
            )

    def fill(self, params: Mapping[str, np.ndarray]) -> None:
        """Copy the weights into `params`, the sixteen tensors of a model of this config."""
        if self.kind == "huggingface":
            huggingface.read_into(self.path, params, self.config)
        elif self.kind == "llm.c":
            llmc.read_into(self.path, params, self.config)
        else:
            arrays, state = checkpoint.load(self.path)
            checkpoint.check_shapes(self.path, arrays, GPT2Config(**state["model"]), "params.")
            checkpoint.fill(params, arrays, "params.")
        checkpoint.check_finite(self.path, params)

    def model(self, backward: str = "manual") -> GPT2:
        """A GPT2 with these weights."""
        self.check()
        model = GPT2(self.config, backward=backward, seed=None)
        self.fill(model.params)
        return model

    def tokenizer(self) -> Tokenizer:
        """The Tokenizer of these weights: the one beside them, or GPT-2's where they have its vocabulary.

        Raises UserError where there is none, or one of another size.
        """
        V = self.config.vocab_size
        words = tokenizer.gpt2() if self.words is None and V == RELEASED_VOCABULARY else self.words
        if words is None:
            raise UserError(
                f"{self.path}: no tokenizer lies beside the weights, and a vocabulary of {V} "
                "tokens is not GPT-2's"
            )
        if words.vocab_size != V:
            raise UserError(
                f"{self.path}: the model has {V} tokens, the tokenizer beside it {words.vocab_size}"
            )
        return words


def find(name: str, dtype: str | None = None) -> Pretrained:
    """What the weights called `name` are. Raises UserError in one line where they cannot be had or read.

    dtype   of the model that they are for: float32 or float64. By default the one in which a run computed,
            and float32 for files of other programs
    """
    if name in RELEASED:
        return _folder(name, _released(name), dtype)
    if name.startswith("hf:"):
        return _folder(name, _from_hub(name, name.removeprefix("hf:")), dtype)
    path = Path(name)
    if not os.path.exists(path):  # false as well for what cannot be the name of a file
        raise UserError(
            f"{name}: no such file or folder; expected {', '.join(RELEASED)}, hf:OWNER/NAME, or a path"
            + suggestion(name, RELEASED)
        )
    if path.is_dir():
        return _folder(name, path, dtype)
    if path.name == huggingface.WEIGHTS:
        return _folder(name, path.parent, dtype)
    if path.suffix == ".safetensors":
        return _checkpoint(name, path, dtype)
    config = llmc.read_config(path, dtype or "float32")
    return Pretrained(name, path, "llm.c", config, _words_beside(path, config))


def find_config(name: str, dtype: str | None = None) -> GPT2Config:
    """The GPT2Config of the weights called `name`. Those of a released model need not be there for it."""
    if name in RELEASED and _at_hand(name) is None:
        return GPT2Config.preset(name, dtype=dtype or "float32")
    return find(name, dtype).config


def load(run: str = "", init: str = "", which: str = "best") -> tuple[GPT2, Tokenizer]:
    """(model, Tokenizer) of a run, or of what `init` names instead.

    run     its folder; empty for the newest one
    which   best or last: the weights with the lowest validation loss, or the latest
    """
    if run and init:
        raise UserError("--run and --init both name weights; give one of them")
    if init:
        found = find(init)
        return found.model(), found.tokenizer()
    folder = runs.existing(run)
    path = folder / (runs.BEST if which == "best" else runs.LAST)
    if not path.exists():
        path = folder / runs.LAST  # a run too young to have been validated
    model, _ = checkpoint.load_model(path)
    words = tokenizer.load(folder / runs.TOKENIZER)
    if words.vocab_size != model.config.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {words.vocab_size} tokens, the model "
            f"{model.config.vocab_size}; they are not of one run"
        )
    return model, words


def _folder(name, path, dtype):
    """Of train.py or of transformers, whichever has its settings here."""
    if (path / runs.SETTINGS).exists():
        best = path / runs.BEST
        return _checkpoint(name, best if best.exists() else path / runs.LAST, dtype)
    config = huggingface.read_config(path, dtype or "float32")
    return Pretrained(name, path, "huggingface", config, huggingface_tokenizer.read(path))


def _checkpoint(name, path, dtype):
    state = checkpoint.load_state(path)
    try:
        config = GPT2Config(**{**state["model"], **({"dtype": dtype} if dtype else {})})
    except (KeyError, TypeError):
        raise UserError(f"{path}: holds no model") from None
    beside = path.parent / runs.TOKENIZER
    return Pretrained(name, path, "checkpoint", config, tokenizer.load(beside) if beside.exists() else None)


def _words_beside(path, config):
    """The tokenizer file that llm.c would take along, if it is of this vocabulary."""
    for name in (f"{path.stem}_tokenizer.bin", "gpt2_tokenizer.bin"):
        beside = path.with_name(name)
        if beside.exists():
            words = llmc.read_tokenizer(beside)
            if words.vocab_size == config.vocab_size:
                return words
    return None


# ---- The hub ---------------------------------------------------------------------------------------------


def _released(name):
    """The folder of one of OpenAI's four."""
    return _at_hand(name) or _from_hub(name, f"openai-community/{name}")


def _at_hand(name):
    """The folder of this name in GPT2_DATA_DIR, or None."""
    data = os.environ.get("GPT2_DATA_DIR")
    return Path(data) / name if data and (Path(data) / name / huggingface.CONFIG).exists() else None


def _from_hub(name, repository):
    """The folder in huggingface_hub's cache that has this repository's config, weights and tokenizer.

    What is in the cache is not asked for again: weights that were released do not change, and the network may
    be slow, or not there. GPT2_OFFLINE=1 forbids it altogether.
    """
    advice = (
        "put config.json and model.safetensors into a folder and give its path, or set GPT2_DATA_DIR "
        f"to a folder that has them in {Path(repository).name}/"
    )
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UserError(
            f"{name}: needs the huggingface_hub package (pip install 'numpy-gpt2[hf]'); or {advice}"
        ) from None
    hub.logging.set_verbosity_error()  # what goes wrong is told below, once

    def get(file, needed=True):
        found = hub.try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
        reason = _no_network(hub)
        try:
            if reason is None:
                return Path(hub.hf_hub_download(repository, file))
        except Exception as error:  # their errors, the http library's, the socket's: there is no common base
            reason = (str(error).splitlines() or [type(error).__name__])[0]
        if needed:
            raise UserError(
                f"{name}: {file} is not in huggingface_hub's cache and cannot be had from the "
                f"hub ({reason}); {advice}"
            )
        return None

    config = get(huggingface.CONFIG)
    for file in (huggingface_tokenizer.VOCAB, huggingface_tokenizer.MERGES):
        get(file, needed=False)
    get(huggingface.WEIGHTS)
    return config.parent


def _no_network(hub):
    """Why the hub cannot be asked, or None. Their client would try six times, for half a minute."""
    if os.environ.get("GPT2_OFFLINE", "") not in ("", "0"):
        return "GPT2_OFFLINE is set"
    host = urlsplit(hub.constants.ENDPOINT).hostname
    try:
        if not getproxies():  # a proxy resolves names by itself
            socket.getaddrinfo(host, 443)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return None
