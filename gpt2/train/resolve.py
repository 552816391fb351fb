"""Turns the settings of a run into what it trains with: whatever was left open is decided here, once.

`auto` and `fastest` become what they came to, a path that may be relative the place of the file, and weights
that are named the arrays that they hold. gpt2.train.run.Run keeps the result and changes none of it.
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
from gpt2.data import corpora, tokenizer
from gpt2.data.fingerprint import as_number, fingerprint
from gpt2.data.tokenizer import Tokenizer
from gpt2.data.tokens import read_tokens
from gpt2.errors import UserError
from gpt2.model.config import GPT2Config
from gpt2.model.decoder import slowness, unread
from gpt2.model.description import Description
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW
from gpt2.model.own import OwnFile
from gpt2.parallel.cores import ranks_from_env
from gpt2.parallel.handover import Handover
from gpt2.storage import runs
from gpt2.train import fastest
from gpt2.train.build import (
    errors_as_flags,
    make_model,
    make_optimizer,
    model_config,
    start_processes,
    start_team,
)
from gpt2.train.cost import check_memory
from gpt2.train.kernels import VARIABLE
from gpt2.train.settings import FASTEST, OWN, Settings
from gpt2.weights import checkpoint, pretrained
from gpt2.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Resolved:
    """What a run trains with.

    settings    as they are kept with the run, nothing left open
    tokenizer   of its text
    train, val  the tokens of the two parts, (count,) integers
    model, optimizer, team
    origin      where the weights below adapters lie for good, if checkpoints need not hold them
    notes       what was decided, one line each
    fingerprint   a function that tells this corpus, as encoded, from another; computed at its first call
    """

    settings: Settings
    tokenizer: Tokenizer
    train: np.ndarray
    val: np.ndarray
    model: GPT2
    optimizer: AdamW
    team: Any
    origin: Any
    notes: list[str]
    fingerprint: Callable[[], dict[str, int]]


def resolve(
    settings: Settings, group: Any = None, folder: Path | None = None, spawn: bool = False
) -> Resolved:
    """What these settings come to on this machine.

    group   the MPI processes, as gpt2.parallel.join gives them
    folder  of a run that goes on: its weights are not looked for where it began
    spawn   whether processes may be started to see if they are faster

    Raises UserError for a setting that cannot be had here.
    """
    s = with_kernels(settings)
    own = OwnFile.at(s.layers) if s.layers else None
    start, base = weights(s, own, folder)
    prepared = prepare(s, start_tokenizer(s, start, folder), resumed=folder is not None)
    words = prepared.tokenizer
    s = replace(s, data=prepared.corpus, tokenizer=words.name)
    train, val = read_tokens(prepared.train), read_tokens(prepared.val)
    config = model_config(s, words.vocab_size)
    check_tokens(s, (train, val), config.vocab_size)
    check_fits(s, config)
    s, model, choice, contender = fastest.choose(
        s, config, lambda s: make_model(config, s, start, base), spawn
    )
    d = model.description
    model.use_tokenizer(lambda: words)
    if d.file is not None:
        s = replace(s, layers=d.file.path)
    optimizer = make_optimizer(model, s)
    group = group or parallel.join("none")
    found = functools.cache(lambda: fingerprint(train, val, words))
    team, team_notes = start_team(s, model, optimizer, group, lambda: as_number(found()))
    if contender is not None:
        team = Handover(
            team,
            lambda: start_processes(contender.settings, model, optimizer, group)[0],
            contender.is_worth,
            contender.decided,
        )
    if s.parallel in ("shares", "processes"):  # another number of workers would add up in another order
        s = replace(s, workers=str(team.size))
    slow = [slowness(layers)] if s.sample_tokens and (layers := unread(d)) else []
    origin = base.origin() if base is not None else None
    if start is not None and start.lasting() and not d.trained.everything:
        origin = start.origin()
    notes = [*prepared.notes, *choice, *team_notes, *slow]
    return Resolved(s, words, train, val, model, optimizer, team, origin, notes, found)


def weights(
    s: Settings, own: OwnFile | None, folder: Path | None
) -> tuple[Pretrained | None, Pretrained | None]:
    """(those of --init, for a new run; those below what a resumed run has trained), or None.

    Raises UserError where the run in `folder` was begun with another file of layers than `own`.
    """
    if folder is None:
        return pretrained.find(s.init, s.dtype, offered=own) if s.init else None, None
    if own is not None:
        check_same_file(folder / runs.LAST, s.layers, own)
    return None, base_of_run(folder, s, own)


def check_tokens(s: Settings, parts: tuple[np.ndarray, ...], vocab_size: int) -> None:
    """Raise UserError where given token files hold tokens that the tokenizer does not have."""
    for part in parts:
        if s.data.endswith(".bin") and int(part.max()) >= vocab_size:
            raise UserError(
                f"--data {s.data}: holds token {int(part.max())}, the tokenizer "
                f"{s.tokenizer} has 0 to {vocab_size - 1}"
            )


def with_kernels(s: Settings) -> Settings:
    """The settings with the kernels that BLAS has loaded. Raises UserError where they name others."""
    core, named = blas_kernels(), os.environ.get(VARIABLE, "")
    given = core if core and named.lower() == core.lower() else ""  # those that the environment names
    if s.kernels == FASTEST:
        return replace(s, kernels=given or OWN)
    if s.kernels == OWN and given:
        raise UserError(
            f"--kernels own: {VARIABLE} has had OpenBLAS load those for {core}; unset it before Python "
            f"starts, or take them with --kernels {core}: the last digits are then others"
        )
    if s.kernels != OWN and s.kernels.lower() != core.lower():
        there = f"OpenBLAS has loaded those for {core}" if core else "NumPy has another BLAS than OpenBLAS"
        raise UserError(
            f"--kernels {s.kernels}: {there}; set {VARIABLE}={s.kernels} before Python starts, where this "
            "processor can do that, or take what is there with --kernels own: the last digits are then others"
        )
    return s


def start_tokenizer(s: Settings, start: Pretrained | None, folder: Path | None) -> Tokenizer | None:
    """The Tokenizer that the weights of --init speak, or None where --tokenizer and the text decide.

    start    what --init names, for a new run
    folder   of a run that is resumed: it has kept its tokenizer
    """
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


def check_fits(s: Settings, config: GPT2Config) -> None:
    """Raise UserError where this machine's memory cannot hold a step of these settings."""
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
    """Raise UserError where a run that goes on is given another file of layers than it was begun with."""
    own = checkpoint.load_state(path).get("own") if path.exists() else None
    file = own.get("file") if isinstance(own, dict) else None
    if isinstance(file, dict) and file.get("sha256") != now.sha256:
        raise UserError(f"{path}: made with the layers of {file.get('path')}, and {layers} holds others")


def base_of_run(folder: Path, s: Settings, own: OwnFile | None) -> Pretrained | None:
    """The weights below what a run has trained, where its checkpoints do not hold them."""
    path = folder / runs.LAST
    state = checkpoint.load_state(path) if path.exists() else {}
    if not isinstance(state, dict) or "base" not in state:
        return None
    before = state.get("settings", {}).get("init")
    return pretrained.base_of(path, state, s.dtype, moved=s.init if s.init != before else "", offered=own)


def prepare(s: Settings, words: Any, resumed: bool) -> corpora.Prepared:
    """The corpus of these settings, encoded; of a resumed run it may lie elsewhere by now."""
    try:
        return corpora.prepare(s.data, words or s.tokenizer)
    except UserError as error:
        if resumed and Path(s.data).is_absolute() and not Path(s.data).exists():
            raise UserError(f"{error}; if it was moved, name where it is now with --data") from None
        raise
