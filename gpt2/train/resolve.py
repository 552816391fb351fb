"""Resolve the settings of a run: replace `auto` and `fastest`, load weights, build model and team.

Relative paths become absolute. gpt2.train.run.Run keeps the result unchanged.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

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
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.model.own import OwnFile
from gpt2.parallel.cores import ranks_from_env
from gpt2.parallel.handover import Handover
from gpt2.parallel.processes import Processes
from gpt2.parallel.team import Team
from gpt2.storage import runs
from gpt2.train import fastest
from gpt2.train.build import (
    errors_as_flags,
    make_model,
    make_optimizer,
    model_config,
    start_exactly,
    start_team,
)
from gpt2.train.cost import check_memory
from gpt2.train.kernels import VARIABLE
from gpt2.train.settings import FASTEST, OWN, Settings
from gpt2.weights import checkpoint, pretrained
from gpt2.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Resolved:
    """The resolved settings of a run, and the objects built from them.

    settings    as saved with the run, without `auto` and `fastest`
    tokenizer   of its text
    train, val  the tokens of the two parts, (count,) integers
    model, optimizer, team
    origin      the note about frozen base weights in a lasting file, which checkpoints need not hold; or None
    notes       the decisions, one line each
    fingerprint   a function that returns the fingerprint of the encoded corpus; computed on the first call
    """

    settings: Settings
    tokenizer: Tokenizer
    train: np.ndarray
    val: np.ndarray
    model: GPT2
    optimizer: AdamW
    team: Team | Processes | Handover
    origin: dict[str, str] | None
    notes: list[str]
    fingerprint: Callable[[], dict[str, int]]


def resolve(
    settings: Settings, group: Any = None, folder: Path | None = None, spawn: bool = False
) -> Resolved:
    """Resolve these settings on this machine.

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
        with_adapter(s, start), tokenizer=_recorded(s, tokenizer), data=prepared.corpus, **prepared.options
    )
    train, val = prepared.read(s.pack)
    config = model_config(s, tokenizer.vocab_size)
    check_fits(s, config)
    rows = check_parts(s, train, val, config.vocab_size if prepared.elsewhere else 0)
    s, model, choice, contender = fastest.choose(
        s, config, lambda s: make_model(config, s, start, base), spawn
    )
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
    if contender is not None:
        shares = team
        team = Handover(
            shares,
            lambda: start_exactly(shares.size, contender.settings, model, optimizer, group),
            contender.is_worth,
            contender.decided,
        )
    if s.parallel in ("shares", "processes"):  # another number of workers would sum in another order
        s = replace(s, workers=str(team.size))
    slow = [slowness(layers)] if s.sample_tokens and (layers := unread(d)) else []
    origin = base.origin() if base is not None else None
    if start is not None and start.lasting() and not d.trained.everything:
        origin = start.origin()
    notes = [*prepared.notes, *rows, *choice, *team_notes, *slow]
    return Resolved(s, tokenizer, train, val, model, optimizer, team, origin, notes, cached_fingerprint)


def weights(
    s: Settings, own: OwnFile | None, folder: Path | None
) -> tuple[Pretrained | None, Pretrained | None]:
    """(weights of --init, for a new run; frozen base weights of a resumed run), or None for each.

    Raises UserError if the run in `folder` began with another file of layers than `own`.
    """
    if folder is None:
        return pretrained.find(s.init, s.dtype, offered=own) if s.init else None, None
    if own is not None:
        check_same_file(folder / runs.LAST, s.layers, own)
    return None, base_of_run(folder, s, own)


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


def _recorded(s, words):
    """The setting `tokenizer` of a run: a name, or the absolute path that the user gave."""
    return words.name if s.init or is_name(s.tokenizer) else os.path.abspath(s.tokenizer)


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
    trained = 0  # own layers may have any number of them
    if not s.layers:
        with errors_as_flags(s):
            trained = Description(config, train=s.tuning).trained.count
    ranks, here = 0, s.batch_size
    if s.parallel == "mpi":
        ranks, in_all = ranks_from_env() or (0, 0)
        here = s.batch_size * ranks // in_all if in_all else 0
    check_memory(config, here, s.block_size, trained, ranks)


def check_same_file(path: Path, layers: str, now: OwnFile) -> None:
    """Raise UserError if a resumed run gets another file of layers than it began with."""
    own = _part(checkpoint.load_state(path), "own") if path.exists() else None
    file = _part(own, "file")
    if isinstance(file, dict) and file.get("sha256") != now.sha256:
        raise UserError(f"{path}: made with the layers of {file.get('path')}, and {layers} holds others")


def base_of_run(folder: Path, s: Settings, own: OwnFile | None) -> Pretrained | None:
    """The frozen base weights of a run, if its checkpoints do not hold them."""
    path = folder / runs.LAST
    state = checkpoint.load_state(path) if path.exists() else {}
    if not isinstance(state, dict) or "base" not in state:
        return None
    before = _part(_part(state, "settings"), "init")
    return pretrained.base_of(path, state, s.dtype, moved=s.init if s.init != before else "", offered=own)


def _part(state, name):
    """An entry of a state read from a file; None if there is none."""
    return state.get(name) if isinstance(state, dict) else None


def texts(s: Settings) -> dict[str, Any]:
    """The arguments of corpora.prepare besides corpus and tokenizer."""
    return {"val_data": s.val_data, "val_fraction": s.val_fraction, "template": s.template}


def prepare(s: Settings, words: Any, resumed: bool) -> corpora.Prepared:
    """The corpus of these settings, encoded. That of a resumed run may have moved."""
    try:
        return corpora.prepare(s.data, words or s.tokenizer, **texts(s))
    except UserError as error:
        if resumed and Path(s.data).is_absolute() and not Path(s.data).exists():
            raise UserError(f"{error.as_flag}; if it was moved, name where it is now with --data") from None
        raise
