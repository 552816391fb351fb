"""gpt2.load, save, load_tokenizer, lora and merged: models by the names and formats of the commands."""

from pathlib import Path
from typing import Any

from gpt2.data.tokenizer import Tokenizer
from gpt2.model.adapters import lora, merged
from gpt2.model.gpt2 import GPT2
from gpt2.weights.pretrained import find, find_tokenizer
from gpt2.weights.write import write

__all__ = ["load", "load_tokenizer", "lora", "merged", "save"]


def load(
    name: str | Path,
    backward: str | None = None,
    dtype: str | None = None,
    layers: Any = None,
    block: Any = None,
) -> GPT2:
    """The model that `name` stands for, with its weights.

    name      what --init takes (docs/formats.md): gpt2, gpt2-medium, gpt2-large, gpt2-xl, hf:OWNER/NAME, a
              run's folder, a folder of transformers or peft, a .bin of llm.c, nanoGPT's ckpt.pt, a run's
              .safetensors
    backward  manual, auto, a mix such as "manual,attention=auto", or whole; by default manual, with those
              layers derived that have no backward by hand
    dtype     float32 or float64; by default the one in which a run computed, float32 for other files
    layers, block   the user's layers and block that the model was built with; not needed if they are in a
              file that you have trained with on this machine. Code of other files runs only if named here

    Raises gpt2.errors.UserError, a ValueError of one line, if it cannot be found or read.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, seed=0)
        >>> paths = gpt2.save(model, "small.bin")
        >>> again = gpt2.load("small.bin", backward="whole")
        >>> bool((again.flat_params == model.flat_params).all())
        True
    """
    return find(str(name), dtype, layers, block).model(backward)


def load_tokenizer(name: str | Path, layers: Any = None, block: Any = None) -> Tokenizer:
    """The tokenizer that belongs to the weights called `name`; layers and block as for `load`.

    name   also a folder or a file (tokenizer.json) of Hugging Face that holds a tokenizer alone

    Raises UserError if there is none and the vocabulary is not GPT-2's.

        >>> from gpt2.data import tokenizer
        >>> config = gpt2.GPT2Config(vocab_size=256, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> paths = gpt2.save(gpt2.GPT2(config), "bytes.bin", tokenizer.byte())
        >>> words = gpt2.load_tokenizer("bytes.bin")
        >>> words.decode(words.encode("to be"))
        'to be'
    """
    return find_tokenizer(str(name), layers, block)


def save(
    model: GPT2, path: str | Path, tokenizer: Tokenizer | None = None, dtype: str = "float32"
) -> list[Path]:
    """Write a model, and its tokenizer if one is given; returns the paths written.

    path   X.bin is llm.c's format, X.safetensors this project's, anything else a folder for transformers;
           for a model with adapters, a folder for peft with only the adapters
    dtype  of the numbers in a .bin: float32 or bfloat16

    Writes are atomic: to a temporary name, then renamed.
    Raises UserError if it cannot be written.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, seed=0)
        >>> [path.name for path in gpt2.save(model, "mine.bin", dtype="bfloat16")]
        ['mine.bin']
    """
    if not isinstance(model, GPT2):
        raise TypeError(f"save: model is {model!r}, expected a GPT2")
    return write(Path(path), model, tokenizer, dtype)
