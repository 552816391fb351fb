"""Downloads over https, with a time limit, a checksum and atomic writes.

Environment: GPT2_CACHE_DIR moves the cache folder, GPT2_OFFLINE=1 forbids every download.
"""

import contextlib
import hashlib
import http.client
import os
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from gpt2.errors import UserError, reason
from gpt2.storage.files import write_atomically

TIMEOUT = 15.0  # seconds without an answer before a download counts as failed
LONGEST = 600.0  # seconds for a whole file; a server may send a byte now and then for ever
LARGEST = 64 << 20  # bytes; a server that sends more is not sending the requested file


def cache_folder() -> Path:
    """The folder for downloads and token files, created on the first write.

    Raises UserError if the user has no home folder and GPT2_CACHE_DIR is not set. platformdirs would give the
    same on Linux and macOS, and on Windows another folder, so that earlier files would not be found.
    """
    if os.environ.get("GPT2_CACHE_DIR"):
        return Path(os.environ["GPT2_CACHE_DIR"])
    name = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    if os.environ.get(name):
        return Path(os.environ[name]) / "gpt2"
    try:
        home = Path.home()
    except RuntimeError:
        raise UserError(
            "this user has no home folder to keep token files in; set GPT2_CACHE_DIR to a folder that can be "
            "written"
        ) from None
    return home / {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache") / "gpt2"


def data_folders() -> list[Path]:
    """The folders to search for data: GPT2_DATA_DIR, then the cache folder, if they exist."""
    folders = [Path(os.environ["GPT2_DATA_DIR"])] if os.environ.get("GPT2_DATA_DIR") else []
    with contextlib.suppress(UserError):
        folders.append(cache_folder())
    return folders


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(name: str, sha256: str, folders: Iterable[str | Path]) -> Path | None:
    """Path of the first `folder/name` whose content has this SHA-256, or None.

    A file of the right name with other content is an error: using it would train on something else, and
    skipping it silently would be confusing.
    """
    for folder in folders:
        path = Path(folder) / name
        if not path.is_file():
            continue
        digest = sha256_of(path)
        if digest != sha256:
            raise UserError(
                f"{path}: SHA-256 is {digest[:12]}..., expected {sha256[:12]}...; "
                "the file is damaged or another version. Remove it or replace it"
            )
        return path
    return None


def fetch(url: str, path: str | Path, sha256: str, timeout: float = TIMEOUT) -> Path:
    """Download `url` to `path` and return the path.

    The content goes to a temporary file in the same folder, is checked against `sha256`, and is then renamed,
    so that `path` either does not exist or is whole. Raises UserError, in one line, for every failure of the
    network.
    """
    path = Path(path)
    advice = f"put the file there by hand, or the same file into the folder named by GPT2_DATA_DIR: {path}"
    if os.environ.get("GPT2_OFFLINE", "") not in ("", "0"):
        raise UserError(f"{path.name} is not here and GPT2_OFFLINE is set; {advice}")
    if not url.startswith("https://"):
        raise UserError(f"{url}: only https addresses are downloaded")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            content = _content(answer, url)
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        cause = getattr(error, "reason", None) or error
        why = reason(cause) if isinstance(cause, BaseException) else cause
        raise UserError(f"cannot download {url}{_proxy(url)} ({why}); {advice}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise UserError(
            f"{url}: SHA-256 of what arrived is {digest[:12]}..., expected {sha256[:12]}... "
            f"(a proxy's page?); {advice}"
        )
    write_atomically(path, content)
    return path


def _content(answer, url):
    """The content that the server sends, at most LARGEST + 1 bytes. OSError if it takes too long, ends early,
    or was redirected to an address without https."""
    final = getattr(answer, "url", url)
    if not final.startswith("https://"):
        raise OSError(f"it redirects to {final}, which is not https")
    end = time.monotonic() + LONGEST
    content = bytearray()
    while len(content) <= LARGEST:
        part = answer.read1(1 << 16)
        content += part
        if not part:
            break
        if time.monotonic() > end:
            raise OSError(f"{len(content):,} bytes in {LONGEST:g} s, and no end")
    if getattr(answer, "length", None) and len(content) <= LARGEST:
        raise OSError(f"the connection ended {answer.length:,} bytes early")
    return bytes(content)


def _proxy(url):
    """ " through the proxy HOST:PORT" if there is one, without its user name and password."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    host = urlsplit(proxy if "//" in proxy else "//" + proxy).netloc
    return f" through the proxy {host.rpartition('@')[2]}"
