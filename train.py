"""Train a GPT-2.

    python train.py                                   three minutes of Shakespeare
    python train.py --preset shakespeare-char-cpu     nanoGPT's recipe for a CPU, letter by letter
    python train.py --data my.txt --out runs/mine     your own text
    python train.py --resume runs/mine --steps 2000   go on where a run was left
    python train.py --preset finetune --data my.txt   from the released GPT-2; --dry-run says what it takes
    python train.py --preset llm.c                    llm.c's program for the CPU, line by line

Settings come from the defaults, then --preset, then --config FILE.toml, then the flags; the last one wins.
"""

import dataclasses
import json
import math
import os
import signal
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Nothing imported here may import NumPy: the number of its threads is set first, from --threads.
from gpt2 import parallel
from gpt2.errors import UserError
from gpt2.parallel.cores import launched_rank, local_ranks, thread_variables, threads_each
from gpt2.storage import runs
from gpt2.storage.files import write_atomically
from gpt2.storage.lock import Lock
from gpt2.train.flags import Parser, add_arguments, flag, parse, read_toml, setting, table, to_toml

# ---- Settings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run computes, and how it reports."""

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
        "random: places as nanoGPT draws them; llm.c: all in turn, shuffled as there",
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

    backward: str = setting("manual", "engine", "manual, auto, a mix such as manual,attention=auto, or whole")
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
    parallel: str = setting(
        "none", "engine", "processes: on this machine's cores; mpi: under mpiexec", choices=parallel.KINDS
    )
    workers: str = setting(
        "auto",
        "engine",
        "of --parallel processes: a number, each takes its share of the "
        "batch; auto measures, and takes the faster of threads and processes",
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


PRESETS = {
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
    # From the released weights to a text of one's own: small steps, few of them, or it forgets what it knew
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


def read_settings(argv):
    """What the command line and the files it names say: (given, resume, overwrite, dry_run).

    given maps names to values, without defaults and presets; resume is a run's folder or None.
    """
    parser = Parser(
        prog="train.py",
        description=__doc__.split("\n")[0],
        epilog=__doc__.split("\n\n")[-1],
        usage="%(prog)s [--config FILE] [--resume [RUN]] [--overwrite] [--dry-run] [--SETTING VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="go on with the run in this folder; without a folder: --out, or the newest run",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is already in --out")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    add_arguments(parser, Settings)
    given, other = parse(parser, Settings, argv)
    if other["config"]:
        given = {**read_toml(other["config"], Settings), **given}
    return given, other["resume"], other["overwrite"], other["dry_run"]


def threads_here(threads, kind):
    """Threads of this process: those of --threads, shared with the other MPI ranks of the machine."""
    return threads_each(local_ranks(), threads) if kind == "mpi" else threads


def limit_threads(threads):
    """Tell the libraries under NumPy how many threads to take. Has an effect before NumPy is imported."""
    if threads:
        os.environ.update(thread_variables(threads))


def share_out_threads(s):
    """Compiled layers bring threads of their own, which share out products too; BLAS itself keeps to one.

    OpenBLAS's threads wait by spinning: beside them a step of the CPU recipe took up to ten times as long.
    """
    if s.compile == "on":
        from gpt2.autodiff import choices, set_threads
        from gpt2.storage.download import cache_folder

        choices.remember(cache_folder())
        threads = threads_each(local_ranks() if s.parallel == "mpi" else 1, s.threads)
        try:
            set_threads(threads)
        except RuntimeError as error:
            raise UserError(f"--threads {threads}: {error}; give fewer") from None


def new_settings(given):
    """Settings of a new run: defaults, preset, and what was given."""
    from gpt2.model import GPT2Config

    preset = given.get("preset", "shakespeare")
    if preset not in PRESETS:
        raise UserError(f"--preset {preset}: expected one of {', '.join(PRESETS)}")
    shape = {}
    if preset.startswith("gpt2"):
        released = GPT2Config.preset(preset)
        shape = {name: getattr(released, name) for name in ("n_layer", "n_head", "n_embd")}
    settings = Settings(**{**shape, **PRESETS[preset], **given})
    return settings if not settings.init else of_weights(settings, weights_config(settings), given)


def weights_config(s):
    """The GPT2Config of the weights that --init names; for the released ones without having them."""
    from gpt2.weights import pretrained

    return pretrained.find_config(s.init, s.dtype)


def of_weights(s, config, given):
    """The settings with the shape that the weights of --init have."""
    shape = {
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "context": config.block_size,
    }
    for name, value in shape.items():
        if given.get(name, value) not in (value, 0):
            raise UserError(f"{flag(name)} {given[name]}: the weights {s.init} have {value}; leave it out")
    return dataclasses.replace(s, **shape)


def resumed_settings(folder, given):
    """Settings of a run that goes on: what it had, and what was given now, where that may change."""
    stored = Settings(**read_toml(folder / runs.SETTINGS, Settings))
    for field in dataclasses.fields(Settings):
        if not field.metadata["fixed"] or field.name not in given:
            continue
        now, then = given[field.name], getattr(stored, field.name)
        if now != then and not (field.name == "data" and str(Path(now).resolve()) == then):
            raise UserError(
                f"{flag(field.name)} {now}: the run in {folder} has {then}, and a resumed run "
                "keeps it; start a new run instead"
            )
    given = {name: value for name, value in given.items() if name != "data"}
    return dataclasses.replace(stored, **{**given, "out": str(folder)})


# ---- A run -------------------------------------------------------------------------------------------------


class Run:
    """A run in its folder: the model and everything that changes as it is trained.

    `begin` makes the files that gpt2.storage.runs names; `load` takes over what is there.
    """

    def __init__(self, settings, group=None, folder=None):
        """A new run; or the one in `folder`, to be loaded: its weights are not looked for where it began."""
        from gpt2.data import corpora as data
        from gpt2.data import llmc as batches_llmc
        from gpt2.data.tokens import Epochs, Loader, read_tokens
        from gpt2.optimizer import AdamW
        from gpt2.train.spikes import Spikes
        from gpt2.weights import pretrained

        self.folder = None
        start = pretrained.find(settings.init, settings.dtype) if settings.init and folder is None else None
        words = start_tokenizer(settings, start, folder)
        prepared = data.prepare(settings.data, words or settings.tokenizer)
        self.notes = prepared.notes
        self.tokenizer = prepared.tokenizer
        # The recipe that is kept names what was used, so that `auto` cannot mean something else on resume
        self.settings = s = dataclasses.replace(
            settings, data=prepared.corpus, tokenizer=prepared.tokenizer.name
        )
        self.train = read_tokens(prepared.train)
        self.val = read_tokens(prepared.val)
        config = model_config(s, self.tokenizer.vocab_size)
        for part in (self.train, self.val):
            if s.data.endswith(".bin") and int(part.max()) >= config.vocab_size:
                raise UserError(
                    f"--data {s.data}: holds token {int(part.max())}, the tokenizer "
                    f"{s.tokenizer} has 0 to {config.vocab_size - 1}"
                )
        if s.order == "llm.c":
            self.loader = batches_llmc.Loader(self.train, s.batch_size, s.block_size)
        else:
            kind = Epochs if s.order == "epochs" else Loader
            self.loader = kind(self.train, s.batch_size, s.block_size, s.seed)
        self.model = make_model(config, s, start)
        self.optimizer = AdamW(
            self.model, lr=s.lr, betas=(s.beta1, s.beta2), eps=s.eps, weight_decay=s.weight_decay
        )
        self.team = start_team(self, group or parallel.join("none"))
        self.step = 0
        self.spikes = Spikes()
        self.best = None  # lowest validation loss so far, nats per token
        self.validated = None  # the step of the last validation
        self.lock = None  # of the folder, once there is one
        self.metrics = None  # an open file, once the run begins

    def close(self):
        """Let go of the folder."""
        if self.metrics is not None:
            self.metrics.close()
        if self.lock is not None:
            self.lock.release()

    # -- what a step computes

    def train_step(self):
        """One optimizer step; returns its loss, learning rate and gradient norm."""
        from gpt2.optimizer import cosine_lr

        s = self.settings
        batches = [self.loader.next_batch() for _ in range(s.accumulate)]
        lr = cosine_lr(self.step, lr=s.lr, min_lr=s.min_lr, warmup=s.warmup, steps=s.steps)
        try:
            loss, norm = self.team.step(batches, lr, clip=s.clip or None)
        except UserError as error:  # --detect-anomaly has found what it looks for
            raise UserError(f"step {self.step + 1}: {error}") from None
        if not math.isfinite(loss):
            found = next(filter(None, (self.model.first_non_finite(*batch) for batch in batches)), None)
            raise UserError(
                f"step {self.step + 1}: the loss is {loss}; first output that is not finite: "
                f"{found}; try a lower --lr than {s.lr:g}, or a longer --warmup. "
                "--detect-anomaly names the line"
            )
        if not math.isfinite(norm):
            raise UserError(
                f"step {self.step + 1}: the gradient's norm is {norm}, the loss {loss:.4f}; "
                f"try a lower --lr than {s.lr:g}, or a longer --warmup. "
                "--detect-anomaly names the line"
            )
        self.step += 1
        return {"loss": loss, "lr": lr, "grad_norm": norm}

    def validation_loss(self):
        """Mean loss over the validation split, or over eval_batches of it, nats per token."""
        from gpt2.data import llmc as batches_llmc
        from gpt2.data.tokens import evenly

        s = self.settings
        batches = batches_llmc.validation if s.order == "llm.c" and s.eval_batches else evenly
        total, count = 0.0, 0
        for inputs, targets in batches(self.val, s.batch_size, s.block_size, s.eval_batches):
            total += self.team.loss(inputs, targets) * inputs.size
            count += inputs.size
        return total / count

    def sample(self):
        """Some text from the model as it is now, the same for the same weights."""
        from gpt2.sample import Decoder, generate
        from gpt2.train import llmc

        s = self.settings
        if s.lines == "llm.c":
            # its random numbers go on from one sample to the next, and there was one each sample_every steps
            earlier = s.sample_tokens * max(0, self.step // max(1, s.sample_every) - 1)
            tokens = llmc.generate(Decoder(self.model), self.tokenizer.start, s.sample_tokens, earlier)
            pieces = [llmc.printable(self.tokenizer.decode_bytes([token])) for token in tokens]
            return b"".join(pieces).decode(errors="replace")
        tokens = generate(
            self.model, [self.tokenizer.start], s.sample_tokens, temperature=0.8, top_k=200, seed=s.seed
        )
        return "".join(self.tokenizer.stream(tokens))

    # -- what is kept

    def take(self, folder=None, overwrite=False):
        """Lock the folder of this run, a new one where none is given, and return it. For the root's files."""

        def on_root():
            chosen = folder or runs.new(self.settings.preset, self.settings.out)
            self.lock = Lock(chosen)
            if folder is None:
                runs.clear(chosen, overwrite)
            runs.sweep(chosen)
            return chosen

        return self.team.from_root(on_root)

    def begin(self, folder):
        """Write what does not change, and open the metrics."""
        self.folder = folder
        self.settings = dataclasses.replace(self.settings, out=str(folder))
        if not self.team.root:
            return  # the files are the root's
        write_atomically(folder / runs.SETTINGS, to_toml(self.settings).encode())
        self.tokenizer.save(folder / runs.TOKENIZER)
        try:
            # Not buffered: what a full disk refuses is not written later, when the file is closed
            self.metrics = open(folder / runs.METRICS, "ab", buffering=0)
        except OSError as error:
            raise cannot_write(folder / runs.METRICS, error) from None

    def record(self, **fields):
        """Add a line to metrics.jsonl."""
        if not self.team.root:
            return
        line = json.dumps(fields).encode() + b"\n"
        try:
            while line:  # a disk that is nearly full takes a part, and refuses the next
                line = line[self.metrics.write(line) :]
        except OSError as error:
            raise cannot_write(self.folder / runs.METRICS, error) from None

    def save(self):
        """Write last.safetensors: parameters, moments, and every number that decides what comes next."""
        from gpt2.model import unflatten
        from gpt2.weights import checkpoint

        config = self.model.config
        arrays = checkpoint.model_arrays(self.model)
        gathered = self.team.moments()
        if not self.team.root:
            return
        for name, flat in zip(("m", "v"), gathered):
            moments = unflatten(flat, config)
            arrays.update({f"adamw.{name}.{tensor}": array for tensor, array in moments.items()})
        try:
            os.fsync(self.metrics.fileno())
        except OSError as error:
            raise cannot_write(self.folder / runs.METRICS, error) from None
        checkpoint.save(
            self.folder / runs.LAST,
            arrays,
            {
                **checkpoint.model_state(self.model),
                "step": self.step,
                "adamw.t": self.optimizer.t,
                "loader": self.loader.state(),
                "best": self.best,
                "validated": self.validated,
                "spikes": self.spikes.state(),
                "metrics_bytes": self.metrics.tell(),
                "corpus": self.fingerprint(),
                "settings": dataclasses.asdict(self.settings),
            },
        )

    def save_best(self):
        """Write best.safetensors: the weights alone, a third of the size."""
        from gpt2.weights import checkpoint

        if not self.team.root:
            return
        checkpoint.save(
            self.folder / runs.BEST,
            checkpoint.model_arrays(self.model),
            {**checkpoint.model_state(self.model), "step": self.step, "val_loss": self.best},
        )

    def load(self, folder):
        """Take over last.safetensors and cut metrics.jsonl back to the lines written before it."""
        from gpt2.model import unflatten
        from gpt2.weights import checkpoint

        path = folder / runs.LAST
        if not path.exists():
            raise UserError(f"{folder} has no checkpoint yet; start it anew with --overwrite")
        arrays, state = checkpoint.load(path)
        config = self.model.config
        m, v = self.team.moments()
        for prefix, flat in (("params.", self.model.flat_params), ("adamw.m.", m), ("adamw.v.", v)):
            checkpoint.check_shapes(path, arrays, config, prefix)
            checkpoint.fill(unflatten(flat, config), arrays, prefix)
        self.team.put_moments(m, v)
        try:
            corpus, self.best, self.validated = state["corpus"], state["best"], state["validated"]
            self.step, self.optimizer.t = int(state["step"]), int(state["adamw.t"])
            self.loader.load_state(state["loader"])
            if "spikes" in state:  # a run of an earlier version kept none
                self.spikes.load_state(state["spikes"])
            kept = int(state["metrics_bytes"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(f"{path}: holds no training state, expected a checkpoint of train.py") from None
        if corpus != self.fingerprint():
            raise UserError(
                f"{self.settings.data}: text or tokens have changed since {path} was "
                "written; a resumed run needs the same ones"
            )
        metrics = folder / runs.METRICS
        if self.team.root and metrics.exists() and metrics.stat().st_size > kept:
            try:
                os.truncate(metrics, kept)
            except OSError as error:
                raise cannot_write(metrics, error) from None

    def fingerprint(self):
        """Tells this corpus, as encoded, from another."""
        import zlib

        return {"train": len(self.train), "val": len(self.val), "crc32": zlib.crc32(self.train)}


def cannot_write(path, error):
    """The UserError for a file of the run that the disk refuses."""
    saved = path.with_name(runs.LAST).exists()
    return UserError(
        f"cannot write {path}: {error.strerror or error}"
        + (
            "; the last checkpoint is untouched. Once the cause is put right go on with: "
            f"python train.py --resume {path.parent}"
            if saved
            else ""
        )
    )


def start_tokenizer(s, start, folder):
    """The Tokenizer that the weights of --init speak, or None where --tokenizer and the text decide.

    start    what --init names, for a new run
    folder   of a run that is resumed: it has kept its tokenizer
    """
    from gpt2.data import tokenizer

    if not s.init:
        return None
    if start is None:
        return tokenizer.load(folder / runs.TOKENIZER)
    if start.words is None and s.tokenizer != "auto":
        return None
    words = start.tokenizer()
    if s.tokenizer not in ("auto", words.name):
        raise UserError(
            f"--tokenizer {s.tokenizer}: the weights {s.init} were trained with {words.name}; leave it out"
        )
    return words


def model_config(s, vocab_size):
    """The GPT2Config of these settings."""
    from gpt2.model import GPT2Config

    context = s.context or s.block_size
    if s.block_size > context:
        raise UserError(
            f"--block-size {s.block_size}: the model reads at most {context} tokens "
            + (f"({s.init})" if s.init else "(--context)")
        )
    return GPT2Config(vocab_size, context, s.n_layer, s.n_head, s.n_embd, s.dtype)


def make_model(config, s, start=None):
    """The GPT2 of these settings, with the weights of `start`, a Pretrained, if there is one.

    A backward that is not known or cannot be had is one line.
    """
    from gpt2.model import GPT2

    if start is not None and start.config.vocab_size != config.vocab_size:
        raise UserError(
            f"--init {s.init}: has a vocabulary of {start.config.vocab_size} tokens, "
            f"{s.tokenizer} one of {config.vocab_size}; they do not belong together"
        )
    if start is not None and start.config != config:
        raise UserError(f"--init {s.init}: {start.path} holds {start.config}, expected {config}")
    if start is not None:
        start.check()
    with errors_of_options(s):
        model = GPT2(config, seed=s.seed if start is None else None, **model_options(s))
    if start is not None:
        start.fill(model.params)
    return model


@contextmanager
def errors_of_options(s):
    """Names the flag where a model cannot be had with model_options(s)."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        text = str(error).removeprefix(f"backward {s.backward!r}: ")
        flag = "--" if text.startswith("elementwise: ") else f"--backward {s.backward}: "
        raise UserError(flag + text) from None


def model_options(s):
    """What GPT2 takes besides its shape and seed, for this process and its workers."""
    import inspect

    from gpt2.model import GPT2

    known = inspect.signature(GPT2).parameters
    options = {"compile": s.compile == "on", "elementwise": s.elementwise}
    return {
        "backward": s.backward,
        **{name: value for name, value in options.items() if name in known},
        **({"detect_anomaly": True} if s.detect_anomaly else {}),
    }


def start_team(run, group):
    """Whoever --parallel says trains the run's model."""
    s = run.settings
    workers = number_of_workers(run) if s.parallel == "processes" else 1
    if s.parallel == "processes":
        each = threads_each(workers, s.threads)
        run.notes.append(f"{workers} process{'es' * (workers > 1)} with {each} thread{'s' * (each > 1)} each")
    elif group.size > 1:
        run.notes.append(f"{group.size} MPI processes")
        crc = run.fingerprint()["crc32"]
        if group.highest(crc) != -group.highest(-crc):
            raise UserError("--parallel mpi: the processes read different data; all need the same files")
    return parallel.start(
        s.parallel,
        run.model,
        run.optimizer,
        group,
        workers=workers,
        batch_size=s.batch_size,
        threads=s.threads,
        shard=s.shard,
        timeout=s.worker_timeout,
        options=model_options(s),
    )


def number_of_workers(run):
    """--workers as a number; auto is what turns out to be the fastest here."""
    from gpt2.parallel import auto

    s = run.settings
    if s.workers == "auto":
        best, times = auto.choose(
            run.model.config,
            s.batch_size,
            s.block_size,
            threads=s.threads,
            timeout=s.worker_timeout,
            options=model_options(s),
        )
        run.notes.append(auto.as_text(times, best, s.threads))
        return best
    if not s.workers.isdecimal() or int(s.workers) < 1:
        raise UserError(f"--workers {s.workers}: expected a number from 1, or auto")
    return int(s.workers)


# ---- The loop ----------------------------------------------------------------------------------------------


class Interrupts:
    """SIGINT and SIGTERM as a wish to stop, noticed between two steps; a second one stops at once."""

    def __init__(self):
        self.received = None
        self.before = {}

    def __enter__(self):
        for name in ("SIGINT", "SIGTERM", "SIGBREAK"):  # the last one is Windows' Ctrl-Break
            if hasattr(signal, name):
                number = getattr(signal, name)
                self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number, frame):
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def loop(run, progress, interrupts):
    """Train until the last step, or until a signal. Returns whether the last step was reached."""
    s = run.settings
    while True:
        last = run.step >= s.steps
        if run.validated != run.step and (last or due(run.step, s.eval_every)):
            validate(run, progress)
        stop = int(run.team.highest(interrupts.received or 0))  # a signal to one rank is one to all
        if stop:
            interrupts.received = stop
        if last and s.lines == "own" and s.sample_tokens:
            show_sample(run, progress, "---- sample " + "-" * 48)
        if last or stop:
            run.save()  # after all that is recorded: what comes later than a save is cut off on resuming
            return last
        if run.step > 0 and due(run.step, s.sample_every) and s.sample_tokens:
            show_sample(run, progress, f"---- sample at step {run.step} " + "-" * 40)
        begin = time.perf_counter()
        metrics = run.train_step()
        seconds = time.perf_counter() - begin
        rates = progress.step(run.step, seconds, metrics["loss"])
        usual = run.spikes.of(metrics["loss"])
        if usual is not None:
            metrics["spike_from"] = usual
            if s.lines == "own":
                progress.line(
                    f"step {run.step}: the loss jumped to {metrics['loss']:.4f}, from {usual:.4f} "
                    f"in the steps before; gradient norm {metrics['grad_norm']:.3g}"
                )
        run.record(step=run.step, **metrics, seconds=round(seconds, 6), **rates)
        if due(run.step, s.save_every) and run.step < s.steps:
            run.save()


def due(step, every):
    return every > 0 and step % every == 0


def validate(run, progress):
    """Measure the validation loss, tell it, and keep the weights if they are the best so far."""
    loss = run.validation_loss()
    if not math.isfinite(loss):
        raise UserError(
            f"step {run.step}: the validation loss is {loss}; the weights of the last checkpoint "
            "are untouched. Resume from it with a lower --lr"
        )
    better = run.best is None or loss < run.best
    run.validated = run.step
    run.record(step=run.step, val_loss=loss)
    if run.settings.lines == "llm.c":
        tell_as_llmc(run, progress, loss)
        if better and run.step:
            run.best = loss
            run.save_best()
    elif not better or run.step == 0:  # untrained weights are no one's best
        progress.line(f"step {run.step}: validation loss {loss:.4f}")
    else:
        progress.line(f"step {run.step}: validation loss {loss:.4f}, the best so far")
        run.best = loss
        run.save_best()


def tell_as_llmc(run, progress, loss):
    """A validation in llm.c's words. It has none after the last step."""
    from gpt2.train import llmc

    if due(run.step, run.settings.eval_every):
        progress.line(llmc.val_line(loss))
    else:
        print(f"validation after the last step: {loss:.6f}", file=sys.stderr)


def show_sample(run, progress, heading):
    """Tell and record some text from the model as it is now."""
    if not run.team.root:
        return
    text = run.sample()
    run.record(step=run.step, sample=text)
    if run.settings.lines == "llm.c":
        progress.line(f"generating:\n---\n{text}\n---")
        return
    progress.line(heading)
    progress.line(text)
    progress.line("-" * 60)


# ---- The program -------------------------------------------------------------------------------------------


def describe(run, peak):
    """The first lines of a run: its settings, and what they come to."""
    from gpt2.train import llmc
    from gpt2.train.flops import training_flops

    s = run.settings
    aside = sys.stderr if s.lines == "llm.c" else sys.stdout
    print(table(s), file=aside)
    for note in run.notes:
        print(f"note: {note}", file=aside)
    flops = training_flops(run.model.config, s.batch_size, s.block_size) * s.accumulate
    print(
        f"{run.model.num_parameters:,} parameters; {len(run.train):,} training and {len(run.val):,} "
        "validation tokens",
        file=aside,
    )
    print(
        f"{flops / 1e9:.2f} GFLOP a step; peak here: {peak / 1e9:.0f} GFLOP/s in matrix products ({s.dtype})",
        flush=True,
        file=aside,
    )
    if s.lines == "llm.c":
        config = run.model.config
        print(
            "\n".join(
                [
                    *llmc.model_lines(config),
                    *llmc.data_lines(run.train, run.val, s.batch_size, s.block_size),
                    llmc.activations_line(config, s.batch_size, s.block_size),
                ]
            ),
            flush=True,
        )
    return flops


def finish(run):
    """The last lines of a run: where things are, and what to try next."""
    s = run.settings
    if s.lines == "llm.c":
        print(f"done: {run.step} steps, all in {run.folder}", file=sys.stderr)
        return
    print(f"done: {run.step} steps, best validation loss {run.best:.4f} nats per token, all in {run.folder}")
    print("what to try next:")
    print(f'  more text           python -m gpt2.sample --run {run.folder} --prompt "O "')
    print(f"  train on            python train.py --resume {run.folder} --steps {2 * s.steps}")
    if s.preset == "shakespeare-char-cpu":
        print("  a larger model      python train.py --preset shakespeare-char-cpu --n-embd 192 --n-head 6")
    elif s.data == "tinyshakespeare":
        print("  letter by letter    python train.py --preset shakespeare-char-cpu")
    print("  your own text       python train.py --data path/to/file.txt")


def program(argv):
    """Read the settings, train, report. Returns the exit status."""
    given, resume, overwrite, dry = read_settings(argv)
    if resume is None:
        limit_threads(threads_here(given.get("threads", 0), given.get("parallel", "none")))
        settings = new_settings(given)
        folder = None
    else:
        if resume and given.get("out", resume) != resume:
            raise UserError(f"--out {given['out']}: a resumed run stays in its folder, {resume}")
        folder = runs.existing(resume or given.get("out"))
        settings = resumed_settings(folder, given)
        limit_threads(threads_here(settings.threads, settings.parallel))
    from gpt2.train.flops import matmul_peak

    peak = None if dry else matmul_peak(settings.dtype)  # with BLAS' own threads, before they are taken away
    share_out_threads(settings)
    if dry:
        return dry_run(settings)
    with parallel.join(settings.parallel) as group:
        run = Run(settings, group, folder)
        with closing(run), run.team:
            return train(run, folder, overwrite, peak)


def dry_run(s):
    """Say what a run with these settings would take. Writes no folder and looks for no weights."""
    from gpt2.data import corpora as data
    from gpt2.train import cost

    V = weights_config(s).vocab_size if s.init else data.prepare(s.data, s.tokenizer).tokenizer.vocab_size
    config = model_config(s, V)
    print(table(s))
    with errors_of_options(s):
        what = cost.estimate(config, s.batch_size, s.block_size, s.accumulate, **model_options(s))
    print("\n".join(cost.lines(what, s.steps, cost.available_memory())))
    return 0


def train(run, folder, overwrite, peak):
    """Train a run that was made: from the start, or where its folder is given from its checkpoint on.

    peak    operations a second that this machine can do, as gpt2.train.flops measures them
    """
    from gpt2.train import llmc
    from gpt2.train.progress import Progress

    settings = run.settings
    if folder is None:
        run.begin(run.take(overwrite=overwrite))
    else:
        run.take(folder)
        run.load(folder)
        if run.step >= settings.steps:
            raise UserError(f"{folder} has done its {run.step} steps; go on with --steps {2 * run.step}")
        print(f"going on with {folder} at step {run.step}")
        run.begin(folder)
    flops = describe(run, peak)
    s = run.settings
    tokens = s.batch_size * s.block_size * s.accumulate
    if s.lines == "llm.c":
        progress = llmc.Progress(tokens, flops)
    else:
        progress = Progress(s.steps, run.step, every=s.log_every, flops=flops, peak=peak, tokens=tokens)
    try:
        with Interrupts() as interrupts:
            done = loop(run, progress, interrupts)
    except parallel.WorkerError as error:
        saved = (run.folder / runs.LAST).exists()
        raise parallel.WorkerError(
            f"{error}\n"
            + (
                f"the last checkpoint is in place; go on from it with: python train.py --resume {run.folder}"
                if saved
                else "no checkpoint had been written yet"
            )
        ) from None
    finally:
        progress.close()
    if not done:
        print(f"stopped and saved at step {run.step}; go on with: python train.py --resume {run.folder}")
        return 128 + interrupts.received
    finish(run)
    return 0


def main(argv=None):
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # '?' where a console lacks a character
    try:
        return program(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        if launched_rank() == 0:  # of an MPI job, the first one speaks for all
            print(f"error: {error}", file=sys.stderr)
        return 2
    except parallel.WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped at once; what was saved before is in place", file=sys.stderr)
        return 130
    except MemoryError as error:
        print(
            f"error: not enough memory ({error}); take a smaller model or batch, --dry-run says what a run "
            "takes",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
