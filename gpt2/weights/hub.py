"""Repositories of the Hugging Face hub, through huggingface_hub and its cache.

All files are of one commit: that of the revision on the hub or, without a network, the one in the cache.
"""

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from gpt2.data import huggingface as tokenizer_files
from gpt2.errors import UserError
from gpt2.hints import install
from gpt2.weights import huggingface, peft

CONFIGS = (peft.CONFIG, huggingface.CONFIG)
TOKENIZERS = (*tokenizer_files.FILES, *tokenizer_files.OTHERS)
TIMEOUT = 10.0  # seconds for the list of files


def folder(
    name: str, repository: str, revision: str = "", weights: bool = True, cached: bool = False
) -> Path:
    """The folder in huggingface_hub's cache that has a repository's config or adapter, weights and tokenizer.

    name       as the user gave it
    revision   a branch, tag or commit; by default main
    weights    whether the weights are needed
    cached     whether files in the cache do, without a look at the hub

    GPT2_OFFLINE=1 forbids the network. Raises UserError if a file is neither on the hub nor in the cache.
    """
    hub = _package(name, repository)
    where = {"repo_id": repository, "revision": revision or "main"}
    found = (hub.try_to_load_from_cache(filename=file, **where) for file in (*CONFIGS, *TOKENIZERS))
    path = next((Path(file).parent for file in found if isinstance(file, str)), None)
    if cached and path is not None and (not weights or _missing(path) == ""):
        return path
    problem = _no_network(hub)
    try:
        if problem is None:
            info = hub.HfApi().model_info(repository, revision=where["revision"], timeout=TIMEOUT)
            path = _download(hub, where, {file.rfilename for file in info.siblings}, weights)
    except Exception as error:  # errors of the hub, of http and of sockets have no common base
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        problem = lines[1] if "Client Error" in lines[0] and len(lines) > 1 else lines[0]
    missing = huggingface.CONFIG if path is None else _missing(path) if weights else ""
    if missing and problem is None:
        raise UserError(f"{name}: the repository has no {missing}")
    if missing:
        raise UserError(
            f"{name}: {missing} is not in huggingface_hub's cache and cannot be downloaded from the "
            f"hub ({problem}); {_advice(repository)}"
        )
    return path


def unsure(name: str, path: Path) -> str:
    """Why it is not known whether a repository, cached in `path`, has a tokenizer; or ""."""
    hub = _package(name, name)
    beside = [(path / file).exists() for file in TOKENIZERS]
    known = [
        (path.parents[1] / ".no_exist" / path.name / file).exists() for file in tokenizer_files.FILES[:4]
    ]
    problem = _no_network(hub)
    if any(beside) or all(known) or problem is None:
        return ""
    return f"{name}: its tokenizer is not in huggingface_hub's cache, and cannot be downloaded ({problem})"


def _package(name, repository) -> Any:
    try:
        import huggingface_hub as hub
        import huggingface_hub.constants
    except ImportError:
        raise UserError(
            f"{name}: needs the huggingface_hub package ({install('huggingface_hub')}); "
            f"or {_advice(repository)}"
        ) from None
    hub.logging.set_verbosity_error()  # errors are reported here, once
    return hub


def _download(hub, where, files, weights):
    """Download the files that are needed of those in a repository; returns their folder."""
    wanted = [file for file in (*CONFIGS, *TOKENIZERS) if file in files]
    path = None
    for file in wanted:  # the first one finds the commit of the revision
        path = Path(hub.hf_hub_download(filename=file, **where)).parent
        where = {**where, "revision": path.name}
    kind = peft.WEIGHTS if peft.CONFIG in files else huggingface.preferred(files, where["repo_id"])
    if path is not None and weights and kind in files:
        hub.hf_hub_download(filename=kind, **where)
        for shard in huggingface.weight_files(path)[1] if kind.endswith(".json") else ():
            hub.hf_hub_download(filename=shard.name, **where)
    return path


def _missing(path):
    """The name of a file that is needed besides the config, and not in the folder; else ""."""
    if (path / peft.CONFIG).exists():
        return "" if (path / peft.WEIGHTS).exists() else peft.WEIGHTS
    if not (path / huggingface.CONFIG).exists():
        return huggingface.CONFIG
    return next((file.name for file in huggingface.weight_files(path)[1] if not file.exists()), "")


def _advice(repository):
    return (
        "put config.json and model.safetensors into a folder and give its path, or that of llm.c's .bin, or "
        f"set GPT2_DATA_DIR to a folder that has them in {Path(repository).name}/"
    )


def _no_network(hub):
    """Why the hub cannot be reached, or None. Its client would try six times, for half a minute."""
    if os.environ.get("GPT2_OFFLINE", "") not in ("", "0"):
        return "GPT2_OFFLINE is set"
    address = urlsplit(hub.constants.ENDPOINT)
    try:
        if not getproxies():  # a proxy resolves names by itself
            socket.getaddrinfo(address.hostname, address.port or 443)
    except OSError as error:
        return f"{address.hostname}: {error.strerror or error}"
    return None
