"""Tokenizers: encoding and decoding, learned ranks, tokenizer files, and encoding in parts."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2.data import stored, tokenizer
from gpt2.errors import UserError

TEXT = "the cat sat on the mat; that cat, the fat cat, sat there.\nnaïve 日本 don't 123  \n\n" * 3


def plain_bpe(text, size):
    """Byte-pair encoding by its definition: all pairs are counted again for every merge."""
    words = [[bytes([b]) for b in piece.encode()] for piece in regex.findall(tokenizer.GPT2_PIECES, text)]
    ranks = [bytes([b]) for b in range(256)]
    while len(ranks) < size:
        pairs = Counter(pair for word in words for pair in zip(word, word[1:]))
        best = min((p for p in pairs if p[0] + p[1] not in ranks), key=lambda p: (-pairs[p], p))
        ranks.append(best[0] + best[1])
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [best[0] + best[1]]
                i += 1
    return ranks


def test_gpt2_equals_tiktoken(gpt2_tokenizer):
    theirs = tiktoken.get_encoding("gpt2")
    text = TEXT + " \t\t  <|endoftext|> \u2800 \N{GRINNING FACE} I'll we've 1234567"
    assert list(gpt2_tokenizer.encode(text)) == theirs.encode(text, disallowed_special=())
    assert (gpt2_tokenizer.vocab_size, gpt2_tokenizer.end_of_text) == (50257, 50256)
    assert gpt2_tokenizer.decode([50256]) == "<|endoftext|>"


def test_gpt2_token_count_of_shakespeare(gpt2_tokenizer, shakespeare):
    tokens = gpt2_tokenizer.encode(shakespeare)
    assert len(tokens) == 338_025
    assert gpt2_tokenizer.decode(tokens) == shakespeare


def test_byte_tokens_are_the_bytes():
    assert list(tokenizer.byte().encode("aé")) == [97, 0xC3, 0xA9]
    assert tokenizer.byte().vocab_size == 256
    for token in (-1, 256):
        with pytest.raises(UserError, match="outside 0..255"):
            tokenizer.byte().decode([token])


def test_char_tokens_follow_character_order_and_there_are_no_others():
    tok = tokenizer.char("banana é\n日")
    assert tok.vocab_size == 7
    assert tok.decode(range(7)) == "\n abné日"
    assert list(tok.encode("日a\n")) == [6, 2, 0]
    with pytest.raises(UserError, match="2 characters of the text are not in its vocabulary of 3.*'x'"):
        tokenizer.char("abc").encode("axyc")


@pytest.mark.parametrize("words", [tokenizer.byte(), tokenizer.char("abc"), tokenizer.bpe("ab " * 9, 258)])
def test_lone_surrogate_is_one_line(words):
    with pytest.raises(UserError, match="character 2 of the text is a lone surrogate, '.udcff', which UTF-8"):
        words.encode("ab\udcff")


@pytest.mark.parametrize("size", [256, 257, 280])
def test_bpe_learns_the_ranks_of_its_definition(size):
    tok = tokenizer.bpe(TEXT, size)
    assert tok.vocab_size == size
    assert tok.ranks == plain_bpe(TEXT, size)


def test_bpe_shortens_the_text_it_was_trained_on():
    assert len(tokenizer.bpe(TEXT, 280).encode(TEXT)) < 0.6 * len(TEXT.encode())


def test_bpe_of_a_short_text_is_an_error():
    with pytest.raises(UserError, match="the corpus has pairs for 258 tokens only"):
        tokenizer.bpe("abc", 1000)


TOKENIZERS = {"byte": tokenizer.byte(), "bpe": tokenizer.bpe(TEXT, 280)}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_decodes_to_itself(name, text):
    text = text.encode("utf-8", "replace").decode()  # without lone surrogates
    tok = TOKENIZERS[name]
    tokens = tok.encode(text)
    assert tok.decode(tokens) == text
    assert "".join(tok.stream(tokens)) == text


def test_stream_yields_whole_characters():
    pieces = list(tokenizer.byte().stream("é日".encode()))
    assert pieces == ["", "é", "", "", "日", ""]
    assert "".join(tokenizer.byte().stream([0xC3])) == "\N{REPLACEMENT CHARACTER}"


def test_stream_drops_special_tokens(gpt2_tokenizer):
    assert "".join(gpt2_tokenizer.stream([50256, 31373, 50256, 995])) == "hello world"


@pytest.mark.parametrize("tok", [*TOKENIZERS.values(), tokenizer.char("日本\n")], ids=lambda tok: tok.name)
def test_saved_tokenizer_is_the_same_when_loaded(tok, tmp_path):
    tok.save(tmp_path / "t.json")
    loaded = stored.load(tmp_path / "t.json")
    assert (loaded.name, loaded.ranks, loaded.special) == (tok.name, tok.ranks, tok.special)
    assert list(loaded.encode("日本\n")) == list(tok.encode("日本\n"))
    assert loaded.start == tok.start


def test_start_token_is_end_of_text_or_newline_or_zero(gpt2_tokenizer):
    assert gpt2_tokenizer.start == 50256
    assert tokenizer.byte().start == 10
    assert tokenizer.char("abc").start == 0


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"ranks": []},
        {"ranks": ["YQ==", "YQ=="]},
        {"ranks": ["YQ=="]},
        {"ranks": ["?"]},
        {"ranks": 3},
        {"pattern": "(a+)+$"},
        {"special": {"<|endoftext|>": 3}},
        {"name": None},
        {"name": "../x"},  # it becomes part of the name of a folder
        {"name": "char"},
        *(b"", b"\xff\xfe", b"[1, 2]", b"{", b"[" * 100_000),  # the whole file
    ],
    ids=lambda change: str(change)[:30],
)
def test_inconsistent_tokenizer_file_is_an_error(tmp_path, change):
    path = tmp_path / "t.json"
    if isinstance(change, dict):
        change = json.dumps({**json.loads(tokenizer.byte().to_json()), **change}).encode()
    path.write_bytes(change)
    with pytest.raises(UserError, match="t.json: not a tokenizer"):
        stored.load(path)


@pytest.mark.parametrize("name", ["gpt3", "bpe", "bpe:", "bpe:255", "bpe:1048577", "bpe:-3", "bpe:1e3", ""])
def test_unknown_tokenizer_name_is_an_error(name):
    with pytest.raises(UserError, match="expected"):
        tokenizer.check_name(name)


def test_missing_vocabulary_error_names_the_file(monkeypatch, tmp_path):
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="vocab.bpe"):
        tokenizer.gpt2()


# ---- In parts --------------------------------------------------------------------------------------------

# Characters that GPT2_PIECES treats differently, or that regex engines may disagree on
TRICKY = " \n\t'sld1!\u00a0\u3000\x1c\u0085é中\u0301٣"


def pairs_tokenizer():
    """A tokenizer with GPT-2's pieces and a token for every pair of bytes of TRICKY."""
    singles = [bytes([b]) for b in range(256)]
    letters = sorted(set(TRICKY.encode()))
    return tokenizer.Tokenizer(
        "pairs", tokenizer.GPT2_PIECES, singles + [bytes([a, b]) for a in letters for b in letters]
    )


def test_safe_cuts_change_no_token():
    tok, cuts = pairs_tokenizer(), 0
    for letters in itertools.product(TRICKY, repeat=4):
        text = "".join(letters)
        for match in tokenizer.SAFE_CUT.finditer(text):
            left, right = tok.encode(text[: match.start()]), tok.encode(text[match.start() :])
            assert [*left, *right] == tok.encode(text).tolist(), (text, match.start())
            cuts += 1
    assert cuts > 10_000
    assert [*tok.encode("s"), *tok.encode(" s")] == tok.encode("s s").tolist()
    assert [*tok.encode("s "), *tok.encode("s")] != tok.encode("s s").tolist()  # an unsafe cut


@pytest.mark.parametrize("name", ["gpt2", "byte", "char", "bpe:300", "pairs"])
def test_encoding_in_parts_equals_encoding_at_once(name, request):
    rng = random.Random(1)
    sentence = "It's 1,000 kilometres...\r\n\r\n  they'll\tsay:\u3000'naïve' 中文。文字 😀<|endoftext|>  \n"
    text = "".join(rng.choice([*TRICKY, *TRICKY, sentence]) for _ in range(300)) + sentence
    if name == "gpt2":
        tok = request.getfixturevalue("gpt2_tokenizer")
    else:
        tok = pairs_tokenizer() if name == "pairs" else tokenizer.make(name, text * 3)
    whole = tok.encode(text).tolist()
    places = [[at] for at in range(len(text) + 1)]
    places += [sorted(rng.sample(range(len(text)), 40)) for _ in range(20)] + [list(range(len(text)))]
    for cuts in places:
        parts = (text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)]))
        assert np.concatenate(list(tok.encode_stream(parts))).tolist() == whole, cuts
    assert tok.decode(whole) == text


def test_vocabulary_learned_in_parts_is_the_same():
    text = "the 中文 they'll see " * 50
    parts = [text[at : at + 7] for at in range(0, len(text), 7)]
    for name in ("char", "bpe:270"):
        assert tokenizer.make(name, iter(parts)).ranks == tokenizer.make(name, text).ranks


def test_parts_are_held_back_only_as_long_as_needed():
    long = [("word " * 100)[:-1]] * 100
    assert max(map(len, tokenizer.cut_safely(long))) < 2 * len(long[0])
    assert list(tokenizer.cut_safely(["aaa"] * 5)) == ["a" * 15]
