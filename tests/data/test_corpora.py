"""Corpora: sources of text, the split into training and validation, token files, and errors."""

import os
import signal
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpt2.data import corpora, documents, named, sources, tokens
from gpt2.data import tokenizer as tokenizers
from gpt2.data.tokens import read_tokens, write_token_stream, write_tokens
from gpt2.errors import UserError
from gpt2.storage import files
from tests.support import small_run
from tests.support.terminal import Terminal


def run_python(*args, **options):
    return small_run.run([sys.executable, *map(str, args)], **options)


@pytest.fixture
def nothing_reachable(monkeypatch, tmp_path):
    """No corpus, no vocabulary and no network."""
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "empty cache"))
    monkeypatch.setenv("GPT2_OFFLINE", "1")


# ---- tinyshakespeare ---------------------------------------------------------------------------------------


def test_gpt2_tokens_of_shakespeare_match_llm_c(shakespeare, gpt2_tokenizer, tmp_path):
    prepared = corpora.prepare("tinyshakespeare", "gpt2", tmp_path)
    train, val = read_tokens(prepared.train), read_tokens(prepared.val)
    assert (len(train), len(val)) == (305_260, 32_768)
    assert val[0] == gpt2_tokenizer.end_of_text
    sections = shakespeare.split("\n\n")
    tokens = [*val, *train]
    assert sum(token == gpt2_tokenizer.end_of_text for token in tokens) == len(sections)
    text = gpt2_tokenizer.decode(token for token in tokens if token != gpt2_tokenizer.end_of_text)
    assert text == shakespeare


def test_shakespeare_for_a_vocabulary_of_gpt2_s_size_without_an_end_of_text(monkeypatch, tmp_path):
    monkeypatch.setattr(named, "tinyshakespeare", lambda: "to be\n\nor not to be\n\n" * 20)
    words = tokenizers.Tokenizer("gpt2", tokenizers.GPT2_PIECES, [bytes([b]) for b in range(256)])
    prepared = corpora.prepare("tinyshakespeare", words, tmp_path)
    assert words.decode(read_tokens(prepared.train)).startswith("to be\n\nor not")


def test_characters_of_shakespeare_match_nanogpt(shakespeare, tmp_path):
    prepared = corpora.prepare("tinyshakespeare", "char", tmp_path)
    assert prepared.tokenizer.vocab_size == 65
    assert len(read_tokens(prepared.train)) == 1_003_854
    assert len(read_tokens(prepared.val)) == 111_540


def test_damaged_corpus_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text("First Citizen: not quite all of it")
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match="tinyshakespeare.txt: SHA-256 is .* expected 86c4e6aa"):
        named.tinyshakespeare()


def test_unavailable_corpus_error_says_where_to_put_it(nothing_reachable):
    with pytest.raises(UserError, match="GPT2_DATA_DIR.*empty cache.tinyshakespeare.txt"):
        corpora.prepare("tinyshakespeare")


def test_auto_falls_back_to_the_standard_library_with_a_note(nothing_reachable):
    prepared = corpora.prepare("auto", "auto")
    assert (prepared.corpus, prepared.tokenizer.name) == ("stdlib", "byte")
    (note,) = prepared.notes
    assert "standard library" in note and "\n" not in note
    assert len(read_tokens(prepared.train)) > 9 * len(read_tokens(prepared.val)) - 9 > 0


def test_auto_uses_bytes_without_the_gpt2_vocabulary(nothing_reachable, prose):
    prepared = corpora.prepare(str(prose[0]), "auto")
    assert prepared.tokenizer.name == "byte"
    assert len(prepared.notes) == 1 and "vocab.bpe" in prepared.notes[0]


# ---- Your own text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe:300"])
def test_text_is_split_and_encoded_without_loss(prose, tmp_path, tokenizer):
    path, text = prose
    prepared = corpora.prepare(str(path), tokenizer, tmp_path / "tokens")
    train, val = (prepared.tokenizer.decode(read_tokens(p)) for p in (prepared.train, prepared.val))
    assert train + val == text
    assert len(train) == int(0.9 * len(text))


def test_token_files_are_reused_until_they_are_damaged_or_the_text_changes(prose):
    path, text = prose
    first = corpora.prepare(str(path), "byte")
    whole, written = first.train.read_bytes(), first.train.stat().st_mtime_ns
    assert corpora.prepare(str(path), "byte").train.stat().st_mtime_ns == written
    first.train.write_bytes(whole[:-2])
    assert corpora.prepare(str(path), "byte").train.read_bytes() == whole
    path.write_text(text + "one more line\n", encoding="utf-8")
    assert corpora.prepare(str(path), "byte").train != first.train


def test_long_name_of_a_text(tmp_path):
    """Of as many bytes as a file system allows; the folder of its tokens is named after it."""
    path = tmp_path / ("é" * 120 + ".txt")
    path.write_text("to be or not to be " * 20)
    assert len(read_tokens(corpora.prepare(str(path), "byte").train)) == 342


@pytest.mark.parametrize("name", ["settings.toml", "tokenizer.json", "train.bin", "val.bin"])
def test_files_of_others_are_not_replaced(prose, tmp_path, name):
    """Of a run, of transformers, of nanoGPT."""
    path = tmp_path / "tokens" / name
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(UserError, match="tokens.*give another"):
        corpora.prepare(str(prose[0]), "byte", path.parent)
    assert path.read_text() == "{}" and [*path.parent.iterdir()] == [path]


def test_leftovers_of_other_texts_are_removed_from_the_cache(prose):
    first = corpora.prepare(str(prose[0]), "byte")
    left = first.train.with_name(f".gpt2-{files.HOST}-0123456789abcdef.tmp")
    left.write_bytes(b"half")
    prose[0].write_text("another text. " * 100)
    corpora.prepare(str(prose[0]), "byte")
    assert first.train.exists() and not left.exists()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x7fELF\0\1\2", "binary file .a zero byte at 4"),
        (b"caf\xe9", "not UTF-8 text .byte 3 is 0xe9"),
    ],
)
def test_file_that_is_not_text_is_an_error(tmp_path, content, message):
    path = tmp_path / "input"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        "".join(sources.pieces(path))


def test_link_that_leads_to_itself_is_an_error(tmp_path):
    link = tmp_path / "loop.txt"
    try:
        link.symlink_to(link)
    except OSError:
        pytest.skip("needs POSIX links")
    for path in (link, "nul\0byte.txt"):
        with pytest.raises(UserError, match="^data .*(loop|byte).txt: "):
            corpora.prepare(str(path), "byte")


@pytest.mark.parametrize(
    "name, message", [("no such.txt", "No such file"), ("shakespear", "no such corpus"), ("*.non", "no file")]
)
def test_unknown_name_is_an_error(name, message):
    with pytest.raises(UserError, match=message):
        corpora.prepare(name, "byte")


def test_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfabc\r\n")
    assert "".join(sources.pieces(path)) == "abc\r\n"


def test_existing_token_files_are_used_directly(tmp_path, gpt2_tokenizer):
    train, val = tmp_path / "my_train.bin", tmp_path / "my_val.bin"
    write_tokens(train, range(100))
    with pytest.raises(UserError, match="my_val.bin: No such file"):
        corpora.prepare(str(train))
    write_tokens(val, range(50))
    prepared = corpora.prepare(str(train))
    assert (prepared.train, prepared.val, prepared.tokenizer.name) == (train, val, "gpt2")
    with pytest.raises(UserError, match="already encoded, with gpt2"):
        corpora.prepare(str(train), "byte")


def test_standard_library_text_is_long_and_deterministic():
    text = named.stdlib()
    assert 1_000_000 < len(text) <= named.LONGEST
    assert text == named.stdlib()


@pytest.mark.parametrize("script", [["-m", "data"], ["-m", "gpt2.data"], ["data/textfile.py"]], ids=" ".join)
def test_command_writes_files_and_prints_their_paths(prose, tmp_path, script):
    done = run_python(*script, str(prose[0]), "--tokenizer=char", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0 and str(tmp_path / "out" / "train.bin") in done.stdout
    wrong = run_python(*script, "nothing.txt")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


def test_script_of_each_corpus(shakespeare, tmp_path):
    for name in ("tinyshakespeare", "stdlib"):
        done = run_python(f"data/{name}.py", "--tokenizer=byte", f"--out={tmp_path / name}", check=True)
        assert done.stdout.startswith(f"{name}, tokenizer byte")


# ---- Long texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["byte", "char", pytest.param("bpe:280", marks=pytest.mark.slow)])
def test_long_text_is_encoded_in_little_memory(tmp_path, name):
    """Peak allocation of Python and NumPy for 16 MB of text."""
    line = "To be, or not to be: that is the question; 'tis naïve.\n"
    path = tmp_path / "long.txt"
    size = 16 << 20
    path.write_text(line * (size // len(line.encode())), encoding="utf-8")
    corpora.prepare("stdlib", "byte")  # imports and caches
    tracemalloc.start()
    prepared = corpora.prepare(str(path), name, tmp_path / "tokens")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read_tokens(prepared.val)) > 1000
    assert peak < 16 << 20  # three pieces at once; the tokens of `byte` alone are 32 MB


def test_token_files_equal_encoding_the_text_at_once(prose, tmp_path, gpt2_tokenizer):
    path, text = prose
    for tokenizer in ("byte", "char", "bpe:300", gpt2_tokenizer):
        prepared = corpora.prepare(str(path), tokenizer, tmp_path / "tokens")
        cut = int(0.9 * len(text))
        for file, part in ((prepared.train, text[:cut]), (prepared.val, text[cut:])):
            assert read_tokens(file).tolist() == prepared.tokenizer.encode(part).tolist()


def test_concurrent_calls_encode_once(prose, tmp_path, monkeypatch):
    calls, encode = [], corpora._encode

    def slow(*args):
        calls.append(args)
        time.sleep(0.3)
        return encode(*args)

    monkeypatch.setattr(corpora, "_encode", slow)
    out = tmp_path / "out"
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: corpora.prepare(str(prose[0]), "byte", out), range(3)))
    assert len(calls) == 1 and len({prepared.train for prepared in results}) == 1
    assert sorted(p.name for p in out.iterdir()) == sorted([*corpora.FILES, corpora.RECORD])


def test_text_that_changes_while_it_is_read_is_an_error(prose, tmp_path, monkeypatch):
    path, text = prose
    encode = corpora._encode

    def changing(*args):
        path.write_text(text.replace("king", "duke"), encoding="utf-8", newline="\n")
        return encode(*args)

    monkeypatch.setattr(corpora, "_encode", changing)
    with pytest.raises(UserError, match="prose.txt: the file changed while it was read"):
        corpora.prepare(str(path), "byte", tmp_path / "out")


def test_pipe_is_read_once(tmp_path):
    """Such as `gpt2 data <(zcat text.gz)`."""
    script = "import sys; from gpt2.data.corpora import prepare; print(prepare(*sys.argv[1:]).train)"
    piped = {"input": "piped text\n" * 100}
    run_python("-c", script, "/dev/stdin", "byte", tmp_path / "out", **piped, check=True)
    assert len(read_tokens(tmp_path / "out" / "train.bin")) == 990


def test_progress_of_tokenizing(prose, tmp_path, monkeypatch, capsys):
    corpora.prepare(str(prose[0]), "byte", tmp_path / "short")
    assert capsys.readouterr().err == ""  # nothing for a short text
    monkeypatch.setattr(documents, "LONG", 1000)
    monkeypatch.setattr(sources, "CHUNK", 1000)
    corpora.prepare(str(prose[0]), "byte", tmp_path / "log")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tokenizing ") and line.endswith("prose.txt: 16,609 characters")
    live = Terminal()
    monkeypatch.setattr(sys, "stderr", live)
    monkeypatch.setattr(documents, "DELAY", 0)
    corpora.prepare(str(prose[0]), "byte", tmp_path / "live")
    assert "tokenizing " in live.getvalue() and "%" in live.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_while_tokenizing_leaves_nothing(tmp_path):
    path, out = tmp_path / "long.txt", tmp_path / "out"
    path.write_text("The quick brown fox, 1,000 of them.\n" * 400_000)
    command = [sys.executable, "-m", "gpt2", "data", str(path), "--tokenizer", "bpe:257", "--out", str(out)]
    program = small_run.start(command)
    while program.poll() is None and not list(out.glob("*.tmp")):
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    assert program.returncode == 130
    assert [p.name for p in out.iterdir()] == []


def test_error_for_an_unwritable_folder_does_not_mention_the_cache(prose, tmp_path):
    (tmp_path / "tokens").write_text("a file, not a folder")
    with pytest.raises(UserError) as caught:
        corpora.prepare(str(prose[0]), "byte", folder=tmp_path / "tokens")
    assert "GPT2_CACHE_DIR" not in str(caught.value)  # setting it would not help


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's count of memory")
def test_fingerprint_of_a_long_corpus_needs_one_block_of_memory(tmp_path):
    """Pages of a mapped file count as memory of the process unless it releases them."""
    path = tmp_path / "train.bin"
    write_token_stream(path, (np.zeros(tokens.BLOCK, np.uint16) for _ in range(4)))
    script = (
        "import re\nfrom gpt2.data import fingerprint, tokens\n"
        "most = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        f"mapped, before = tokens.read_tokens({str(path)!r}), most()\n"
        "fingerprint._checksums(mapped)\n"
        "print(most() - before)"
    )
    done = run_python("-c", script, check=True)
    assert 0 < int(done.stdout) < 1.5 * 2 * tokens.BLOCK / 1024  # kB: two bytes a token
