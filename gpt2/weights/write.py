"""Write a model as a file or a folder, in the format of its name."""

from pathlib import Path

from gpt2.data.tokenizer import RELEASED_VOCABULARY, Tokenizer
from gpt2.errors import UserError
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.storage import runs
from gpt2.weights import checkpoint, huggingface, llmc, peft


def write(
    destination: Path,
    model: GPT2,
    tokenizer: Tokenizer | None = None,
    dtype: str = "float32",
) -> list[Path]:
    """Write a GPT2, and its Tokenizer if given, in the format of the destination's name.

    Returns the paths written. Raises UserError if they cannot be written.
    """
    check_dtype(destination, dtype)
    check_kind(destination, model.description)
    if destination.suffix == ".bin":
        words = tokenizer if tokenizer is not None and tokenizer.ranks else None
        if words is not tokenizer and model.config.vocab_size == RELEASED_VOCABULARY:
            raise UserError(
                f"{destination}: llm.c's files cannot hold this tokenizer, and weights of this vocabulary "
                "size would be read with GPT-2's; give the name of a folder"
            )
        return llmc.write(destination, model.params, model.config, dtype, words)
    if destination.suffix == ".safetensors":
        return _to_checkpoint(destination, model, tokenizer)
    if (destination / runs.SETTINGS).exists():
        raise UserError(f"{destination}: a run of train.py is in this folder; give another one")
    if model.description.lora is not None:
        return peft.write(destination, model)
    return huggingface.write(destination, model.params, model.config, tokenizer)


def check_kind(destination: Path, d: Description) -> None:
    """Raise UserError if the program that reads this format would compute something else."""
    if destination.suffix == ".safetensors" or d.standard:
        return
    who = "llm.c" if destination.suffix == ".bin" else "transformers"
    if not d.gpt2:
        raise UserError(
            f"{destination}: {who} would compute GPT-2 with these weights, and this is another model: "
            f"{d.summary()}; write it as X.safetensors"
        )
    if who == "llm.c" and (differences := d.config.differences):
        raise UserError(
            f"{destination}: llm.c knows only GPT-2 as it was released, and this model has {differences}; "
            "write a folder for transformers, or X.safetensors"
        )
    if who == "llm.c":
        raise UserError(f"{destination}: llm.c has no adapters; merge them with --merge (gpt2.merged)")


def check_dtype(destination: Path, dtype: str) -> None:
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"dtype is {dtype!r}, expected float32 or bfloat16")
    if dtype != "float32" and destination.suffix != ".bin":
        raise UserError(f"--dtype {dtype}: {destination} is always float32; X.bin, for llm.c, can be {dtype}")


def _to_checkpoint(path, model, tokenizer):
    if path.name in runs.FILES and (path.parent / runs.SETTINGS).exists():
        raise UserError(f"{path}: belongs to the run in this folder; give another name")
    state = checkpoint.model_state(model)
    if model.description.lora is None:  # all weights, whichever were trained
        state.pop("tuned", None)
    if model.description.file is not None:
        model.description.file.remember()
    arrays, tokenizer_state = checkpoint.tokenizer_contents(tokenizer)
    checkpoint.save(path, {**checkpoint.model_arrays(model), **arrays}, {**state, **tokenizer_state})
    return [path]
