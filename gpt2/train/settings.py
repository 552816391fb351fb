"""The settings of a run: one frozen dataclass, the presets, and what a command line or a kept run says.

Nothing here imports NumPy: the number of its threads is one of the settings, and must be set before.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpt2 import parallel
from gpt2.cli import Parser
from gpt2.errors import UserError
from gpt2.model.own import check_trained_with
from gpt2.model.tuning import Tuning
from gpt2.storage import runs
from gpt2.train.flags import add_arguments, check, flag, parse, read_toml, setting

FASTEST = "fastest"  # of backward and parallel: what turns out to be (gpt2.train.fastest); of kernels as well
OWN = "own"  # of kernels: those that OpenBLAS picks


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run computes, and how it reports; `train.py --help` lists it all.

    Settings(data="my.txt", steps=100) has the defaults for what is not named; gpt2.train.from_preset knows
    the presets, and the shape of weights to start from. Raises UserError for a value of the wrong type or out
    of its range.

        >>> settings = gpt2.train.Settings(data="my.txt", steps=100, lr=1e-3)
        >>> settings.batch_size, settings.steps
        (8, 100)
    """

    preset: str = setting(
        "shakespeare",
        "run",
        "named settings to start from: shakespeare, "
        "shakespeare-char-cpu, finetune, llm.c, gpt2, gpt2-medium, gpt2-large, gpt2-xl",
        fixed=True,
    )
    out: str = setting("", "run", "folder of the run (default: runs/PRESET-N, N the first free number)")
    seed: int = setting(1337, "run", "of initial weights, batches and samples", minimum=0, fixed=True)

    data: str = setting(
        "auto", "data", "auto, tinyshakespeare, stdlib, a text file, or llm.c's X_train.bin", fixed=True
    )
    tokenizer: str = setting(
        "auto",
        "data",
        "gpt2, byte, char, bpe:N, or auto: gpt2 where its vocabulary is at hand, else byte",
        fixed=True,
    )
    batch_size: int = setting(8, "data", "sequences in a batch", minimum=1)
    block_size: int = setting(64, "data", "tokens in a sequence, the longest context", minimum=1, fixed=True)
    accumulate: int = setting(
        1, "data", "batches whose gradients make one step; more costs time, not memory", minimum=1
    )
    order: str = setting(
        "epochs",
        "data",
        "of batches: epochs: every token once before any comes again; "
        "random: positions as nanoGPT draws them; llm.c: all in turn, shuffled as there",
        choices=("epochs", "random", "llm.c"),
        fixed=True,
    )

    init: str = setting(
        "",
        "model",
        "weights to start from: gpt2, gpt2-medium, gpt2-large, gpt2-xl, "
        "hf:OWNER/NAME, a run, a folder of transformers, a .bin of llm.c (default: random)",
        fixed=True,
    )
    layers: str = setting(
        "",
        "model",
        "a Python file with own layers or an own block, used for all that is done with the model "
        "(docs/adding-a-layer.md)",
        fixed=True,
    )
    train: str = setting(
        "all",
        "model",
        "what is trained: all; lora:RANK, adapters beside matrices; last:BLOCKS, the last blocks and the "
        "layernorm after them; biases (docs/fine-tuning.md)",
        fixed=True,
    )
    freeze: str = setting(
        "", "model", "tensors that are not trained, by name, with commas: wte,wpe", fixed=True
    )
    lora_alpha: float = setting(
        8.0, "model", "of lora: an adapter counts lora_alpha / RANK times", minimum=1e-6, fixed=True
    )
    lora_targets: str = setting(
        "c_attn",
        "model",
        "of lora: the matrices with an adapter, with commas, as in peft: c_attn, attn.c_proj, c_fc, "
        "mlp.c_proj, c_proj; or attn, mlp, all-linear",
        fixed=True,
    )
    n_layer: int = setting(4, "model", "blocks", minimum=1, fixed=True)
    n_head: int = setting(
        4, "model", "attention heads in a block, a divisor of n_embd", minimum=1, fixed=True
    )
    n_embd: int = setting(128, "model", "channels", minimum=1, fixed=True)
    context: int = setting(
        0, "model", "tokens that the model can read; 0: block_size, or what --init can", minimum=0, fixed=True
    )
    dtype: str = setting(
        "float32",
        "model",
        "of all arrays; float64 is for checking gradients",
        choices=("float32", "float64"),
        fixed=True,
    )

    steps: int = setting(400, "optimisation", "optimizer steps in all", minimum=1)
    lr: float = setting(2e-3, "optimisation", "highest learning rate; small models stand more", minimum=0)
    min_lr: float = setting(2e-4, "optimisation", "learning rate at the end; a tenth is customary", minimum=0)
    warmup: int = setting(50, "optimisation", "steps in which the learning rate rises from 0", minimum=0)
    beta1: float = setting(0.9, "optimisation", "AdamW: memory of the gradient's mean", minimum=0, below=1)
    beta2: float = setting(
        0.99, "optimisation", "AdamW: memory of its square; long, as batches are small", minimum=0, below=1
    )
    eps: float = setting(1e-8, "optimisation", "AdamW: keeps the division from zero", minimum=1e-30)
    weight_decay: float = setting(
        0.1, "optimisation", "AdamW: decay of matrices, per step and unit of lr", minimum=0
    )
    clip: float = setting(1.0, "optimisation", "longest gradient, as a norm; 0 for no limit", minimum=0)

    backward: str = setting(
        FASTEST, "engine", "manual, auto, a mix such as manual,attention=auto, or whole; fastest measures"
    )
    compile: str = setting(
        "on", "engine", "off runs every layer as it is written, for debugging", choices=("on", "off")
    )
    detect_anomaly: bool = setting(
        False,
        "engine",
        "trace the first nan or infinity of a step to the op and "
        "line that made it; steps take several times as long",
    )
    elementwise: str = setting(
        "numpy",
        "engine",
        "what computes compiled elementwise operations; tuned times both on this machine",
        choices=("numpy", "numexpr", "tuned"),
    )
    threads: int = setting(
        0,
        "engine",
        "for matrix products, in all processes of this machine together; 0: as many as NumPy takes",
        minimum=0,
        below=1025,
    )
    kernels: str = setting(
        FASTEST,
        "engine",
        "of OpenBLAS, for matrix products: own, those that it picks for this processor; or a name that it "
        "knows, such as Haswell; fastest measures",
    )
    parallel: str = setting(
        FASTEST,
        "engine",
        "none: threads share each product out; shares: threads take shares of the batch; processes do the "
        "same in memory of their own; mpi: under mpiexec; fastest measures",
        choices=(FASTEST, *parallel.KINDS),
    )
    workers: str = setting(
        "auto",
        "engine",
        "of --parallel shares and processes: a number, each takes its share of the batch; auto: for shares "
        "as many as threads; processes are measured, and threads taken where they are faster",
    )
    worker_timeout: float = setting(
        300.0,
        "engine",
        "seconds without a sign of life from a worker that end the run; 0: no limit",
        minimum=0,
    )
    shard: bool = setting(False, "engine", "mpi: each process keeps AdamW's moments of its own part only")

    eval_every: int = setting(100, "reports", "steps between validations; 0: only at the end", minimum=0)
    eval_batches: int = setting(20, "reports", "batches in a validation; 0: the whole split", minimum=0)
    sample_every: int = setting(0, "reports", "steps between samples of text; 0: only at the end", minimum=0)
    sample_tokens: int = setting(120, "reports", "tokens in a sample; 0: no samples", minimum=0)
    save_every: int = setting(100, "reports", "steps between checkpoints; 0: only at the end", minimum=0)
    log_every: int = setting(10, "reports", "steps between lines where the output is no terminal", minimum=1)
    lines: str = setting(
        "own",
        "reports",
        "whose lines are printed; llm.c: all others go to standard error",
        choices=("own", "llm.c"),
    )

    def __post_init__(self) -> None:
        check(self)
        self.tuning  # noqa: B018  # refuses what cannot be meant

    @property
    def tuning(self) -> Tuning:
        """The Tuning that says what of the model is trained."""
        return Tuning(self.train, self.freeze, self.lora_alpha, self.lora_targets)


PRESETS: dict[str, dict[str, Any]] = {
    "shakespeare": {},  # the defaults above
    "shakespeare-char-cpu": dict(  # the command that nanoGPT's README gives for a CPU
        tokenizer="char",
        batch_size=12,
        block_size=64,
        n_layer=4,
        n_head=4,
        n_embd=128,
        steps=2000,
        lr=1e-3,
        min_lr=1e-4,
        warmup=100,
        beta2=0.99,
        eval_every=250,
        eval_batches=20,
        save_every=250,
        sample_tokens=300,
        log_every=50,
    ),
    # From the released weights to your own text: small steps, few of them, or it forgets what it knew
    "finetune": dict(
        init="gpt2",
        batch_size=4,
        block_size=128,
        accumulate=2,
        steps=60,
        lr=5e-5,
        min_lr=5e-6,
        warmup=5,
        beta2=0.95,
        eval_every=20,
        eval_batches=10,
        save_every=20,
        log_every=1,
    ),
    # llm.c's program for the CPU: 41 steps, the first and every tenth after a validation
    "llm.c": dict(
        init="gpt2",
        order="llm.c",
        lines="llm.c",
        batch_size=4,
        block_size=64,
        steps=41,
        lr=1e-4,
        min_lr=1e-4,
        warmup=0,
        beta2=0.999,
        weight_decay=0.0,
        clip=0.0,
        eval_every=10,
        eval_batches=5,
        sample_every=20,
        sample_tokens=63,
        save_every=0,
    ),
    # The four released sizes from nothing: the rates of nanoGPT's recipe for them, one small batch a step
    **{
        name: dict(
            batch_size=4,
            block_size=64,
            steps=100,
            lr=6e-4,
            min_lr=6e-5,
            warmup=20,
            beta2=0.95,
            eval_every=50,
            eval_batches=8,
            save_every=50,
            log_every=1,
        )
        for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
    },
}


class Request(NamedTuple):
    """What a command line and the files it names ask for.

    given      setting -> value, without defaults and presets
    resume     the folder of a run to go on with, "" for the newest one, or None for a new run
    overwrite  whether a run that is in the way may be replaced
    dry_run    whether only to say what the run would take
    typed      the settings that stand on the command line itself
    """

    given: dict[str, Any]
    resume: str | None
    overwrite: bool
    dry_run: bool
    typed: frozenset[str] = frozenset()


EXAMPLES = (
    ("gpt2 train", "the default: a small model on Shakespeare, a few minutes"),
    ("gpt2 train --data my.txt --out runs/mine", "on your own text"),
    ("gpt2 train --preset finetune --data my.txt", "from GPT-2's released weights"),
    ("gpt2 train --preset finetune --train lora:8 --data my.txt", "adapters beside them, in little memory"),
    ("gpt2 train --backward auto --steps 100", "with the gradients that the compiler derives"),
    ("gpt2 train --resume runs/mine --steps 800", "go on with a run, to a later step"),
    ("gpt2 train --preset gpt2 --dry-run", "what a run would take: memory, time"),
)


def parser() -> Parser:
    """The flags of a training run."""
    made = Parser(
        "train",
        "Train a GPT-2.",
        EXAMPLES,
        "Settings come from the defaults, then --preset, then --config FILE.toml, then the flags; "
        "the last one wins.",
        usage="%(prog)s\n       [--config FILE] [--resume [RUN]] [--overwrite] [--dry-run]\n"
        "       [--SETTING VALUE ...]",
    )
    made.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    made.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="go on with the run in this folder; without a folder: --out, or the newest run",
    )
    made.add_argument("--overwrite", action="store_true", help="replace a run that is already in --out")
    made.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    add_arguments(made, Settings)
    return made


def read_settings(argv: Sequence[str]) -> Request:
    """Read the command line, and the TOML file that it names. Raises UserError for what it cannot mean."""
    given, other = parse(parser(), Settings, argv)
    typed = frozenset(given)
    if other["config"]:
        given = {**read_toml(other["config"], Settings), **given}
        if given.get("layers") and "layers" not in typed:
            check_trained_with(given["layers"])
    return Request(given, other["resume"], other["overwrite"], other["dry_run"], typed)


# What has an effect with some kinds of --parallel only
OF_KINDS = {"workers": ("processes", "shares"), "worker_timeout": ("processes", "mpi"), "shard": ("mpi",)}


def check_effect(asked: Request, resumed: Settings | None) -> None:
    """Raise UserError for a flag that was typed and would do nothing: something else was meant.

    What a file says with --config is let pass: it may be the settings of a run of another kind.
    """
    kind = resumed.parallel if resumed else asked.given.get("parallel", FASTEST)
    for name, kinds in OF_KINDS.items():
        if name in asked.typed and kind not in kinds:
            needed = " or ".join(f"--parallel {kind}" for kind in kinds)
            raise UserError(f"{flag(name)} has no effect without {needed}; give both, or neither")
    train = resumed.train if resumed else asked.given.get("train", "all")
    for name in ("lora_alpha", "lora_targets"):
        if name in asked.typed and not train.startswith("lora"):
            raise UserError(f"{flag(name)} has no effect without --train lora:RANK; give both, or neither")
    if asked.overwrite and asked.resume is not None:
        raise UserError("--overwrite has no effect with --resume, which goes on with a run; give one of them")
    if asked.overwrite and not asked.given.get("out"):
        raise UserError(
            "--overwrite has no effect without --out: a new folder is made; name the one to replace"
        )


MOVABLE = ("data", "layers")


def resumed_settings(folder: str | Path, given: dict[str, Any] | None = None) -> Settings:
    """Settings of a run that goes on: what it had, and what was given now, where that may change.

    >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0,
    ...     out="runs/a")
    >>> run = gpt2.train.train(settings, overwrite=True)
    >>> more = gpt2.train.resumed_settings("runs/a", {"steps": 5})
    >>> gpt2.train.train(more, resume=True).step
    5
    """
    folder, given = Path(folder), given or {}
    stored = Settings(
        **{"kernels": OWN, **read_toml(folder / runs.SETTINGS, Settings)}
    )  # as before it was kept
    for field in dataclasses.fields(Settings):
        if not field.metadata["fixed"] or field.name not in given:
            continue
        now, then = given[field.name], getattr(stored, field.name)
        # text, layers and the weights below adapters may lie elsewhere by now; Run looks if they are the same
        if now != then and field.name not in MOVABLE and not (field.name == "init" and stored.train != "all"):
            raise UserError(
                f"{flag(field.name)} {now}: the run in {folder} has {then}, and a resumed run "
                "keeps it; start a new run instead"
            )
    if stored.layers and "layers" not in given:
        check_trained_with(stored.layers)
    return dataclasses.replace(stored, **{**given, "out": str(folder)})
