"""Resolve the settings of a run: replace `auto` and `fastest`, load weights, build model and team.

Relative paths become absolute. The Run keeps the result unchanged.
"""

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt2 import parallel
from gpt2.autodiff import blas_kernels
from gpt2.data import corpora, stored
from gpt2.data.conversations import Examples
from gpt2.data.fingerprint import as_number, fingerprint
from gpt2.data.orders import ORDERS
from gpt2.data.tokenizer import Tokenizer, is_name
from gpt2.data.tokens import largest
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.model.decoder import slowness, unread
from gpt2.model.description import Description
from gpt2.model.own import OwnFile
from gpt2.parallel.cores import ranks_from_env
from gpt2.storage import runs
from gpt2.train import fastest
from gpt2.train.build import make_model, make_optimizer, model_config, start_team
from gpt2.train.cost import check_memory
from gpt2.train.kernels import VARIABLE
from gpt2.train.run import Run
from gpt2.train.settings import FASTEST, OWN, Settings
from gpt2.weights import checkpoint, pretrained
from gpt2.weights.pretrained import Pretrained


def resolve(settings: Settings, group: Any = None, folder: Path | None = None, spawn: bool = False) -> Run:
    """The Run of these settings, resolved on this machine, before its first step.

    group   the MPI processes, from gpt2.parallel.join
    folder  of a resumed run, whose weights are in its checkpoint rather than --init
    spawn   whether processes may be started for timing

    Raises UserError for a setting that is not possible here.
    """
    s = with_kernels(settings)
    own = OwnFile.at(s.layers) if s.layers else None
    start, base = weights(s, own, folder)
    prepared = prepare(s, start_tokenizer(s, start, folder), resumed=folder is not None)
    tokenizer = prepared.tokenizer
    s = replace(
        with_adapter(s, start),
        tokenizer=tokenizer.name if s.init or is_name(s.tokenizer) else os.path.abspath(s.tokenizer),
        data=prepared.corpus,
        **prepared.options,
    )
    train, val = prepared.read(s.pack)
    config = model_config(s, tokenizer.vocab_size)
    check_fits(s, config)
    rows = check_parts(s, train, val, config.vocab_size if prepared.elsewhere else 0)
    s, model, choice = fastest.choose(s, config, lambda s: make_model(config, s, start, base), spawn)
    d = model.description
    model.use_tokenizer(lambda: tokenizer)
    if d.file is not None:
        s = replace(s, layers=d.file.path)
    optimizer = make_optimizer(model, s)
    group = group or parallel.join("none")
    cached_fingerprint = functools.cache(lambda: fingerprint(train, val, tokenizer, prepared.files))
    if group.size > 1:
        mine = as_number(cached_fingerprint())
        if group.highest(mine) != -group.highest(-mine):
            raise UserError("--parallel mpi: the processes read different data; all need the same files")
    team, team_notes = start_team(s, model, optimizer, group, start)
    if s.parallel in ("shares", "processes"):  # another number of workers would sum in another order
        s = replace(s, workers=str(team.size))
    slow = [slowness(layers)] if s.sample_tokens and (layers := unread(d)) else []
    origin = base.origin() if base is not None else None
    if start is not None and start.lasting() and not d.trained.everything:
        origin = start.origin()
    notes = [*prepared.notes, *rows, *choice, *team_notes, *slow]
    return Run(s, tokenizer, train, val, model, optimizer, team, origin, notes, cached_fingerprint)


def weights(
    s: Settings, own: OwnFile | None, folder: Path | None
) -> tuple[Pretrained | None, Pretrained | None]:
    """(weights of --init, for a new run; frozen base weights of a resumed run whose checkpoints do not hold
    them), or None for each.

    Raises UserError if the run in `folder` began with another file of layers than `own`.
    """
    if folder is None:
        return pretrained.find(s.init, s.dtype, offered=own) if s.init else None, None
    path = folder / runs.LAST
    state = checkpoint.load_state(path) if path.exists() else {}
    file = _part(_part(state, "own"), "file")
    if own is not None and isinstance(file, dict) and file.get("sha256") != own.sha256:
        raise UserError(f"{path}: made with the layers of {file.get('path')}, and {s.layers} holds others")
    if _part(state, "base") is None:
        return None, None
    before = _part(_part(state, "settings"), "init")
    return None, pretrained.base_of(
        path, state, s.dtype, moved=s.init if s.init != before else "", offered=own
    )


def _part(state, name):
    """An entry of a state read from a file; None if there is none."""
    return state.get(name) if isinstance(state, dict) else None


def with_adapter(s: Settings, start: Pretrained | None) -> Settings:
    """The settings with the adapter of --init, if they continue with it."""
    before = None if start is None else start.description.tuning
    if before is None or before.lora is None:
        if s.tuning.kind == "adapter":
            raise UserError("--train adapter: --init names no adapter, whose training would go on")
        return s
    if s.tuning.kind != "adapter" and s.tuning.lora != before.lora:
        return s  # which check_layers refuses
    targets, adapter = before.lora_targets, before.adapter
    return replace(s, train=before.train, lora_alpha=before.lora_alpha, lora_targets=targets, adapter=adapter)


def check_parts(s: Settings, train: Any, val: Any, vocab_size: int) -> list[str]:
    """Raise UserError if token files from elsewhere hold tokens above the tokenizer's `vocab_size`, which is
    0 for the program's own, or if a part is too short. Returns notes about conversations that are too long.

    A run that validates only at its end would notice that when it is to be saved, and one with processes
    when they have been started.
    """
    for part in (train, val):
        if vocab_size and (most := largest(part)) >= vocab_size:
            raise UserError(
                f"--data {s.data}: holds token {most}, the tokenizer {s.tokenizer} has 0 to {vocab_size - 1}"
            )

    order = ORDERS[s.order]
    order.loader(train, s.batch_size, s.block_size, s.seed)
    next(iter(order.validation(val, s.batch_size, s.block_size, s.eval_batches)))
    return train.summary(s.block_size) if isinstance(train, Examples) else []


def with_kernels(s: Settings) -> Settings:
    """The settings with the kernels that BLAS has loaded. Raises UserError if they name others."""
    core, named = blas_kernels(), os.environ.get(VARIABLE, "")
    from_env = core if core and named.lower() == core.lower() else ""  # those of the environment
    if s.kernels == FASTEST:
        return replace(s, kernels=from_env or OWN)
    if s.kernels == OWN and from_env:
        raise UserError(
            f"--kernels own: {VARIABLE} made OpenBLAS load those for {core}; unset it before Python "
            f"starts, or use them with --kernels {core}: the last digits will differ"
        )
    if s.kernels != OWN and s.kernels.lower() != core.lower():
        loaded = f"OpenBLAS has loaded those for {core}" if core else "NumPy has another BLAS than OpenBLAS"
        raise UserError(
            f"--kernels {s.kernels}: {loaded}; set {VARIABLE}={s.kernels} before Python starts, if this "
            "processor supports them, or use --kernels own: the last digits will differ"
        )
    return s


def start_tokenizer(s: Settings, start: Pretrained | None, folder: Path | None) -> Tokenizer | None:
    """The Tokenizer of the weights of --init, or None if --tokenizer and the text decide.

    start    the weights of --init, for a new run
    folder   of a resumed run, which has its tokenizer
    """
    if not s.init and (folder is None or is_name(s.tokenizer)):
        return None
    if start is None:
        return stored.load(folder / runs.TOKENIZER)
    if start.words is None and s.tokenizer != "auto":
        return None
    own = start.tokenizer()
    if s.tokenizer not in ("auto", own.name):
        raise UserError(
            f"--tokenizer {s.tokenizer}: the weights {s.init} were trained with {own.name}; leave it out"
        )
    return own


def check_fits(s: Settings, config: GPT2Config) -> None:
    """Raise UserError if a step of these settings does not fit in memory."""
    # own layers may have any number of parameters
    trained = 0 if s.layers else Description(config, train=s.tuning).trained.count
    ranks, here = 0, s.batch_size
    if s.parallel == "mpi":
        ranks, in_all = ranks_from_env() or (0, 0)
        here = s.batch_size * ranks // in_all if in_all else 0
    check_memory(config, here, s.block_size, trained, ranks)


def prepare(s: Settings, words: Any, resumed: bool) -> corpora.Prepared:
    """The corpus of these settings, encoded. That of a resumed run may have moved."""
    try:
        return corpora.prepare(
            s.data,
            words or s.tokenizer,
            val_data=s.val_data,
            val_fraction=s.val_fraction,
            template=s.template,
        )
    except UserError as error:
        if resumed and Path(s.data).is_absolute() and not Path(s.data).exists():
            raise UserError(f"{error.as_flag}; if it was moved, name where it is now with --data") from None
        raise
