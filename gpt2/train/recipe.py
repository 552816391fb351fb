"""Settings of a new run, from defaults, a preset, the shape of released weights, and the user's values."""

import dataclasses
from typing import Any

from gpt2.backward import default_for
from gpt2.data import corpora
from gpt2.errors import UserError, suggestion
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.own import OwnFile
from gpt2.train.build import model_config
from gpt2.train.flags import as_typed
from gpt2.train.settings import AS_IN_CONFIG, PRESETS, Settings
from gpt2.weights import pretrained


def from_preset(preset: str, **given: Any) -> Settings:
    """The settings of a preset, with changes: from_preset("llm.c", steps=10).

    With init="gpt2", or other weights, the model has their shape. Raises UserError for an unknown
    preset, a value out of range, or weights of another shape.

        >>> settings = gpt2.train.from_preset("shakespeare-char-cpu", data="my.txt", steps=10)
        >>> settings.n_embd, settings.steps
        (128, 10)
    """
    return new_settings({"preset": preset, **given})


# The finetune preset's learning rates where --train is less than everything: at the preset's own 5e-5 its 60
# steps move adapters and biases next to nowhere. From python -m bench.tuning_rates (docs/fine-tuning.md)
RATES = {"lora": 1e-3, "adapter": 1e-3, "biases": 2e-3, "last": 3e-4}


def new_settings(given: dict[str, Any]) -> Settings:
    """Settings of a new run: defaults, preset, and given values. With weights the preset is finetune, whose
    learning rate does not destroy them."""
    preset = given.get("preset", "finetune" if given.get("init") else "shakespeare")
    if preset not in PRESETS:
        text = f"--preset {preset}: expected one of {', '.join(PRESETS)}"
        raise UserError(text + suggestion(preset, PRESETS))
    settings = Settings(**{"preset": preset, **PRESETS[preset], **given})
    if settings.train != "all" and "optimizer" not in given:  # adapters are no matrices of Muon's
        settings = dataclasses.replace(settings, optimizer="adamw")
    rate = RATES.get(settings.tuning.kind)
    if preset == "finetune" and rate and "lr" not in given:
        settings = dataclasses.replace(settings, **{"lr": rate, "min_lr": rate / 10, **given})
    if settings.init:
        settings = of_weights(settings, weights_config(settings), given)
    if settings.layers and not {"backward"} & {*given, *PRESETS[preset]}:
        # manual, except for the layers that have none; the vocabulary is not known, and makes no difference
        d = Description(model_config(settings, 256), settings.layers, train=settings.tuning)
        settings = dataclasses.replace(settings, backward=default_for(d.written))
    return settings


# For a run without flags on Python's library source, in bytes: the preset's steps give gibberish
ON_STDLIB = dict(steps=1500, eval_every=300, save_every=300, log_every=50, sample_tokens=300)


def with_corpus(s: Settings, given: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Replace the corpus `auto` in the settings; returns them, and a note if it is not tinyshakespeare.

    The standard library gets more steps (ON_STDLIB), unless `given` or the preset sets them.
    """
    notes: list[str] = []
    if s.data != "auto":
        return s, notes
    s = dataclasses.replace(s, data=corpora.choose(notes))
    if notes and s.preset == "shakespeare" and "steps" not in given:
        s = dataclasses.replace(s, **{**ON_STDLIB, **given, "data": s.data})
        notes[0] += f", byte by byte: {s.steps:,} steps, one or two minutes on two cores"
    return s, notes


def weights_config(s: Settings) -> GPT2Config:
    """The GPT2Config of the weights of --init; those of a released model need not be downloaded."""
    return pretrained.find_config(s.init, s.dtype, OwnFile.at(s.layers) if s.layers else None)


def of_weights(s: Settings, config: GPT2Config, given: dict[str, Any]) -> Settings:
    """The settings with the shape of the weights of --init."""
    shape: dict[str, Any] = {
        **{name: getattr(config, name) for name in AS_IN_CONFIG},
        "context": config.block_size,
        "n_inner": config.n_inner or 0,
        "activation": config.activation_function,
        "untied": not config.tie_word_embeddings,
    }
    for name, value in shape.items():
        unset = name in ("context", "n_inner") and given.get(name) == 0
        if given.get(name, value) != value and not unset:
            raise UserError(f"{as_typed(name, given[name])}: the weights {s.init} have {value}; leave it out")
    if "block_size" not in given:  # a preset's may be longer than the weights' context
        shape["block_size"] = min(s.block_size, config.block_size)
    return dataclasses.replace(s, **shape)
