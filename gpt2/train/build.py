"""Build the parts of a run from its settings: the model, the optimizer, and the team that trains it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpt2 import parallel
from gpt2.autodiff import get_threads
from gpt2.errors import UserError
from gpt2.hints import quoted, typed
from gpt2.model.config import GPT2Config
from gpt2.model.gpt2 import GPT2
from gpt2.model.muon import Muon
from gpt2.model.optimizer import AdamW
from gpt2.model.own import OwnFile
from gpt2.model.parameters import initialise, unflatten
from gpt2.model.tuning import Tuning
from gpt2.parallel import auto
from gpt2.parallel.cores import launched_ranks, threads_each
from gpt2.parallel.memory import TooLittleMemory
from gpt2.train.settings import AS_IN_CONFIG, Settings
from gpt2.weights.pretrained import Pretrained


def model_config(s: Settings, vocab_size: int) -> GPT2Config:
    """The GPT2Config of these settings."""
    context = s.context or s.block_size
    if s.block_size > context:
        raise UserError(
            f"--block-size {s.block_size}: the model reads at most {context} tokens "
            + (f"({s.init}); give --block-size {context}" if s.init else "(--context)")
        )
    if s.n_embd % s.n_head:
        raise UserError(
            f"--n-embd {s.n_embd} is not divisible by --n-head {s.n_head}; heads share the channels equally"
        )
    return GPT2Config(
        vocab_size,
        context,
        dtype=s.dtype,
        n_inner=s.n_inner or None,
        activation_function=s.activation,
        tie_word_embeddings=not s.untied,
        **{name: getattr(s, name) for name in AS_IN_CONFIG},
    )


def make_model(
    config: GPT2Config, s: Settings, start: Pretrained | None = None, base: Pretrained | None = None
) -> GPT2:
    """The GPT2 of these settings, with the weights of `start` if given.

    base   for a resumed run: the frozen base weights, if its checkpoints do not hold them

    Raises UserError for an unknown or impossible backward.
    """
    if start is not None and start.config.vocab_size != config.vocab_size:
        raise UserError(
            f"--init {s.init}: has a vocabulary of {start.config.vocab_size} tokens, "
            f"{s.tokenizer} one of {config.vocab_size}; they do not belong together"
        )
    if start is not None and start.config != config:
        raise UserError(f"--init {s.init}: {start.path} holds {start.config}, expected {config}")
    if start is not None:
        start.check()
    with backward_errors(s):
        seed = s.seed if start is None and base is None else None
        model = GPT2(config, seed=seed, **model_options(s))
    check_layers(model, s, start)
    if start is not None:
        start.into(model)
        shapes = dict(start.description.shapes)  # new adapters are initialised
        new = {name for name in model.params if name not in shapes}
        initialise(model.params, model.description, s.seed, new)
    if base is not None:
        base.into(model)
    return model


def check_layers(model: GPT2, s: Settings, start: Pretrained | None) -> None:
    """Raise UserError if the weights or the log format do not fit a model with own layers."""
    d = model.description
    if s.lines == "llm.c" and not d.standard:
        raise UserError(
            f"--lines llm.c: only for GPT-2 as it was released, and this model is another: {d.summary()}"
        )
    if s.lines == "llm.c" and s.sample_every and s.sample_tokens > d.config.block_size:
        most = d.config.block_size
        raise UserError(
            f"--sample-tokens {s.sample_tokens}: the model reads at most {most} tokens, and llm.c's samples "
            f"end there; give --sample-tokens {most}"
        )
    if start is None:
        return
    before = start.description
    if before.lora is not None and before.lora != d.lora:
        raise UserError(
            f"--init {s.init}: has adapters, {before.tuning.summary()}; go on with them (--train adapter), "
            f"or merge them first: {typed(f'gpt2 convert {quoted(s.init)} merged --merge')}"
        )
    if not before.gpt2 and d.gpt2:
        raise UserError(
            f"--init {s.init}: made with own layers ({before.summary()}); give them: --layers FILE.py"
        )
    new = () if before.lora is not None else d.adapters
    if before.shapes != tuple((name, shape) for name, shape in d.shapes if name not in new):
        other = next(name for name, _ in {*before.shapes} ^ {*d.shapes})
        raise UserError(
            f"--init {s.init}: with own layers ({d.summary() or before.summary()}) the model has other "
            f"tensors, {other!r} for one; start from nothing, or from a run with the same layers"
        )


@contextmanager
def backward_errors(s: Settings) -> Iterator[None]:
    """Convert the error of a --backward that the compiler cannot derive to a UserError."""
    try:
        yield
    except NotImplementedError as error:
        raise UserError(f"--backward {s.backward}: {error}") from None


def model_options(s: Settings) -> dict[str, Any]:
    """GPT2's keyword arguments besides its shape and seed, for this process and its workers."""
    return {
        "backward": s.backward,
        "compile": s.compile == "on",
        "elementwise": s.elementwise,
        "detect_anomaly": s.detect_anomaly,
        **({"layers": OwnFile.at(s.layers)} if s.layers else {}),
        **({} if s.tuning == Tuning() else {"train": s.tuning}),
    }


def make_optimizer(model: GPT2, s: Settings) -> AdamW:
    """The AdamW or Muon of these settings."""
    shared: dict[str, Any] = {"betas": (s.beta1, s.beta2), "eps": s.eps, "weight_decay": s.weight_decay}
    if s.optimizer == "muon":
        if s.lr == 0.0:
            raise UserError(
                "--lr is 0, expected more with --optimizer muon, whose rate follows lr's schedule"
            )
        return Muon(model, lr=s.muon_lr, momentum=s.muon_momentum, adamw_lr=s.lr, **shared)
    return AdamW(model, lr=s.lr, **shared)


def take_moments(start: Pretrained | None, model: GPT2, optimizer: AdamW, team: Any) -> list[str]:
    """Give AdamW the moments in a nanoGPT checkpoint, if all of the model is trained; returns a note."""
    d = model.description
    fits = start is not None and optimizer.name == "adamw" and d.trained.everything
    if not fits or (found := start.moments()) is None:
        return []
    optimizer.t, *moments = found
    flat = [np.empty(d.trained.count, d.config.dtype) for _ in moments]
    for array, tensors in zip(flat, moments, strict=True):
        for name, view in unflatten(array, d).items():
            view[...] = tensors[name]
    team.put_moments(*flat)
    return [f"AdamW goes on with the moments in {start.path}, after {optimizer.t} steps"]


def start_team(
    s: Settings, model: GPT2, optimizer: AdamW, group: Any, start: Pretrained | None = None
) -> tuple[Any, list[str]]:
    """Start the team for --parallel; returns it, and notes for the log.

    group   result of gpt2.parallel.join
    start   the weights of --init, whose moments AdamW takes if they have some
    """
    notes, workers = [], 1
    if s.parallel != "mpi" and launched_ranks() > 1:
        notes.append(
            f"this is one of {launched_ranks()} processes of mpiexec, each with a separate run; "
            "--parallel mpi makes them one"
        )
    if s.workers != "auto" and s.parallel in ("processes", "shares"):
        if not s.workers.isdecimal() or int(s.workers) < 1:
            raise UserError(f"--workers {s.workers}: expected a number from 1, or auto")
        workers = int(s.workers)
    elif s.parallel == "shares":
        workers = auto.candidates(s.batch_size, get_threads())[-1]
    elif s.parallel == "processes":
        engine: Any = {"threads": s.threads, "timeout": s.worker_timeout, "options": model_options(s)}
        workers, times = auto.choose(model.config, s.batch_size, s.block_size, **engine)
        notes.append(auto.as_text(times, workers, s.threads))
    while True:
        try:
            team = start_exactly(workers, s, model, optimizer, group)
            break
        except TooLittleMemory as error:
            notes.append(f"{workers} processes: {str(error).split(';')[0]}; taking fewer")
            workers = max(n for n in range(1, workers) if s.batch_size % n == 0)
    if s.parallel == "processes":
        each = threads_each(workers, s.threads)
        notes.append(f"{workers} process{'es' * (workers > 1)} with {each} thread{'s' * (each > 1)} each")
    elif s.parallel == "shares":
        notes.append(f"{workers} share{'s' * (workers > 1)} of each batch, on {get_threads()} threads")
    elif group.size > 1:
        notes.append(f"{group.size} MPI processes")
    return team, notes + take_moments(start, model, optimizer, team)


def start_exactly(workers: int, s: Settings, model: GPT2, optimizer: AdamW, group: Any) -> Any:
    """Start the team for --parallel with so many workers. Raises TooLittleMemory if they do not fit."""
    return parallel.start(
        s.parallel,
        model,
        optimizer,
        group,
        workers=workers,
        batch_size=s.batch_size,
        threads=s.threads,
        shard=s.shard,
        timeout=s.worker_timeout,
        options=model_options(s),
    )
