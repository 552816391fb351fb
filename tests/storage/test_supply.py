"""What comes from outside: the network, its proxies, and which versions of other packages are asked for."""

import hashlib
import io
import os
import socket
import stat
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.storage import download

ROOT = Path(__file__).parents[2]
URL = "https://example.invalid/file.txt"
GOOD = hashlib.sha256(b"content").hexdigest()


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """Downloads are allowed, to nowhere but this machine."""
    monkeypatch.delenv("GPT2_OFFLINE", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def refused(tmp_path, url=URL):
    with pytest.raises(UserError) as error:
        download.fetch(url, tmp_path / "file.txt", GOOD, timeout=5.0)
    assert list(tmp_path.iterdir()) == []
    assert "GPT2_DATA_DIR" in str(error.value)  # what to do about it
    return str(error.value)


# ---- Behind a proxy ----------------------------------------------------------------------------------------


@pytest.fixture
def proxy():
    """A proxy on this machine that answers each request alike; its address, and what it was asked."""
    server = socket.create_server(("127.0.0.1", 0))
    asked = []

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname(), asked
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.skipif(os.name != "posix", reason="shutdown of a listening socket ends accept on POSIX alone")
def test_a_proxy_that_refuses_is_named(tmp_path, monkeypatch, proxy):
    (host, port), asked = proxy
    monkeypatch.setenv("https_proxy", f"http://me:secret@{host}:{port}")
    message = refused(tmp_path)
    assert f"through the proxy {host}:{port} (" in message and "407" in message
    assert "secret" not in message
    assert asked[0].startswith(b"CONNECT example.invalid:443 ")


def test_a_proxy_that_is_not_there_is_named(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
    assert f"through the proxy 127.0.0.1:{port} (" in refused(tmp_path)


def test_an_unused_proxy_is_not_named(tmp_path, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.invalid")
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"other"))
    assert "proxy 127" not in refused(tmp_path)


# ---- What a server can do wrong ----------------------------------------------------------------------------


class Answer(io.BytesIO):
    """What urlopen gives: content, the address that it came from, and the bytes that are still to come."""

    def __init__(self, content, url=URL, length=0):
        super().__init__(content)
        self.url, self.length = url, length


def test_the_limits_are_those_promised():
    """docs/promises.md states them: seconds without an answer, seconds in all, bytes."""
    assert (download.TIMEOUT, download.LONGEST, download.LARGEST) == (15, 600, 64 << 20)


@pytest.fixture
def answers(monkeypatch):
    def answer(given):
        monkeypatch.setattr(download.urllib.request, "urlopen", lambda url, timeout: given)

    return answer


def test_a_sound_answer(tmp_path, answers):
    answers(Answer(b"content"))
    assert download.fetch(URL, tmp_path / "file.txt", GOOD).read_bytes() == b"content"


def test_a_redirection_away_from_https(tmp_path, answers):
    answers(Answer(b"content", "http://example.invalid/file.txt"))
    assert "redirects to http://example.invalid/file.txt, which is not https" in refused(tmp_path)


def test_an_answer_that_ends_early(tmp_path, answers):
    answers(Answer(b"cont", length=3))
    assert "the connection ended 3 bytes early" in refused(tmp_path)


def test_an_answer_without_an_end(tmp_path, answers, monkeypatch):
    class Drips(Answer):
        def read1(self, size):
            clock[0] += 14.0  # just below the time-out of one answer
            return b"x"

    clock = [0.0]
    monkeypatch.setattr(download.time, "monotonic", lambda: clock[0])
    answers(Drips(b""))
    assert "and no end" in refused(tmp_path)
    assert clock[0] < download.LONGEST + 30


def test_an_answer_that_is_too_large(tmp_path, answers, monkeypatch):
    monkeypatch.setattr(download, "LARGEST", 1000)
    answers(Answer(b"x" * (1 << 20), length=5))
    assert "SHA-256 of what arrived" in refused(tmp_path)


def test_what_is_no_http(tmp_path, monkeypatch):
    def urlopen(url, timeout):
        raise download.http.client.BadStatusLine("SSH-2.0\n")

    monkeypatch.setattr(download.urllib.request, "urlopen", urlopen)
    assert "\n" not in refused(tmp_path)


# ---- Memory that is shared ---------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm")
def test_shared_memory_with_a_name_is_this_users_alone(monkeypatch):
    from gpt2.parallel.memory import SharedArrays

    monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = SharedArrays({"a": ((3, 4), np.float32)})
    path = Path("/dev/shm") / memory.name.lstrip("/")
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        memory.unlink()
    assert not path.exists()


# ---- Versions ----------------------------------------------------------------------------------------------


def test_what_is_needed_has_a_lowest_version():
    """And no highest: for the packages that the engine needs tests.long.versions tries both ends. Only the
    formatter has one, as each of its versions formats differently.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    for requirement in everything:
        name = requirement.split(";")[0]
        if name.startswith("ruff"):
            continue
        assert ">=" in name and not set("<=~!").intersection(name.replace(">=", "")), requirement
