"""The settings of a run: a frozen dataclass, the presets, and reading them from flags or a saved run.

Nothing here imports NumPy: the number of its threads is one of the settings, and must be set before.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpt2 import parallel
from gpt2.cli import Parser
from gpt2.errors import UserError
from gpt2.model import ACTIVATIONS, RELEASED
from gpt2.model import PRESETS as SIZES
from gpt2.model.own import check_trained_with
from gpt2.model.tuning import Tuning
from gpt2.storage import runs
from gpt2.train.flags import add_arguments, as_typed, check, flag, parse, read_toml, setting

FASTEST = "fastest"  # of backward, parallel and kernels: chosen by timing
OWN = "own"  # of kernels: OpenBLAS's own choice

DATA, MODEL = (partial(setting, group, fixed=True) for group in ("data", "model"))
RUN, OPTIMISATION = (partial(setting, group) for group in ("run", "optimisation"))
ENGINE, REPORTS = (partial(setting, group) for group in ("engine", "reports"))


def _sizes(name: str) -> dict[str, int]:
    return {size: SIZES[name][size] for size in ("n_layer", "n_head", "n_embd")}


CHAR_CPU: dict[str, Any] = dict(  # nanoGPT's model for a CPU, letter by letter
    tokenizer="char",
    **_sizes("shakespeare-char-cpu"),
    batch_size=12,
    block_size=64,
    warmup=100,
    beta2=0.99,
    eval_batches=20,
    sample_tokens=300,
    log_every=50,
)
PRESETS: dict[str, dict[str, Any]] = {
    "shakespeare": dict(optimizer="muon", steps=200, warmup=30, lr=1.2e-2, min_lr=2e-3),
    "shakespeare-char-cpu": dict(**CHAR_CPU, optimizer="muon", steps=600, eval_every=100, save_every=100),
    # the command that nanoGPT's README gives for a CPU
    "nanogpt-char-cpu": dict(**CHAR_CPU, steps=2000, lr=1e-3, min_lr=1e-4, eval_every=250, save_every=250),
    # From the released weights to your own text: a few small steps, or the model forgets
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
    # The four released sizes from random weights: nanoGPT's learning rates, one small batch a step
    **{
        name: dict(
            **_sizes(name),
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
        for name in RELEASED
    },
}


# Settings that GPT2Config has under the same name
AS_IN_CONFIG = ("n_layer", "n_head", "n_embd", "bias", "layer_norm_epsilon", "scale_attn_weights")
AS_IN_CONFIG += ("scale_attn_by_inverse_layer_idx",)


@dataclass(frozen=True)
class Settings:
    """All settings of a run; `train.py --help` lists them.

    Settings(data="my.txt", steps=100) has defaults for the others; gpt2.train.from_preset knows
    the presets, and the shape of weights to start from. Raises UserError for a value of the wrong type or
    out of range.

        >>> settings = gpt2.train.Settings(data="my.txt", steps=100, lr=1e-3)
        >>> settings.batch_size, settings.steps
        (8, 100)
    """

    preset: str = RUN("shakespeare", f"named settings to start from: {', '.join(PRESETS)}", fixed=True)
    out: str = RUN("", "folder of the run (default: runs/PRESET-N, N the first free number)")
    seed: int = RUN(1337, "for initial weights, batches and samples", minimum=0, fixed=True)

    data: str = DATA(
        "auto",
        "auto, tinyshakespeare, stdlib; files, folders or patterns of text (.txt, .jsonl, .gz, .parquet) or "
        "conversations (.jsonl); llm.c's X_train.bin or a pattern of them; nanoGPT's folder",
        many=True,
    )
    val_data: str = DATA("", "what to validate on, named like --data (default: a part of it)", many=True)
    val_fraction: float = DATA(
        0.1, "part of --data to validate on, from its end; whole documents", minimum=0, below=1
    )
    template: str = DATA("", "of a message in a conversation, with {role} and {content} (docs/your-data.md)")
    pack: bool = DATA(False, "several conversations in a sequence, instead of padding")
    tokenizer: str = DATA(
        "auto",
        "gpt2, byte, char, bpe:N, a folder or file with a tokenizer of transformers, or auto: gpt2 if its "
        "vocabulary is available, else byte",
    )
    batch_size: int = DATA(8, "sequences in a batch", minimum=1, fixed=False)
    block_size: int = DATA(64, "tokens in a sequence, the longest context", minimum=1)
    accumulate: int = DATA(
        1, "batches whose gradients make one step; more costs time, not memory", minimum=1, fixed=False
    )
    order: str = DATA(
        "epochs",
        "order of batches: epochs: every token once per epoch; "
        "random: random positions, as in nanoGPT; llm.c: shuffled as in llm.c",
        choices=("epochs", "random", "llm.c"),
    )

    init: str = MODEL(
        "",
        f"weights to start from: {', '.join(RELEASED)}, "
        "hf:OWNER/NAME, a run, a folder of transformers or peft, a .bin of llm.c, nanoGPT's ckpt.pt "
        "(default: random)",
    )
    layers: str = MODEL("", "a Python file with your layers or block (docs/adding-a-layer.md)")
    train: str = MODEL(
        "all",
        "what is trained: all; lora:RANK, adapters beside matrices; adapter, what the adapter of --init "
        "trains; last:BLOCKS, the last blocks and the layernorm after them; biases (docs/fine-tuning.md)",
    )
    freeze: str = MODEL("", "names of tensors to freeze, separated by commas: wte,wpe")
    lora_alpha: float = MODEL(8.0, "for lora: adapters are scaled by lora_alpha / RANK", minimum=1e-6)
    lora_targets: str = MODEL(
        "c_attn",
        "for lora: matrices with an adapter, separated by commas, as in peft: c_attn, attn.c_proj, c_fc, "
        "mlp.c_proj, c_proj; or attn, mlp, all-linear",
    )
    adapter: str = MODEL("", "for lora: an adapter of peft, as JSON; set by --train adapter")
    n_layer: int = MODEL(4, "blocks", minimum=1)
    n_head: int = MODEL(4, "attention heads in a block, a divisor of n_embd", minimum=1)
    n_embd: int = MODEL(128, "channels", minimum=1)
    context: int = MODEL(0, "longest context of the model; 0: block_size, or that of --init", minimum=0)
    n_inner: int = MODEL(0, "channels inside the MLP; 0: 4 n_embd", minimum=0)
    activation: str = MODEL(
        "gelu_new",
        "of the MLP, by transformers' names: gelu_new is GPT-2's, gelu the one of erf",
        choices=tuple(ACTIVATIONS),
    )
    bias: bool = MODEL(True, "biases in all layers")
    untied: bool = MODEL(False, "a head with a matrix of its own, in place of the token embedding")
    layer_norm_epsilon: float = MODEL(1e-5, "added to the variance in layernorm", minimum=0)
    scale_attn_weights: bool = MODEL(True, "divide attention's scores by the root of a head's channels")
    scale_attn_by_inverse_layer_idx: bool = MODEL(False, "and by the number of the block, from 1")
    dtype: str = MODEL(
        "float32", "of all arrays; float64 is for checking gradients", choices=("float32", "float64")
    )

    optimizer: str = OPTIMISATION(
        "adamw",
        "adamw; or muon, for the matrices of the blocks, with adamw for all other tensors",
        choices=("adamw", "muon"),
        fixed=True,
    )
    steps: int = OPTIMISATION(400, "optimizer steps in all", minimum=1)
    lr: float = OPTIMISATION(2e-3, "highest learning rate; small models tolerate more", minimum=0)
    min_lr: float = OPTIMISATION(2e-4, "learning rate at the end; a tenth is customary", minimum=0)
    warmup: int = OPTIMISATION(50, "steps in which the learning rate rises from 0", minimum=0)
    beta1: float = OPTIMISATION(0.9, "AdamW: decay of the gradient's running mean", minimum=0, below=1)
    beta2: float = OPTIMISATION(0.99, "AdamW: decay of its squares' running mean", minimum=0, below=1)
    eps: float = OPTIMISATION(1e-8, "AdamW: avoids division by zero", minimum=1e-30)
    weight_decay: float = OPTIMISATION(
        0.1, "AdamW: weight decay of matrices, per step and unit of lr", minimum=0
    )
    muon_lr: float = OPTIMISATION(
        0.02, "Muon: highest learning rate of the blocks' matrices; it follows lr's schedule", minimum=1e-12
    )
    muon_momentum: float = OPTIMISATION(
        0.95, "Muon: decay of the gradient's running mean", minimum=0, below=1
    )
    clip: float = OPTIMISATION(1.0, "largest gradient norm; 0: no clipping", minimum=0)

    backward: str = ENGINE(
        FASTEST, "manual, auto, a mix such as manual,attention=auto, or whole; fastest: chosen by timing"
    )
    compile: str = ENGINE(
        "on", "off: run every layer line by line in NumPy, for debugging", choices=("on", "off")
    )
    detect_anomaly: bool = ENGINE(
        False,
        "trace the first nan or infinity of a step to the op and "
        "line that made it; steps take several times as long",
    )
    elementwise: str = ENGINE(
        "numpy",
        "library for compiled elementwise operations; tuned: chosen by timing",
        choices=("numpy", "numexpr", "tuned"),
    )
    threads: int = ENGINE(
        0, "in all processes of this machine together; 0: as many as there are cores", minimum=0, below=1025
    )
    kernels: str = ENGINE(
        FASTEST,
        "OpenBLAS kernels for matrix products: own, its own choice; or a name that it knows, such as "
        "Haswell; fastest: chosen by timing",
    )
    parallel: str = ENGINE(
        FASTEST,
        "none: threads split each matrix product; shares: threads split the batch; processes: processes "
        "split the batch; mpi: under mpiexec; fastest: chosen by timing",
        choices=(FASTEST, *parallel.KINDS),
    )
    workers: str = ENGINE(
        "auto",
        "number of workers for --parallel shares and processes; auto: for shares as many as threads, for "
        "processes chosen by timing, with threads if they are faster",
    )
    worker_timeout: float = ENGINE(
        300.0, "seconds without a heartbeat from a worker before the run ends; 0: no limit", minimum=0
    )
    shard: bool = ENGINE(False, "mpi: each process keeps AdamW's moments only for its part")

    eval_every: int = REPORTS(100, "steps between validations; 0: only at the end", minimum=0)
    eval_batches: int = REPORTS(20, "batches in a validation; 0: the whole split", minimum=0)
    patience: int = REPORTS(
        0, "validations without a better loss after which the run ends; 0: never", minimum=0
    )
    sample_every: int = REPORTS(0, "steps between samples of text; 0: only at the end", minimum=0)
    sample_tokens: int = REPORTS(120, "tokens in a sample; 0: no samples", minimum=0)
    save_every: int = REPORTS(100, "steps between checkpoints; 0: only at the end", minimum=0)
    log_every: int = REPORTS(10, "steps between lines if the output is not a terminal", minimum=1)
    lines: str = REPORTS(
        "own", "log format: own or llm.c's, with other output on standard error", choices=("own", "llm.c")
    )

    def __post_init__(self) -> None:
        check(self)
        self.tuning  # noqa: B018  # raises for invalid values

    @property
    def tuning(self) -> Tuning:
        """The Tuning of these settings."""
        return Tuning(self.train, self.freeze, self.lora_alpha, self.lora_targets, self.adapter)


class Request(NamedTuple):
    """The request of a command line and its --config file.

    given      setting -> value, without defaults and presets
    resume     the folder of the run to resume, "" for the newest one, or None for a new run
    overwrite  whether an existing run may be replaced
    dry_run    whether only to estimate the run
    typed      the settings on the command line itself
    resumed    the settings of the run to resume, with what is given; None for a new run
    """

    given: dict[str, Any]
    resume: str | None
    overwrite: bool
    dry_run: bool
    typed: frozenset[str] = frozenset()
    resumed: Settings | None = None

    def setting(self, name: str) -> Any:
        """A setting of the run to resume, or one that is given, or its default; presets do not set it."""
        return getattr(self.resumed, name) if self.resumed else self.given.get(name, getattr(Settings, name))


EXAMPLES = (
    ("gpt2 train", "the default: a small model on Shakespeare, a few minutes"),
    ("gpt2 train --data my.txt --out runs/mine", "on your own text"),
    ("gpt2 train --preset finetune --data my.txt", "from GPT-2's released weights"),
    ("gpt2 train --preset finetune --train lora:8 --data my.txt", "with adapters, in little memory"),
    ("gpt2 train --backward auto --steps 100", "with the gradients that the compiler derives"),
    ("gpt2 train --resume runs/mine --steps 800", "resume a run, to a later step"),
    ("gpt2 train --preset gpt2 --dry-run", "estimate memory and time"),
)


def parser() -> Parser:
    """The flags of a training run."""
    command = Parser(
        "train",
        "Train a GPT-2.",
        EXAMPLES,
        "Settings come from the defaults, then --preset, then --config FILE.toml, then the flags; "
        "the last one wins.",
        usage="%(prog)s\n       [--config FILE] [--resume [RUN]] [--overwrite] [--dry-run]\n"
        "       [--SETTING VALUE ...]",
    )
    command.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    command.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="resume the run in this folder; without a folder: --out, or the newest run",
    )
    command.add_argument("--overwrite", action="store_true", help="replace a run that is already in --out")
    command.add_argument("--dry-run", action="store_true", help="estimate memory and time, and exit")
    add_arguments(command, Settings)
    return command


def read_settings(argv: Sequence[str]) -> Request:
    """Read the command line and its TOML file. Raises UserError for invalid ones."""
    given, other = parse(parser(), Settings, argv)
    typed = frozenset(given)
    if other["config"]:
        given = {**read_toml(other["config"], Settings), **given}
        if given.get("layers") and "layers" not in typed:
            check_trained_with(given["layers"])
    return Request(given, other["resume"], other["overwrite"], other["dry_run"], typed)


# Settings that only apply to some kinds of --parallel
OF_KINDS = {"workers": ("processes", "shares"), "worker_timeout": ("processes", "mpi"), "shard": ("mpi",)}


def check_effect(request: Request) -> None:
    """Raise UserError for a typed flag that would have no effect: it is probably a mistake.

    Settings of --config are not checked: they may be those of a run of another kind.
    """
    for name, kinds in OF_KINDS.items():
        if name in request.typed and request.setting("parallel") not in kinds:
            needed = " or ".join(f"--parallel {kind}" for kind in kinds)
            raise UserError(f"{flag(name)} has no effect without {needed}; give both, or neither")
    for name in ("lora_alpha", "lora_targets"):
        if name in request.typed and not request.setting("train").startswith("lora"):
            raise UserError(f"{flag(name)} has no effect without --train lora:RANK; give both, or neither")
    if request.overwrite and request.resume is not None:
        raise UserError("--overwrite has no effect with --resume, which continues a run; give one of them")
    if request.overwrite and not request.given.get("out"):
        raise UserError(
            "--overwrite has no effect without --out: a new folder is made; name the one to replace"
        )


MOVABLE = ("data", "val_data", "layers")


def resumed_settings(folder: str | Path, given: dict[str, Any] | None = None) -> Settings:
    """Settings of a resumed run: its own, with the given changes where allowed.

    >>> settings = gpt2.train.Settings(data="my.txt", tokenizer="char", n_embd=16, steps=3, warmup=0,
    ...     out="runs/a")
    >>> run = gpt2.train.train(settings, overwrite=True)
    >>> more = gpt2.train.resumed_settings("runs/a", {"steps": 5})
    >>> gpt2.train.train(more, resume=True).step
    5
    """
    folder, given = Path(folder), given or {}
    stored = Settings(**read_toml(folder / runs.SETTINGS, Settings))
    for field in dataclasses.fields(Settings):
        if not field.metadata["fixed"] or field.name not in given:
            continue
        now, before = given[field.name], getattr(stored, field.name)
        # text, layers and base weights may have moved; Run checks that they are the same
        if (
            now != before
            and field.name not in MOVABLE
            and not (field.name == "init" and stored.train != "all")
        ):
            raise UserError(
                f"{as_typed(field.name, now)}: the run in {folder} has {before}, and a resumed run "
                "keeps it; start a new run instead"
            )
    if stored.layers and "layers" not in given:
        check_trained_with(stored.layers)
    return dataclasses.replace(stored, **{**given, "out": str(folder)})
