"""Find pretrained weights by name or path, as for --init.

gpt2, gpt2-medium, gpt2-large, gpt2-xl    as OpenAI released them: from the folder of this name in
                                          GPT2_DATA_DIR, else through huggingface_hub and its cache
hf:OWNER/NAME, hf:OWNER/NAME@REVISION     another GPT-2 on the hub, or an adapter
path/to/folder                            of Hugging Face transformers, or a run of train.py
path/to/file.bin                          llm.c's checkpoint
path/to/ckpt.pt                           nanoGPT's checkpoint
path/to/file.safetensors                  a checkpoint of a run
path/to/adapter                           a folder of peft, with the base weights that it names
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt2.data import huggingface as tokenizer_files
from gpt2.data import stored, tokenizer
from gpt2.data.tokenizer import RELEASED_VOCABULARY, Tokenizer
from gpt2.data.tokenizer_json import FileTokenizer
from gpt2.errors import UserError, reason, suggestion
from gpt2.hints import quoted
from gpt2.model import RELEASED
from gpt2.model.adapters import take
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.model.own import OwnFile
from gpt2.storage import pickles, runs
from gpt2.storage.files import check_whole
from gpt2.weights import checkpoint, hub, huggingface, llmc, nanogpt, peft


@dataclass(frozen=True)
class Pretrained:
    """The location of weights, and their model.

    name, path   as requested, and where it was found
    kind         huggingface, llm.c, nanogpt, checkpoint or adapter
    config       GPT2Config
    words        the Tokenizer beside the weights, or None
    made_of      the Description of a checkpoint's model; None: GPT-2's
    base     the frozen base weights of an adapter, or of a checkpoint with only trained weights
    unsure       why it is not known whether there is a tokenizer, or ""
    """

    name: str
    path: Path
    kind: str
    config: GPT2Config
    words: Any = None
    made_of: Description | None = None
    base: "Pretrained | None" = None
    unsure: str = ""

    @property
    def description(self) -> Description:
        return self.made_of or Description(self.config)

    def check(self) -> None:
        """Raise UserError if the files are too small for a model of this config. To be called before one is
        built: a few bytes of a header may describe more than fits in memory."""
        if self.base is not None:
            self.base.check()
        stored = sum(path.stat().st_size for path in self.files())
        count = self.description.num_parameters if self.base is None else self.description.trained.count
        needed = 2 * count  # as bfloat16, the smallest way to keep them
        if stored < needed:
            raise UserError(
                f"{self.path}: described is a model of {count:,} "
                f"parameters, but the weights have {stored:,} bytes; they are cut short, or of "
                "another model"
            )

    def files(self) -> list[Path]:
        """The files of the weights, without those of the base."""
        return huggingface.files_of(self.path) if self.kind == "huggingface" else [self.path]

    def lasting(self) -> bool:
        """Whether this program never rewrites the files, as a run does with its checkpoints."""
        rewritten = self.path.name in runs.FILES or (self.path.parent / runs.SETTINGS).exists()
        return self.base is None and self.kind != "adapter" and not rewritten

    def origin(self) -> dict[str, str]:
        """The note about these base weights for a checkpoint with only trained weights."""
        return {"name": self.name, "path": str(self.path.absolute()), "sha256": self.sha256()}

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for path in self.files():
            with open(path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)  # updates it
        return digest.hexdigest()

    def views(self) -> Iterable[tuple[str, Any]]:
        """(name, tensor) of each tensor, as read-only views: an array, or a list of arrays, one a block."""
        if self.kind in ("huggingface", "llm.c"):
            return (huggingface if self.kind == "huggingface" else llmc).read_views(self.path, self.config)
        if self.kind == "nanogpt":
            return nanogpt.read_views(self.path, nanogpt.load(self.path), self.config)
        base = {} if self.base is None else dict(self.base.views())
        if self.kind == "adapter":
            return peft.read(self.path.parent, self.base.config).views(base).items()
        arrays, state = checkpoint.load(self.path, mapped=True)
        stored = self.description.changed(GPT2Config(**state["model"]))
        checkpoint.check_shapes(self.path, arrays, stored, "params.", trained=self.base is not None)
        tensors = {
            name.removeprefix("params."): a for name, a in arrays.items() if name.startswith("params.")
        }
        for name, tensor in tensors.items():  # of trained ones perhaps only those of some blocks
            if stored.trained.frozen_blocks(name) and self.base is not None:
                parts = [*base[name]]
                for l, array in zip(stored.trained[name], tensor, strict=True):
                    parts[l] = array
                tensor = parts
            base[name] = tensor
        return base.items()

    def moments(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """(steps, first and second moments by tensor) of AdamW in a nanoGPT checkpoint, or None."""
        if self.kind != "nanogpt":
            return None
        return nanogpt.moments(self.path, nanogpt.load(self.path), self.config)

    def into(self, model: GPT2) -> None:
        """Load these weights into a model of this description, or with adapters; frozen ones stay mapped."""
        take(model, self.views())
        checkpoint.check_finite(self.path, model.params)

    def model(self, backward: str | None = None) -> GPT2:
        self.check()
        model = GPT2(self.config, backward=backward, seed=None, **self.description.options)
        self.into(model)
        origin, base = None, self.base
        if base is not None:  # for peft's base_model_name_or_path
            released = base.name in RELEASED
            origin = f"openai-community/{base.name}" if released else str(base.path.absolute())
        model.use_tokenizer(self.tokenizer, origin)
        return model

    def tokenizer(self) -> Tokenizer:
        """The Tokenizer of these weights: the one beside them, or GPT-2's if they have its vocabulary.

        Raises UserError if there is none, or one of another size.
        """
        V = self.config.vocab_size
        if self.words is None and self.base is not None:
            return self.base.tokenizer()
        if self.words is None and self.unsure:
            raise UserError(self.unsure)
        words = tokenizer.gpt2() if self.words is None and V == RELEASED_VOCABULARY else self.words
        if words is None:
            lacking = {
                "nanogpt": "; put the meta.pkl of its data beside them",
                "huggingface": "; put its tokenizer.json into the folder",
            }
            raise UserError(
                f"{self.path}: no tokenizer belongs to these weights, and a vocabulary of {V} "
                f"tokens is not GPT-2's{lacking.get(self.kind, '')}"
            )
        if isinstance(words, FileTokenizer):
            words = words.sized(V)
        if words.vocab_size != V:
            raise UserError(
                f"{self.path}: the model has {V} tokens, its tokenizer {words.vocab_size}; they do not "
                "belong together"
            )
        return words


def find(
    name: str,
    dtype: str | None = None,
    layers: Any = None,
    block: Any = None,
    offered: OwnFile | None = None,
) -> Pretrained:
    """Find the weights called `name`. Raises UserError if they cannot be found or read.

    dtype   for the model: float32 or float64. By default the one in which a run computed,
            and float32 for files of other programs
    layers, block   the user's layers and block of the model, if the file does not find them
    offered         a file of layers that the user names; used if the model was made with the same
    """
    weights = _find(name, dtype, {"layers": layers, "block": block, "offered": offered})
    if weights.kind != "checkpoint" and (layers is not None or block is not None):
        raise UserError(f"{name}: holds GPT-2 as it was released, and own layers are given; leave them out")
    return weights


def _find(name, dtype, given):
    if name in RELEASED:
        # OpenAI's four do not change: files in the cache are not requested again
        path = _at_hand(name) or hub.folder(name, f"openai-community/{name}", cached=True)
        weights = _folder(name, path, dtype, given)
        if weights.words is not None and weights.words.name == "gpt2":
            # by this name, as in llm.c, a text that spells <|endoftext|> is ordinary text
            weights = replace(weights, words=tokenizer.of_gpt2(weights.words.ranks))
        return weights
    if name.startswith("hf:"):
        path = _on_hub(name)
        return replace(_folder(name, path, dtype, given), unsure=hub.unsure(name, path))
    path = Path(name)
    if not os.path.exists(path):  # also False for an impossible file name
        raise UserError(
            f"{name}: no such file or folder; expected {', '.join(RELEASED)}, hf:OWNER/NAME, or a path"
            + suggestion(name, RELEASED)
        )
    if path.is_dir():
        return _folder(name, path, dtype, given)
    beside = {huggingface.WEIGHTS: huggingface, huggingface.TORCH: huggingface, peft.WEIGHTS: peft}
    if path.name in beside and (path.parent / beside[path.name].CONFIG).exists():
        return _folder(name, path.parent, dtype, given)
    if path.suffix == ".safetensors":
        return _checkpoint(name, path, dtype, given)
    if path.suffix in nanogpt.SUFFIXES or pickles.is_torch(path):
        content = nanogpt.load(path)
        config = nanogpt.read_config(path, content, dtype or "float32")
        return Pretrained(name, path, "nanogpt", config, nanogpt.tokenizer_of(path, content, config))
    if path.suffix != ".bin":
        raise UserError(
            f"{path}: is not of a kind that can be read; expected a folder of transformers, peft or a run, "
            "nanoGPT's ckpt.pt, llm.c's .bin, or a .safetensors of a run"
        )
    check_whole(path)
    config = llmc.read_config(path, dtype or "float32")
    return Pretrained(name, path, "llm.c", config, _words_beside(path, config))


def find_tokenizer(name: str, layers: Any = None, block: Any = None) -> Tokenizer:
    """The Tokenizer of the weights called `name`, or of a folder or file that holds a tokenizer alone."""
    on_hub = name.startswith("hf:")
    path = _on_hub(name, weights=False) if on_hub else Path(name)
    beside = any((path / file).exists() for file in (runs.SETTINGS, huggingface.CONFIG, peft.CONFIG))
    if name not in RELEASED and (path.suffix == ".json" if path.is_file() else path.is_dir() and not beside):
        return tokenizer_files.alone(path)
    if on_hub and not peft.is_adapter(path):  # without its weights
        return replace(_folder(name, path, None, {}), unsure=hub.unsure(name, path)).tokenizer()
    return find(name, None, layers, block).tokenizer()


def find_config(name: str, dtype: str | None = None, offered: OwnFile | None = None) -> GPT2Config:
    """The GPT2Config of the weights called `name`. Those of a released model need not be downloaded."""
    if name in RELEASED and _at_hand(name) is None:
        return GPT2Config.preset(name, dtype=dtype or "float32")
    return find(name, dtype, offered=offered).config


def load(
    run: str = "",
    init: str = "",
    which: str = "best",
    layers: str | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[GPT2, Tokenizer]:
    """(model, Tokenizer) of a run, or of the weights `init` instead.

    run     its folder; empty for the newest one
    which   best or last: the weights with the lowest validation loss, or the latest
    layers  the file with the model's own layers, if it has moved
    say     called with a line or two about what is read, and the alternatives
    """
    if run and init:
        raise UserError("--run and --init both name weights; give one of them")
    if init:
        weights = find(init, layers=layers)
        model_and_tokenizer = weights.model(), weights.tokenizer()
        say(f"reading {weights.path}" + _step_text(weights.path if weights.kind == "checkpoint" else None))
        return model_and_tokenizer
    if os.path.isfile(run):
        raise UserError(f"--run {run}: is a file, not the folder of a run; for weights: --init {quoted(run)}")
    folder = runs.existing(run)
    path = folder / (runs.BEST if which == "best" else runs.LAST)
    if not path.exists():
        path = folder / runs.LAST  # a run too young to have been validated
    weights = _checkpoint(str(path), path, None, {"layers": layers})
    model, tokenizer_ = weights.model(), weights.tokenizer()
    for line in reading_lines(folder, path, chosen=bool(run)):
        say(line)
    return model, tokenizer_


MOST_NAMED = 8  # runs that are listed


def reading_lines(folder: Path, path: Path, chosen: bool) -> list[str]:
    """Lines that say which run, perhaps not chosen, and which step are read, and the alternatives."""
    other = folder / (runs.LAST if path.name == runs.BEST else runs.BEST)
    flag = "last" if other.name == runs.LAST else "best"
    also = f" (--checkpoint {flag}: {other.name}{_step_text(other)})" if other.exists() else ""
    lines = [f"reading {folder}{_step_text(path)}: {path.name}{also}"]
    others = [] if chosen else [run for run in runs.newest_first() if run != folder]
    if others:
        names = ", ".join(f"{run}{_step_text(run / runs.LAST)}" for run in others[:MOST_NAMED])
        more = f", and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        lines.append(f"it is the newest of {len(others) + 1} runs; --run names another: {names}{more}")
    return lines


def _step_text(path):
    """ ", step 40" for a checkpoint with a step, else ""."""
    try:
        state = checkpoint.load_state(path) if path is not None else {}
    except UserError:
        return ""
    return f", step {state['step']}" if isinstance(state, dict) and "step" in state else ""


def _folder(name, path, dtype, given):
    if (path / runs.SETTINGS).exists():
        best = path / runs.BEST
        return _checkpoint(name, best if best.exists() else path / runs.LAST, dtype, given)
    check_whole(path / (peft.WEIGHTS if peft.is_adapter(path) else huggingface.WEIGHTS))
    if peft.is_adapter(path):
        return _adapter(name, path, dtype)
    config = huggingface.read_config(path, dtype or "float32")
    return Pretrained(name, path, "huggingface", config, tokenizer_files.read(path))


def _checkpoint(name, path, dtype, given):
    state = checkpoint.load_state(path)
    d = checkpoint.description_of(path, state, given, **({"dtype": dtype} if dtype else {}))
    beside = path.parent / runs.TOKENIZER
    if checkpoint.TOKENIZER in state:
        words = checkpoint.load_tokenizer(path, state)
    else:  # written by checkpoint.save alone
        words = stored.load(beside) if beside.exists() else None
    base = base_of(path, state, d.config.dtype, offered=d.file) if "base" in state else None
    return Pretrained(name, path, "checkpoint", d.config, words, d, base)


def base_of(
    path: Path, state: Mapping[str, Any], dtype: str, moved: str = "", offered: OwnFile | None = None
) -> Pretrained:
    """The base of a checkpoint with only trained weights. Raises UserError if it has changed.

    moved     its present path, if the user names it
    offered   the file of layers with which the checkpoint is read
    """
    try:
        name, was_at, sha256 = (str(state["base"][key]) for key in ("name", "path", "sha256"))
    except (KeyError, TypeError):
        raise UserError(f"{path}: the note about its base cannot be read; the file is damaged") from None
    partial = f"{path}: holds only trained weights, on the base {name}"
    try:
        base = find(moved or (was_at if os.path.exists(was_at) else name), dtype, offered=offered)
        same = base.sha256() == sha256
    except (UserError, OSError) as error:
        raise UserError(
            f"{partial}, which is not available ({reason(error)}); restore it at {was_at}"
        ) from None
    if not same:
        raise UserError(f"{partial}; {base.path} has changed; restore it")
    return base


def _adapter(name, path, dtype):
    """A folder of peft, with the base weights that it names."""
    base_name, revision = peft.base_of(path)
    where = _of_peft(base_name, revision)
    # looked at before it is read: an adapter may name itself
    itself = where not in RELEASED and peft.is_adapter(Path(where))
    base = None if itself else find(where, dtype)
    if base is None or not base.description.gpt2 or base.description.lora is not None:
        raise UserError(f"{path}: its base {base_name} is not GPT-2 as it was released")
    base.check()
    adapter = peft.read(path, base.config)
    d = base.description.changed(adapter.config, train=adapter.tuning)
    return Pretrained(name, adapter.path, "adapter", d.config, tokenizer_files.read(path), d, base)


def _of_peft(name, revision):
    """A base name of peft as a name for --init: a path, a released model, or hf:OWNER/NAME@REVISION.

    As for peft, a folder of this name comes first.
    """
    if os.path.isdir(name):
        return str(Path(name).absolute())
    short = name.removeprefix("openai-community/")
    if short in RELEASED and revision in ("", "main"):
        return short
    repository = f"openai-community/{short}" if short in RELEASED else name
    if "/" not in repository or repository.startswith((".", "/")):
        return name
    return f"hf:{repository}@{revision}" if revision else f"hf:{repository}"


def _words_beside(path, config):
    """The tokenizer file of these weights, or GPT-2's under llm.c's name, if its size fits."""
    released = [path.with_name("gpt2_tokenizer.bin")] if config.vocab_size == RELEASED_VOCABULARY else []
    for beside in (llmc.tokenizer_beside(path), *released):
        if beside.exists():
            words = llmc.read_tokenizer(beside)
            if words.vocab_size == config.vocab_size:
                return words
    return None


# ---- The hub ---------------------------------------------------------------------------------------------


def _on_hub(name, weights=True):
    """The folder of hf:OWNER/NAME or hf:OWNER/NAME@REVISION."""
    repository, _, revision = name.removeprefix("hf:").partition("@")
    return hub.folder(name, repository, revision, weights)


def _at_hand(name):
    """The folder of this name in GPT2_DATA_DIR, or None."""
    data = os.environ.get("GPT2_DATA_DIR")
    return Path(data) / name if data and (Path(data) / name / huggingface.CONFIG).exists() else None
