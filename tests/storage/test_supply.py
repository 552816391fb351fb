"""Downloads and proxies."""

import hashlib
import http.client
import io
import socket
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gpt2.errors import UserError
from gpt2.storage import download

URL = "https://example.invalid/file.txt"
GOOD = hashlib.sha256(b"content").hexdigest()


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """GPT2_OFFLINE and proxies are not set."""
    monkeypatch.delenv("GPT2_OFFLINE", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def failed_fetch(tmp_path, url=URL, hint=True):
    """The error: one line, which by default says where to put the file by hand."""
    with pytest.raises(UserError) as error:
        download.fetch(url, tmp_path / "file.txt", GOOD, timeout=5.0)
    assert list(tmp_path.iterdir()) == []
    message = str(error.value)
    assert "\n" not in message and ("GPT2_DATA_DIR" in message or not hint)
    return message


# ---- Behind a proxy ----------------------------------------------------------------------------------------


class Refusing(BaseHTTPRequestHandler):
    """A proxy that answers every request with 407."""

    def do_CONNECT(self):
        self.server.requests.append(self.path)
        self.send_error(407)

    def log_message(self, *args):
        pass


def test_error_names_a_proxy_that_refuses(tmp_path, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Refusing) as proxy:
        proxy.requests = []
        host, port = proxy.server_address
        monkeypatch.setenv("https_proxy", f"http://me:secret@{host}:{port}")
        thread = threading.Thread(target=proxy.handle_request, daemon=True)
        thread.start()
        message = failed_fetch(tmp_path)
        thread.join(10)
    assert f"through the proxy {host}:{port} (" in message and "407" in message
    assert "secret" not in message and proxy.requests == ["example.invalid:443"]


def test_error_names_a_proxy_that_does_not_exist(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
    assert f"through the proxy 127.0.0.1:{port} (" in failed_fetch(tmp_path)


def test_error_does_not_name_an_unused_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.invalid")
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"other"))
    assert "proxy 127" not in failed_fetch(tmp_path)


# ---- Responses ---------------------------------------------------------------------------------------------


class Response(io.BytesIO):
    """What urlopen returns: content, the address it came from, and how many bytes are missing."""

    def __init__(self, content, url=URL, length=0):
        super().__init__(content)
        self.url, self.length = url, length


@pytest.fixture
def respond(monkeypatch):
    """respond(x) makes urlopen return x, or raise it; requests lists what urlopen was called with."""

    def respond(response):
        respond.response = response

    def urlopen(url, timeout):
        respond.requests.append((url, timeout))
        if isinstance(respond.response, Exception):
            raise respond.response
        return respond.response

    respond.requests = []
    monkeypatch.setattr(download.urllib.request, "urlopen", urlopen)
    return respond


def test_limits_are_those_documented():
    """In docs/promises.md: seconds without a response, seconds in all, bytes."""
    assert (download.TIMEOUT, download.LONGEST, download.LARGEST) == (15, 600, 64 << 20)


def test_download_is_written_to_a_new_folder(tmp_path, respond):
    respond(Response(b"content"))
    path = download.fetch(URL, tmp_path / "sub" / "file.txt", GOOD)
    assert path.read_bytes() == b"content"
    assert respond.requests == [(URL, download.TIMEOUT)]
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    "response, message",
    [
        (Response(b"<html>log in</html>"), "SHA-256 of what arrived"),
        (Response(b"cont", length=3), "the connection ended 3 bytes early"),
        (
            Response(b"content", "http://example.invalid/file.txt"),
            "redirects to http://example.invalid/file.txt, which is not https",
        ),
        (urllib.error.URLError("no route"), "no route"),
        (TimeoutError("timed out"), "timed out"),
        (urllib.error.HTTPError(URL, 404, "Not Found", {}, None), "Not Found"),
        (http.client.BadStatusLine("SSH-2.0\n"), "SSH-2.0"),
    ],
)
def test_failed_download_is_a_one_line_error_without_a_file(tmp_path, respond, response, message):
    respond(response)
    assert message in failed_fetch(tmp_path)


def test_endless_download_is_aborted(tmp_path, respond, monkeypatch):
    class Trickle(Response):
        def read1(self, size):
            clock[0] += 14.0  # just below TIMEOUT
            return b"x"

    clock = [0.0]
    monkeypatch.setattr(download.time, "monotonic", lambda: clock[0])
    respond(Trickle(b""))
    assert "and no end" in failed_fetch(tmp_path)
    assert clock[0] < download.LONGEST + 30


def test_too_large_download_is_aborted(tmp_path, respond, monkeypatch):
    monkeypatch.setattr(download, "LARGEST", 1000)
    respond(Response(b"x" * (1 << 20), length=5))
    assert "SHA-256 of what arrived" in failed_fetch(tmp_path)


def test_only_https_and_nothing_when_offline(tmp_path, respond, monkeypatch):
    assert "only https" in failed_fetch(tmp_path, "http://example.invalid/f", hint=False)
    monkeypatch.setenv("GPT2_OFFLINE", "1")
    assert "GPT2_OFFLINE" in failed_fetch(tmp_path, hint=False)
    assert respond.requests == []
