"""Corpora: where the text comes from, how it is split, and what is said when it cannot be had."""

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpt2.data import corpora, fingerprint, stdlib, textfile, tinyshakespeare
from gpt2.data.tokens import read_tokens, write_token_stream, write_tokens
from gpt2.errors import UserError
from gpt2.storage import download, files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nothing_reachable(monkeypatch, tmp_path):
    """A machine without corpus, vocabulary and network."""
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "empty cache"))
    monkeypatch.setenv("GPT2_OFFLINE", "1")


# ---- tinyshakespeare ---------------------------------------------------------------------------------------


def test_shakespeare_in_gpt2_tokens_is_split_as_llm_c_splits_it(shakespeare, gpt2_tokenizer, tmp_path):
    made = corpora.prepare("tinyshakespeare", "gpt2", tmp_path)
    train, val = read_tokens(made.train), read_tokens(made.val)
    assert (len(train), len(val)) == (305_260, 32_768)
    assert val[0] == gpt2_tokenizer.end_of_text
    sections = shakespeare.split("\n\n")
    everything = [*val, *train]
    assert sum(token == gpt2_tokenizer.end_of_text for token in everything) == len(sections)
    text = gpt2_tokenizer.decode(token for token in everything if token != gpt2_tokenizer.end_of_text)
    assert text == shakespeare


def test_shakespeare_in_characters_is_split_as_nanogpt_splits_it(shakespeare, tmp_path):
    made = corpora.prepare("tinyshakespeare", "char", tmp_path)
    assert made.tokenizer.vocab_size == 65
    assert len(read_tokens(made.train)) == 1_003_854
    assert len(read_tokens(made.val)) == 111_540


def test_a_damaged_corpus_is_named(monkeypatch, tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text("First Citizen: not quite all of it")
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match="tinyshakespeare.txt: SHA-256 is .* expected 86c4e6aa"):
        tinyshakespeare.read()


def test_a_named_corpus_that_cannot_be_had_says_where_to_put_it(nothing_reachable):
    with pytest.raises(UserError, match="GPT2_DATA_DIR.*empty cache.tinyshakespeare.txt"):
        corpora.prepare("tinyshakespeare")


def test_auto_falls_back_to_the_standard_library_and_says_so(nothing_reachable):
    made = corpora.prepare("auto", "auto")
    assert (made.corpus, made.tokenizer.name) == ("stdlib", "byte")
    assert len(made.notes) == 1 and "standard library" in made.notes[0] and "\n" not in made.notes[0]
    assert len(read_tokens(made.train)) > 9 * len(read_tokens(made.val)) - 9 > 0


def test_auto_takes_bytes_where_only_the_vocabulary_is_missing(nothing_reachable, prose):
    made = corpora.prepare(str(prose[0]), "auto")
    assert made.tokenizer.name == "byte"
    assert len(made.notes) == 1 and "vocab.bpe" in made.notes[0]


# ---- Text of the user's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe:300"])
def test_any_text_is_split_and_encoded_whole(prose, tmp_path, tokenizer):
    path, text = prose
    made = corpora.prepare(str(path), tokenizer, tmp_path / "tokens")
    train, val = (made.tokenizer.decode(read_tokens(p)) for p in (made.train, made.val))
    assert train + val == text
    assert len(train) == int(0.9 * len(text))


def test_token_files_are_made_once_and_again_when_the_text_changes(prose):
    path, text = prose
    first = corpora.prepare(str(path), "byte")
    written = first.train.stat().st_mtime_ns
    assert corpora.prepare(str(path), "byte").train.stat().st_mtime_ns == written
    path.write_text(text + "one more line\n", encoding="utf-8")
    assert corpora.prepare(str(path), "byte").train != first.train


def test_what_was_left_of_other_texts_in_the_cache_is_swept(prose):
    first = corpora.prepare(str(prose[0]), "byte")
    left = first.train.with_name(f".gpt2-{files.HOST}-0123456789abcdef.tmp")
    left.write_bytes(b"half")
    prose[0].write_text("another text. " * 100)
    corpora.prepare(str(prose[0]), "byte")
    assert first.train.exists() and not left.exists()


def test_a_damaged_token_file_is_made_again(prose):
    first = corpora.prepare(str(prose[0]), "byte")
    whole = first.train.read_bytes()
    first.train.write_bytes(whole[:-2])
    assert corpora.prepare(str(prose[0]), "byte").train.read_bytes() == whole


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x7fELF\0\1\2", "binary file .a zero byte at 4"),
        (b"caf\xe9", "not UTF-8 text .byte 3 is 0xe9"),
    ],
)
def test_a_file_that_is_not_text_is_refused(tmp_path, content, message):
    path = tmp_path / "input"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        textfile.read(path)


@pytest.mark.parametrize(
    "name, message", [("no such.txt", "No such file"), ("shakespear", "no such corpus"), (".", "folder")]
)
def test_a_name_that_is_no_file_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        corpora.prepare(name, "byte")


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfabc\r\n")
    assert textfile.read(path) == "abc\r\n"


def test_token_files_made_elsewhere_are_used_as_they_are(tmp_path, gpt2_tokenizer):
    train, val = tmp_path / "my_train.bin", tmp_path / "my_val.bin"
    write_tokens(train, range(100))
    with pytest.raises(UserError, match="my_val.bin: No such file"):
        corpora.prepare(str(train))
    write_tokens(val, range(50))
    made = corpora.prepare(str(train))
    assert (made.train, made.val, made.tokenizer.name) == (train, val, "gpt2")
    with pytest.raises(UserError, match="already encoded, with gpt2"):
        corpora.prepare(str(train), "byte")


def test_the_standard_library_is_long_enough_and_the_same_each_time():
    text = stdlib.read()
    assert 1_000_000 < len(text) <= stdlib.LONGEST
    assert text == stdlib.read()


@pytest.mark.parametrize("door", [["-m", "data"], ["-m", "gpt2.data"], ["data/textfile.py"]], ids=" ".join)
def test_the_command_writes_files_and_says_where(prose, tmp_path, door):
    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *door, *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    done = run(str(prose[0]), "--tokenizer=char", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0 and str(tmp_path / "out" / "train.bin") in done.stdout
    wrong = run("nothing.txt")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


def test_a_file_for_each_corpus(shakespeare, tmp_path):
    """python data/tinyshakespeare.py and its neighbours name the corpus themselves."""
    for name in ("tinyshakespeare", "stdlib"):
        command = [sys.executable, f"data/{name}.py", "--tokenizer", "byte", "--out", str(tmp_path / name)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{name}, tokenizer byte")


# ---- Long texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["byte", "char", pytest.param("bpe:280", marks=pytest.mark.slow)])
def test_a_long_text_is_never_held_as_a_whole(tmp_path, name):
    """The peak of what Python and NumPy allocate, for a text of 16 MB."""
    line = "To be, or not to be: that is the question; 'tis naïve.\n"
    path = tmp_path / "long.txt"
    size = 16 << 20
    path.write_text(line * (size // len(line.encode())), encoding="utf-8")
    corpora.prepare("stdlib", "byte")  # what is imported and made once
    tracemalloc.start()
    made = corpora.prepare(str(path), name, tmp_path / "tokens")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read_tokens(made.val)) > 1000
    assert peak < 12 << 20  # the tokens of `byte` alone are 32 MB


def test_the_files_are_those_of_the_text_as_a_whole(prose, tmp_path, gpt2_tokenizer):
    path, text = prose
    for given in ("byte", "char", "bpe:300", gpt2_tokenizer):
        made = corpora.prepare(str(path), given, tmp_path / "tokens")
        cut = int(0.9 * len(text))
        for file, part in ((made.train, text[:cut]), (made.val, text[cut:])):
            assert read_tokens(file).tolist() == made.tokenizer.encode(part).tolist()


def test_of_several_that_start_together_one_encodes(prose, tmp_path, monkeypatch):
    began, encode = [], corpora._encode

    def slow(*args):
        began.append(args)
        time.sleep(0.3)
        return encode(*args)

    monkeypatch.setattr(corpora, "_encode", slow)
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda _: corpora.prepare(str(prose[0]), "byte", tmp_path / "out"), range(3)))
    assert len(began) == 1 and len({m.train for m in made}) == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*corpora.FILES, corpora.RECORD])


def test_a_text_that_changes_while_it_is_read_is_refused(prose, tmp_path, monkeypatch):
    path, text = prose
    encode = corpora._encode

    def changing(*args):
        path.write_text(text.replace("king", "duke"), encoding="utf-8", newline="\n")
        return encode(*args)

    monkeypatch.setattr(corpora, "_encode", changing)
    with pytest.raises(UserError, match="prose.txt: the file changed while it was read"):
        corpora.prepare(str(path), "byte", tmp_path / "out")


def test_a_pipe_is_read_once(tmp_path):
    """As of `gpt2 data <(zcat text.gz)`."""
    script = "import sys; from gpt2.data.corpora import prepare; print(prepare(*sys.argv[1:]).train)"
    command = [sys.executable, "-c", script, "/dev/stdin", "byte", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, input=b"piped text\n" * 100, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert len(read_tokens(tmp_path / "out" / "train.bin")) == 990


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_tokenizing_shows_how_far_it_is(prose, tmp_path, monkeypatch, capsys):
    corpora.prepare(str(prose[0]), "byte", tmp_path / "short")
    assert capsys.readouterr().err == ""  # a log needs no line about what takes no time
    monkeypatch.setattr(corpora, "LONG", 1000)
    monkeypatch.setattr(textfile, "CHUNK", 1000)
    corpora.prepare(str(prose[0]), "byte", tmp_path / "log")
    first, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("tokenizing ") and first.endswith("prose.txt: 14,948 characters")
    live = Terminal()
    monkeypatch.setattr(sys, "stderr", live)
    monkeypatch.setattr(corpora, "DELAY", 0)
    corpora.prepare(str(prose[0]), "byte", tmp_path / "live")
    assert "tokenizing " in live.getvalue() and "%" in live.getvalue()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_while_tokenizing_leaves_nothing(tmp_path):
    path, out = tmp_path / "long.txt", tmp_path / "out"
    path.write_text("The quick brown fox, 1,000 of them.\n" * 400_000)
    command = [sys.executable, "-m", "gpt2", "data", str(path), "--tokenizer", "bpe:257", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while program.poll() is None and not list(out.glob("*.tmp")):
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 130
    assert [p.name for p in out.iterdir()] == []


# ---- Downloads ---------------------------------------------------------------------------------------------

URL = "https://example.invalid/file.txt"


@pytest.fixture
def network(monkeypatch):
    """A network that answers with what the test puts in, and notes what it was asked."""
    asked = []

    def urlopen(url, timeout):
        asked.append((url, timeout))
        answer = urlopen.answer
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)

    urlopen.asked = asked
    monkeypatch.setattr(download.urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("GPT2_OFFLINE", raising=False)
    return urlopen


def test_a_download_is_checked_and_kept(network, tmp_path):
    network.answer = b"content"
    path = download.fetch(URL, tmp_path / "sub" / "file.txt", hashlib.sha256(b"content").hexdigest())
    assert path.read_bytes() == b"content"
    assert network.asked == [(URL, download.TIMEOUT)]
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    "answer, message",
    [
        (b"<html>log in</html>", "SHA-256 of what arrived"),
        (urllib.error.URLError("no route"), "no route"),
        (TimeoutError("timed out"), "timed out"),
        (urllib.error.HTTPError(URL, 404, "Not Found", {}, None), "Not Found"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_no_file(network, tmp_path, answer, message):
    network.answer = answer
    with pytest.raises(UserError, match=message) as error:
        download.fetch(URL, tmp_path / "file.txt", "0" * 64)
    assert "GPT2_DATA_DIR" in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_only_https_and_only_when_allowed(network, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="only https"):
        download.fetch("http://example.invalid/f", tmp_path / "f", "0" * 64)
    monkeypatch.setenv("GPT2_OFFLINE", "1")
    with pytest.raises(UserError, match="GPT2_OFFLINE"):
        download.fetch(URL, tmp_path / "f", "0" * 64)
    assert network.asked == []


def test_a_folder_that_was_named_and_cannot_be_written(prose, tmp_path):
    (tmp_path / "tokens").write_text("a file, and no folder")
    with pytest.raises(UserError) as caught:
        corpora.prepare(str(prose[0]), "byte", folder=tmp_path / "tokens")
    assert "GPT2_CACHE_DIR" not in str(caught.value)  # which would not help


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    download.write_atomically(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        download.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's count of memory")
def test_the_fingerprint_of_a_long_corpus_takes_one_block_of_memory(tmp_path):
    """A mapped file counts as memory of the process that has read it, unless it gives the pages back."""
    path = tmp_path / "train.bin"
    write_token_stream(path, (np.zeros(fingerprint.BLOCK, np.uint16) for _ in range(4)))
    script = (
        "import re\nfrom gpt2.data import fingerprint, tokens\n"
        "most = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        f"mapped, before = tokens.read_tokens({str(path)!r}), most()\n"
        "fingerprint._crc32(mapped)\n"
        "print(most() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1.5 * 2 * fingerprint.BLOCK / 1024  # kB: two bytes a token
