"""Tokenizers of transformers: the same tokens and texts as AutoTokenizer, or refused by name."""

import json
import sys

import numpy as np
import pytest

import gpt2
from gpt2.commands import sample
from gpt2.data import corpora, huggingface, stored, tokenizer
from gpt2.data.tokenizer_json import BYTE_LEVEL, BytePairTokenizer, LibraryTokenizer
from gpt2.data.tokens import read_tokens
from gpt2.errors import UserError
from gpt2.weights import huggingface as model_files
from tests.support.slow import rest_slow, sampled

try:
    import transformers

    from tests.support.which import tokenizers as made

    NAMES = list(made.variants()) if transformers.__version__ >= "5" else []
except ImportError:
    NAMES = []
peers = pytest.mark.skipif(not NAMES, reason="needs transformers 5")


def both(folder, name):
    """A variant as AutoTokenizer reads it, and as it is read here."""
    write, by_tiktoken = made.variants()[name]
    write(folder)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), huggingface.read(folder)
    assert isinstance(ours, BytePairTokenizer if by_tiktoken else LibraryTokenizer)
    return theirs, ours


def check_equal(theirs, ours, count, seed):
    """Compare ids and decoded texts, whole and as a stream."""
    for text in made.sentences(count, seed, [*theirs.get_added_vocab(), "the", "new", "qxz"]):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text).tolist() == ids, text
        assert ours.encode(text, add_special_tokens=True).tolist() == theirs.encode(text), text
        decoded, decoder = theirs.decode(ids), ours.decoder()
        assert ours.decode(ids) == decoded, text
        assert "".join(map(decoder.feed, ids)) + decoder.close() == decoded, text


@peers
@pytest.mark.parametrize(
    "name, count",
    [*((name, 40) for name in NAMES)]
    + rest_slow([(name, 10_000) for name in sampled(("many special", "stripping"), NAMES)], 0),
)
def test_tokens_are_those_of_autotokenizer(tmp_path, name, count):
    theirs, ours = both(tmp_path / "made", name)
    check_equal(theirs, ours, count, seed=count)
    assert ours.vocab_size == 1 + max(theirs.get_vocab().values())
    assert theirs.eos_token_id in (None, ours.end_of_text)


@peers
@pytest.mark.parametrize("name", rest_slow(NAMES))
def test_saved_and_written_back_it_is_the_same(tmp_path, name):
    theirs, ours = both(tmp_path / "made", name)
    ours.save(tmp_path / "run.json")
    (tmp_path / "back").mkdir()
    for file, content in model_files.tokenizer_contents(ours, 64).items():
        (tmp_path / "back" / file).write_bytes(content)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for words in (stored.load(tmp_path / "run.json"), huggingface.read(tmp_path / "back")):
        check_equal(theirs, words, 20, seed=1)
    for text in made.sentences(20, 2, [*theirs.get_added_vocab()]):
        ids = theirs.encode(text)
        assert again.encode(text) == ids and again.decode(ids) == theirs.decode(ids)
    assert again.eos_token in (theirs.eos_token, tokenizer.END_OF_TEXT)


@peers
def test_sample_adds_special_tokens_when_asked(tmp_path, capsys):
    """As transformers does, a tokenizer without a template none."""
    theirs, words = both(tmp_path / "words", "template")
    model = gpt2.GPT2(gpt2.GPT2Config(words.vocab_size, 16, 1, 2, 16), seed=0)
    model.flat_params += np.random.default_rng(1).normal(0.0, 0.3, model.flat_params.shape).astype("f4")
    flags = ["--prompt", "The fox", "--max-tokens", "8", "--temperature", "0", "--logprobs"]
    for name, tokenizer_of in (("with", words), ("without", tokenizer.byte())):
        gpt2.save(model, tmp_path / name, tokenizer_of)
        ask = ["--init", str(tmp_path / name), *flags]
        for more, asked in (([], False), (["--add-special-tokens"], True)):
            assert sample.main([*ask, *more]) == 0
            printed, note = capsys.readouterr()
            assert ("no template" in note) == (asked and name == "without")
            found = json.loads(printed)["samples"][0]["tokens"]
            ids = theirs.encode("The fox", add_special_tokens=asked) if name == "with" else [*b"The fox"]
            assert found == list(gpt2.generate(model, ids, 8, temperature=0)), (name, asked)
    assert len(theirs.encode("The fox")) == 2 + len(theirs.encode("The fox", add_special_tokens=False))


@peers
@pytest.mark.parametrize("name", ["added tokens", "blank before", "pattern 4", "NFC", "trained"])
def test_a_text_in_parts_has_the_same_tokens(tmp_path, name):
    _, ours = both(tmp_path / "made", name)
    text = "".join(made.sentences(200, 3, list(ours.special)))
    parts = [text[i : i + 97] for i in range(0, len(text), 97)]
    assert np.concatenate(list(ours.encode_stream(parts))).tolist() == ours.encode(text).tolist()


# ---- Without transformers ----------------------------------------------------------------------------------


def write_json(folder, **changes):
    """A tokenizer.json of 262 tokens and an end of text; returns the Tokenizer that it is made of."""
    words = tokenizer.bpe("a cat, a hat, a bat. " * 20, 262)
    contents = model_files.tokenizer_contents(words, 64)
    merges = contents["merges.txt"].decode().splitlines()[1:]
    model = {"type": "BPE", "vocab": json.loads(contents["vocab.json"]), "merges": merges}
    fields = {"model": model, "added_tokens": [], "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL}
    (folder / "tokenizer.json").write_text(json.dumps({**fields, **changes}))
    return words


def write_settings(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


LLAMA = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
WHOLE = {**BYTE_LEVEL, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": LLAMA}, "behavior": "Isolated"}
END = {"id": 262, "content": "<|endoftext|>", "special": True, "normalized": False}


@pytest.mark.parametrize(
    "change, reason",
    [
        (dict(pre_tokenizer={"type": "Whitespace"}), "into pieces in a way of its own, by Whitespace"),
        (dict(pre_tokenizer=None), "cuts text into pieces in a way of its own, by nothing"),
        (dict(pre_tokenizer=WHOLE), "in a way of its own, by ByteLevel"),
        (
            dict(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, WHOLE]}),
            "in a way of its own, by Sequence of Split, ByteLevel",
        ),
        (dict(normalizer={"type": "NFC"}), "it changes the text first, by NFC"),
        (dict(decoder=None), "its tokens become text by nothing"),
        (
            dict(added_tokens=[{**END, "lstrip": True}]),
            "its token '<.endoftext.>' takes only whole words, or",
        ),
        (dict(model={"type": "WordPiece", "vocab": {}}), "its model is WordPiece"),
        (dict(model={"vocab": {"a": 0}, "merges": []}), "255 of the 256 bytes have no token"),
    ],
)
def test_without_the_tokenizers_package_one_line_says_what_to_install(tmp_path, monkeypatch, change, reason):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    words = write_json(tmp_path)
    text = "a cat's hat, 1234<|endoftext|>"
    assert np.array_equal(huggingface.read(tmp_path).encode(text), words.encode(text))
    write_json(tmp_path, **change)
    message = f"json: needs the tokenizers package .*install tokenizers.*, as .*{reason}"
    with pytest.raises(UserError, match=message):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    "files, message",
    [
        ({"vocab.json": "[]"}, "vocab.json: expected a JSON object, found list"),
        ({"vocab.json": "{"}, "vocab.json: not JSON"),
        ({"vocab.json": '{"a": 0, "b": "x"}', "merges.txt": ""}, "its ids are not different numbers from 0"),
        ({"vocab.json": '{"a": 0, "b": 0}', "merges.txt": ""}, "its ids are not different numbers from 0"),
        ({"vocab.json": "{}"}, "merges.txt: No such file"),
        ({"tokenizer.json": "{}"}, "tokenizer.json: not a tokenizer of transformers .KeyError: 'model'"),
        (
            {"tokenizer.json": "{}", "tokenizer_config.json": '{"tokenizer_class": "T5TokenizerFast"}'},
            "tokenizer_config.json: tokenizer_class is T5Tokenizer, expected GPT2Tokenizer, PreTrained",
        ),
        (
            {"vocab.json": "{}", "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}'},
            "tokenizer.json: is missing, and PreTrainedTokenizer needs it",
        ),
        ({"spiece.model": ""}, "spiece.model: this kind of tokenizer cannot be read; load it with"),
        (
            {"tokenizer.json": '{"model": {"dropout": 0.1, "vocab": {}, "merges": []}}'},
            "has dropout 0.1, so that a text has other tokens each time; set it to null",
        ),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        huggingface.read(tmp_path)
    assert "\n" not in str(error.value)


def test_tokenizer_json_comes_before_the_old_files_and_a_word_that_is_special_is_cut_out(tmp_path):
    for name, content in model_files.tokenizer_contents(tokenizer.bpe("on, in " * 20, 258), 64).items():
        (tmp_path / name).write_bytes(content)
    words = write_json(tmp_path)  # later, into the same folder
    assert huggingface.read(tmp_path).ranks == words.ranks
    plain = words.encode("a cat, bat").tolist()
    write_settings(tmp_path, tokenizer_class="GPT2Tokenizer", pad_token="at", eos_token=None)
    cut = huggingface.read(tmp_path)
    assert cut.decode(cut.encode("a cat, bat")) == "a cat, bat" and cut.encode("a cat, bat").tolist() != plain
    assert cut.encode("at").tolist() == [cut.special["at"]] and len(cut.encode("")) == 0


def test_released_vocabulary_has_words_that_are_names_of_fields(gpt2_tokenizer, tmp_path):
    for name, content in model_files.tokenizer_contents(gpt2_tokenizer, 1024).items():
        (tmp_path / name).write_bytes(content)
    words = huggingface.read(tmp_path)
    assert words.ranks == gpt2_tokenizer.ranks and words.name == "gpt2"
    assert {"format", "padding"} < words.ids.keys()
    text = "It's <|endoftext|>"
    assert words.encode(text).tolist() == [*gpt2_tokenizer.encode("It's "), words.end_of_text]


def test_tokens_beyond_the_rows_of_a_model_are_ordinary_text(tmp_path):
    """GPT2Tokenizer adds an end of text with an id after all others, which the model may lack."""
    write_json(tmp_path)
    write_settings(tmp_path, tokenizer_class="GPT2Tokenizer")
    words = huggingface.read(tmp_path)
    assert words.vocab_size == 263 and words.encode("<|endoftext|>").tolist() == [words.end_of_text] == [262]
    fitted = words.sized(262)
    assert fitted.vocab_size == 262 and fitted.end_of_text is None and len(fitted.encode("<|endoftext|>")) > 1
    padded = words.sized(300)
    assert padded.vocab_size == 300 and padded.decode([97, 299]) == words.decode([97])
    again = stored.from_json("x", padded.to_json().encode())
    assert again.vocab_size == 300 and again.name == padded.name


def test_a_tokenizer_alone_is_loaded_from_its_folder_or_file(tmp_path):
    words = write_json(tmp_path)
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        assert gpt2.load_tokenizer(name).encode("a cat").tolist() == words.encode("a cat").tolist()
    words.save(tmp_path / "mine.json")
    assert gpt2.load_tokenizer(tmp_path / "mine.json").ranks == words.ranks
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: no tokenizer in this folder; expected tokenizer.json, vocab"):
        gpt2.load_tokenizer(tmp_path / "empty")


def test_text_is_encoded_with_a_tokenizer_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    words = write_json(tmp_path, added_tokens=[END])
    (tmp_path / "my.txt").write_text("a cat, a hat<|endoftext|> " * 50)
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        prepared = corpora.prepare(tmp_path / "my.txt", str(name))
        tokens = read_tokens(prepared.train)
        assert np.count_nonzero(tokens == 262) == 45 and prepared.tokenizer.ranks == words.ranks
    with pytest.raises(UserError, match="no tokenizer in this folder"):
        (tmp_path / "empty").mkdir()
        corpora.prepare(tmp_path / "my.txt", str(tmp_path / "empty"))
