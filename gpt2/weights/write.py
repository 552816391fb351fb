"""A model written as a file or a folder, in the format that the name says."""

from pathlib import Path

from gpt2.data.tokenizer import Tokenizer
from gpt2.errors import UserError
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.storage import runs
from gpt2.weights import checkpoint, huggingface, llmc, peft


def write(
    destination: Path,
    model: GPT2,
    words: Tokenizer | None = None,
    dtype: str = "float32",
    base: str | None = None,
) -> list[Path]:
    """Write a GPT2, and the Tokenizer `words` where there is one, in the format that the Path's name says.

    base   by which name peft finds the weights that the model's adapters stand on, for a folder of adapters

    Returns the paths written. Raises UserError where they cannot be.
    """
    check_dtype(destination, dtype)
    check_kind(destination, model.description)
    if destination.suffix == ".bin":
        return llmc.write(destination, model.params, model.config, dtype, words)
    if destination.suffix == ".safetensors":
        return _to_checkpoint(destination, model, words)
    return _to_huggingface(destination, model, words, base)


def check_kind(destination: Path, d: Description) -> None:
    """Raise UserError where the program that reads this format would compute something else."""
    if destination.suffix == ".safetensors" or d.standard:
        return
    who = "llm.c" if destination.suffix == ".bin" else "transformers"
    if not d.gpt2:
        raise UserError(
            f"{destination}: {who} would compute GPT-2 with these weights, and this is another model: "
            f"{d.summary()}; write it as X.safetensors"
        )
    if who == "llm.c":
        raise UserError(
            f"{destination}: llm.c knows no adapters; --merge (gpt2.merged) takes them into the weights"
        )


def check_dtype(destination: Path, dtype: str) -> None:
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"dtype is {dtype!r}, expected float32 or bfloat16")
    if dtype != "float32" and destination.suffix != ".bin":
        raise UserError(f"--dtype {dtype}: {destination} is always float32; X.bin, for llm.c, can be {dtype}")


def _to_checkpoint(path, model, words):
    state = checkpoint.model_state(model)
    if model.description.lora is None:  # whole weights, whatever part of them was trained
        state.pop("tuned", None)
    if model.description.file is not None:
        model.description.file.remember()
    arrays, kept = checkpoint.kept_tokenizer(words)
    checkpoint.save(path, {**checkpoint.model_arrays(model), **arrays}, {**state, **kept})
    return [path]


def _to_huggingface(folder, model, words, base):
    if (folder / runs.SETTINGS).exists():
        raise UserError(f"{folder}: a run of train.py is in this folder; give another one")
    if model.description.lora is not None:
        return peft.write(folder, model, base)
    huggingface.write(folder, model.params, model.config, words)
    return sorted(path for path in folder.iterdir() if path.is_file())
