"""Convert weights from one program's format to another's."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from gpt2 import __version__, cli
from gpt2.data.tokens import read_tokens, take
from gpt2.errors import UserError, printable
from gpt2.hints import typed
from gpt2.model.adapters import merged
from gpt2.model.gpt2 import GPT2
from gpt2.storage import runs
from gpt2.storage.files import write_atomically
from gpt2.storage.safetensors import load_state
from gpt2.train.flags import read_toml
from gpt2.train.settings import Settings
from gpt2.weights import llmc, pretrained
from gpt2.weights.write import check_dtype, check_kind, write

# Two float32 programs that sum in different orders agree on a whole tensor to about 1e-6 of its length, and a
# few times worse through many blocks. A wrong formula is off by far more than this:
TOLERANCE = 1e-3


def convert(
    source: str,
    destination: str | Path,
    dtype: str = "float32",
    layers: str | None = None,
    merge: bool = False,
) -> list[Path]:
    """Write the weights called `source` to `destination`; returns the paths written. The arguments are the
    flags of the command. Raises UserError if one cannot be read or the other cannot be written."""
    destination = Path(destination)
    check_dtype(destination, dtype)  # before the source is read, which may take a while
    weights = pretrained.find(str(source), layers=layers)
    if destination.resolve() in {path.resolve() for path in (weights.path, *weights.files())}:
        raise UserError(f"{destination}: source and destination are the same")
    if merge and weights.description.lora is None:
        raise UserError(f"--merge: {source} has no adapters; leave it out")
    if not merge:
        check_kind(destination, weights.description)
    tokenizer = None
    with suppress(UserError):  # weights without one are converted as well
        tokenizer = weights.tokenizer()
    model = merged(weights.model()) if merge else weights.model()
    paths = write(destination, model, tokenizer, dtype)
    if destination.suffix in (".bin", ".safetensors"):
        return paths
    path = destination / CARD
    with suppress(FileNotFoundError, UnicodeError):
        if MARK not in path.read_text(encoding="utf-8"):
            return paths  # one that was written by hand
    write_atomically(path, card(destination.resolve().name, model, weights).encode())
    return [*paths, path]


CARD = "README.md"  # where the hub looks for it
MARK = "<!-- written by gpt2 -->"  # a card that may be replaced
LOAD = {
    "transformers": """from transformers import AutoTokenizer, GPT2LMHeadModel

model = GPT2LMHeadModel.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")""",
    "peft": """from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("FOLDER")""",
}


def card(name: str, model: GPT2, weights: pretrained.Pretrained) -> str:
    """The text of a model card: what the model is, how it was trained, how it is loaded.

    weights   their source; of a run it names data, steps and loss. Of a path only the last part is named
    """
    library = "transformers" if model.description.lora is None else "peft"
    kind = "A GPT-2" if library == "transformers" else "An adapter of a GPT-2"
    config, name = model.config, printable(name)
    rows = [
        ("parameters", f"{model.num_parameters:,}"),
        ("blocks, heads, channels", f"{config.n_layer}, {config.n_head}, {config.n_embd}"),
        ("context, vocabulary", f"{config.block_size:,}, {config.vocab_size:,} tokens"),
        *_training(weights),
    ]
    table = "\n".join(f"| {title} | {printable(value).replace('|', ' ')} |" for title, value in rows)
    return f"""---
library_name: {library}
pipeline_tag: text-generation
tags: [gpt2]
---
{MARK}

# {name}

{kind}, trained in NumPy with gpt2 {__version__}.

| | |
|---|---|
{table}

## How to load it

```python
{LOAD[library].replace("FOLDER", name)}
```

## Licence

None is chosen yet: name one here, and as `license:` above, before you publish the model.
The terms of its data, and of the weights that it began with, still apply.
"""


def _training(weights):
    """(title, value) pairs on the training of a run; of other weights, what they are called."""
    settings = weights.path.parent / runs.SETTINGS
    if weights.kind != "checkpoint" or not settings.exists():
        return [("source", Path(weights.name).name)]
    s, state = Settings(**read_toml(settings, Settings)), load_state(weights.path)
    tokens = s.batch_size * s.block_size * s.accumulate
    loss = state.get("val_loss", state.get("best"))
    return [
        ("data", ", ".join(Path(part).name for part in s.data.split(","))),
        ("trained from", Path(s.init).name if s.init else "random weights"),
        ("what was trained", s.tuning.summary()),
        ("steps", f"{state.get('step', s.steps):,} of {tokens:,} tokens"),
        ("optimizer, learning rate", f"{s.optimizer}, {s.lr:g}"),
        ("validation loss", f"{loss:.4f} nats per token" if isinstance(loss, float) else "not known"),
    ]


def state_of(model: GPT2, inputs: np.ndarray, targets: np.ndarray) -> llmc.State:
    """The llmc.State of this model on a batch: logits, loss and gradients."""
    logits = model.forward(inputs)
    loss = model.forward(inputs, targets)
    model.backward()
    return llmc.State(inputs, targets, logits, loss, model.grads)


def compare(model: GPT2, state: llmc.State) -> Iterator[tuple[str, float, tuple[int, ...]]]:
    """Compare this model with a State that another program wrote, tensor by tensor.

    Yields (name, error, position): the length of the difference over that of the state's tensor, and where
    the two differ most, as an index. A tensor of zeros counts with a length of 1.
    """
    ours = state_of(model, state.inputs, state.targets)
    for name, a, b in (
        ("logits", ours.logits, state.logits),
        ("loss", np.array(ours.loss), np.array(state.loss)),
        *((f"d{name}", ours.grads[name], state.grads[name]) for name, _ in model.description.shapes),
    ):
        difference = np.subtract(a, b, dtype=np.float64)
        error = np.linalg.norm(difference) / (np.linalg.norm(b.astype(np.float64)) or 1.0)
        where = np.unravel_index(np.nanargmax(np.abs(difference)) if np.isfinite(error) else 0, a.shape)
        yield name, float(error), tuple(int(i) for i in where)


def check_state(
    source: str, path: str | Path, tolerance: float = TOLERANCE, say: Callable[[str], object] = print
) -> bool:
    """Compare the model `source` with the debug state in `path`; prints a line a tensor. True: they agree."""
    model = _of_llmc(source)
    state = llmc.read_state(path, model.config)
    B, T = state.inputs.shape
    say(f"{path}: B={B}, T={T}, loss {state.loss:.6f}; relative errors, at most {tolerance:g} allowed")
    agree = True
    for name, error, where in compare(model, state):
        good = error <= tolerance  # false for nan as well
        agree = agree and good
        say(f"  {name:<10} {error:8.1e}  " + ("ok" if good else f"NOT OK, most at {list(where)}"))
    say("all agree" if agree else "they do not agree")
    return agree


def _of_llmc(source):
    """The model `source`, if llm.c has this architecture."""
    model = pretrained.find(str(source)).model()
    if not model.description.standard:
        raise UserError(
            f"{source}: llm.c has only GPT-2, and this is another model: {model.description.summary()}"
        )
    return model


def write_state(source: str, path: str | Path, data: str | Path, B: int = 4, T: int = 64) -> None:
    """Write the debug state of the model called `source` on the first B * T tokens of a token file."""
    tokens = read_tokens(data)
    if len(tokens) < B * T + 1:
        raise UserError(f"{data}: {len(tokens)} tokens, a batch of B={B} and T={T} needs {B * T + 1}")
    model = _of_llmc(source)
    if T > (most := model.config.block_size):
        raise UserError(f"--block-size {T}: {source} reads at most {most} tokens; give --block-size {most}")
    inputs, targets = take(tokens, np.arange(B) * T, T)
    try:
        state = state_of(model, inputs, targets)
    except ValueError as error:
        raise UserError(f"{data} does not fit {source}: {error}") from None
    llmc.write_state(path, state, model.config)


EXAMPLES = (
    ("gpt2 convert runs/mine mine-hf", "a run, for Hugging Face transformers"),
    ("gpt2 convert gpt2 gpt2_124M.bin", "the released weights, for llm.c"),
    ("gpt2 convert mine-hf mine.safetensors", "a checkpoint of this project"),
    ("gpt2 convert runs/tuned adapter", "the adapters of a run, for peft; with --merge the whole model"),
    ("gpt2 convert gpt2_124M.bin --check-state gpt2_124M_debug_state.bin", "compare with llm.c's numbers"),
    ("gpt2 convert gpt2_124M.bin --write-state state.bin --data tokens/train.bin", "write such a file"),
)
ABOUT = """Convert weights from one program's format to another's.

The source is whatever --init takes: gpt2, gpt2-medium, gpt2-large, gpt2-xl, hf:OWNER/NAME, a run, a folder
of transformers or peft, a .bin of llm.c, nanoGPT's ckpt.pt, a .safetensors of a run. The name of the
destination chooses the format: X.bin is llm.c's, X.safetensors this project's, anything else is a folder for
transformers, or, for a source with adapters and without --merge, a folder for peft with only the adapters.
The source's tokenizer is written beside the weights."""
NOTE = """The token files that llm.c trains on, and that --data takes, come from another command, which writes
tokens/train.bin and tokens/val.bin:

    gpt2 data my.txt --tokenizer gpt2 --out tokens"""


def parser() -> cli.Parser:
    command = cli.Parser("convert", ABOUT, EXAMPLES, note=NOTE)
    add = command.add_argument
    add("source", help="weights: a name, a folder or a file")
    add("destination", nargs="?", help="X.bin, X.safetensors, or a folder")
    add("--layers", metavar="FILE.py", help="the source's own layers, if their file has moved")
    add("--merge", action="store_true", help="merge the source's adapters into its weights")
    add("--dtype", default="float32", choices=["float32", "bfloat16"], help="of an llm.c file")
    add("--check-state", metavar="STATE", help="compare with llm.c's debug state; exit status 1: they differ")
    add("--write-state", metavar="STATE", help="write a debug state on the first tokens of --data")
    add("--data", metavar="TOKENS", help="a token file for --write-state")
    about = "sequences in the state (default: %(default)s)"
    add("--batch-size", type=int, default=4, metavar="B", help=about)
    add("--block-size", type=int, default=64, metavar="T", help="tokens in a sequence (default: %(default)s)")
    return command


def _run(args):
    if sum(target is not None for target in (args.destination, args.check_state, args.write_state)) != 1:
        raise UserError("give one of: a destination, --check-state STATE, --write-state STATE")
    for flag, value in (("--batch-size", args.batch_size), ("--block-size", args.block_size)):
        if value < 1:
            raise UserError(f"{flag} {value}: expected 1 or more")
    if args.check_state:
        return 0 if check_state(args.source, args.check_state) else 1
    if args.write_state:
        if not args.data:
            raise UserError(
                "--write-state needs tokens: --data tokens/train.bin; "
                + typed("`gpt2 data my.txt --tokenizer gpt2 --out tokens` writes such files")
            )
        write_state(args.source, args.write_state, args.data, args.batch_size, args.block_size)
        print(f"wrote {printable(args.write_state)}")
        return 0
    for path in convert(args.source, args.destination, args.dtype, args.layers, args.merge):
        print(f"wrote {printable(path)}")
    return 0


main = cli.command(parser, _run)
