"""Texts in many files, token files of other programs, and the order in which they are read."""

import gzip
import json
import pickle
import sys

import numpy as np
import pytest

from gpt2.data import corpora, llmc
from gpt2.data.orders import ORDERS
from gpt2.data.tokens import GROUP, Shards, order_of, read_tokens, write_tokens
from gpt2.errors import UserError
from gpt2.train.recipe import new_settings
from gpt2.train.resolve import resolve
from tests.support import small_run


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder with documents of each kind: a name and its text, in order."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    documents = [f"document {i}: {'to be or not to be, ' * i}end\n" for i in range(1, 9)]
    (folder / "a.txt").write_text(documents[0])
    (folder / "b.txt.gz").write_bytes(gzip.compress(documents[1].encode()))
    lines = [json.dumps({"text": text, "id": 1}) for text in documents[2:]]
    (folder / "c.jsonl").write_text("\n\n".join(lines[:2]) + "\n")
    (folder / "sub" / "d.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[2:]).encode()))
    (folder / "notes.md").write_text("not a text")
    return documents


EVERYTHING = ("texts", "texts/a.txt,texts/b.txt.gz,texts/c.jsonl,texts/sub/d.jsonl.gz")


@pytest.mark.parametrize("data", EVERYTHING)
def test_documents_are_joined_by_the_end_of_text_and_cut_at_a_border(texts, data, gpt2_tokenizer):
    prepared = corpora.prepare(data, gpt2_tokenizer, val_fraction=0.3)
    train, val = (list(read_tokens(path)) for path in (prepared.train, prepared.val))
    end = gpt2_tokenizer.end_of_text

    def joined(documents):
        return [t for d in documents for t in (end, *gpt2_tokenizer.encode(d))][1:]

    assert train == joined(texts[:6]) and val == joined(texts[6:])
    assert [name for name, _ in prepared.files] == ["a.txt", "b.txt.gz", "c.jsonl", "d.jsonl.gz"]


def test_pattern_and_a_text_to_validate_on(texts):
    prepared = corpora.prepare("texts/?.txt*", "char", val_data="texts/c.jsonl")
    train, val = (prepared.tokenizer.decode(read_tokens(path)) for path in (prepared.train, prepared.val))
    assert train == texts[0] + "\n" + texts[1] and val == texts[2] + "\n" + texts[3]


def test_parquet_is_read_with_pyarrow(texts, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match="a.parquet: parquet is read with pyarrow: .*pip install pyarrow"):
            corpora.prepare("a.parquet", "byte")
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    prepared = corpora.prepare("a.parquet", "byte", val_data="texts/a.txt")
    assert prepared.tokenizer.decode(read_tokens(prepared.train)) == "\n".join(texts)
    parquet.write_table(pyarrow.table({"body": texts}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b.parquet: no column 'text' \(it has body\)"):
        corpora.prepare("b.parquet", "byte")
    (tmp_path / "b.parquet").write_text("not one")
    with pytest.raises(UserError, match="b.parquet: not a parquet file"):
        corpora.prepare("b.parquet", "byte")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"text": "a"}\n\n{"text": \n', "x.jsonl:3: this line is not JSON (Expecting value"),
        ("x.jsonl", b'{"text": "a"}\n{"txt": "b"}', "x.jsonl:2: no field 'text' (it has txt)"),
        ("x.jsonl", b'{"text": 3}', "x.jsonl:1: the field 'text' is a number, expected a text"),
        ("x.jsonl", b"[1]", "x.jsonl:1: expected an object, {...}, and this line is a list"),
        ("x.jsonl", b'{"text": "\xff"}', "x.jsonl:1: this line is not JSON ('utf-8' codec"),
        ("x.jsonl", b"\n", "x.jsonl: the file is empty"),
        ("x.txt", b"", "x.txt: the file is empty"),
        ("x.txt.gz", gzip.compress(b"to be or not" * 9, mtime=0)[:-9], "x.txt.gz: damaged or cut short"),
        ("x.jsonl.gz", b"not compressed", "x.jsonl.gz: Not a gzipped file"),
        ("x.jsonl", b'{"prompt": "a"}', "x.jsonl:1: no field 'completion' (it has prompt)"),
        (
            "x.jsonl",
            b'{"messages": [{"role": "user", "content": "a"}]}',
            "x.jsonl:1: no message has the role",
        ),
        ("x.jsonl", b'{"messages": [{"role": "user"}]}', "x.jsonl:1: message 0: no field 'content'"),
        ("x.jsonl", b'{"messages": "hello"}', "x.jsonl:1: the field 'messages' is not a list of objects"),
    ],
)
def test_error_names_file_and_line_and_what_was_prepared_stays(texts, tmp_path, name, content, message):
    earlier = corpora.prepare("texts", "byte", tmp_path / "out")
    before = earlier.train.read_bytes()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        corpora.prepare(name, "byte", tmp_path / "out")
    assert str(error.value).startswith(f"data {message}") and "\n" not in str(error.value)
    assert earlier.train.read_bytes() == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("nothing", "this folder has no texts (.txt, "),
        ("*.nothing", "no file has a name of this pattern"),
        ("a_train.bin,texts/a.txt", "a text among token files"),
    ],
)
def test_name_that_stands_for_no_text_is_an_error(texts, tmp_path, data, message):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError) as error:
        corpora.prepare(data, "byte")
    assert message in str(error.value)


def test_resumed_run_names_the_file_that_changed(texts, tmp_path):
    (tmp_path / "texts" / "a.txt").write_text(texts[0] * 9)
    settings = new_settings(
        dict(data="texts", tokenizer="byte", steps=1, warmup=0, n_layer=1, n_embd=4, n_head=1, out="run")
        | dict(block_size=8, batch_size=2, sample_tokens=0, parallel="none", compile="off", backward="manual")
    )
    run = resolve(settings)
    (tmp_path / "run").mkdir()
    run.begin(tmp_path / "run")
    run.save()
    run.close()
    (tmp_path / "texts" / "c.jsonl").write_text('{"text": "another"}')
    with pytest.raises(UserError, match=r"^c\.jsonl of .*texts: text or tokens have changed since"):
        resolve(settings).load(tmp_path / "run")


# ---- Token files -------------------------------------------------------------------------------------------


@pytest.fixture
def four_shards(tmp_path):
    """Shards of four lengths, whose tokens count on from one to the next."""
    edges = np.cumsum([0, 17 * 6 + 4, 6 * 5 + 1, 6 * 9 + 3, 6 * 2 + 2])
    for i, (start, stop) in enumerate(zip(edges, edges[1:])):
        write_tokens(tmp_path / f"x_train_{i + 1:06d}.bin", np.arange(start, stop))
    write_tokens(tmp_path / "x_val_000000.bin", np.arange(70_000, 70_050))
    return str(tmp_path / "x_train_*.bin")


def test_shards_are_one_array_with_validation_found_by_name(four_shards, tmp_path, gpt2_tokenizer):
    prepared = corpora.prepare(four_shards, gpt2_tokenizer)
    train, val = prepared.read()
    assert isinstance(train, Shards) and len(train) == 208
    assert train[3:150].tolist() == list(range(3, 150))
    window = np.random.default_rng(0).integers(0, 208, (5, 4))
    assert np.array_equal(train[window], window) and np.array_equal(train.dtype, "uint16")
    assert val.dtype == "uint32" and val[0] == 70_000  # llm.c's files of Llama 3's tokens
    first = corpora.prepare(str(tmp_path / "x_train_000001.bin"), gpt2_tokenizer)
    assert first.val.name == "x_val_000000.bin"
    (tmp_path / "x_val_000000.bin").rename(tmp_path / "y.bin")
    with pytest.raises(UserError, match=r"no validation file x_val_\*.bin beside it; name one with val_data"):
        corpora.prepare(four_shards)
    assert len(corpora.prepare(four_shards, gpt2_tokenizer, val_data=str(tmp_path / "y.bin")).read()[1]) == 50
    path = tmp_path / "x_train_000002.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="x_train_000002.bin: the header promises 31 tokens, the file has 30"):
        corpora.prepare(four_shards, gpt2_tokenizer, val_data=str(tmp_path / "y.bin"))


def test_shards_are_trained_on_in_llmcs_order(four_shards, tmp_path):
    """First tokens of the batches that llm.c's dataloader.h, compiled, gives for these files (B=2, T=3): two
    epochs of 33, and for validation without shuffling."""
    tokens = read_tokens(sorted(tmp_path.glob("x_train_*.bin")))
    loader = llmc.LlmcLoader(tokens, 2, 3)
    firsts = [int(loader.next_batch()[0][0, 0]) for _ in range(66)]
    assert firsts == LLMC_ORDER
    assert [int(loader.batch(k)[0][0, 0]) for k in (65, 3, 40)] == [LLMC_ORDER[k] for k in (65, 3, 40)]
    batches = ORDERS["llm.c"].validation(tokens, 2, 3, 35)
    in_order = [*range(0, 102, 6), *range(106, 136, 6), *range(137, 191, 6), *range(194, 206, 6), 0, 6]
    assert [int(inputs[0, 0]) for inputs, _ in batches] == in_order


LLMC_ORDER = [
    112, 106, 124, 118, 130, 78, 30, 96, 84, 54, 42, 90, 18, 60, 6, 24, 72, 12, 0, 48, 36, 66,
    194, 200, 173, 161, 137, 179, 149, 155, 143, 167, 185, 112, 106, 118, 124, 130, 200, 194, 54, 12, 36, 90,
    48, 18, 72, 60, 96, 24, 78, 66, 6, 30, 42, 84, 0, 161, 167, 173, 149, 185, 179, 155, 137, 143,
]  # fmt: skip


@pytest.mark.parametrize("meta", (True, False))
def test_nanogpts_folder(tmp_path, meta, gpt2_tokenizer):
    """Tokens without a header; meta.pkl has the characters, else they are GPT-2's."""
    characters = "\n !abc"
    ids = np.random.default_rng(0).integers(0, len(characters), 100).astype(np.uint16)
    ids[:80].tofile(tmp_path / "train.bin")
    ids[80:].tofile(tmp_path / "val.bin")
    if meta:
        itos = dict(enumerate(characters))
        content = {"vocab_size": len(itos), "itos": itos, "stoi": {c: i for i, c in itos.items()}}
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps(content))
    prepared = corpora.prepare(str(tmp_path))
    train, val = prepared.read()
    assert train.tolist() == ids[:80].tolist() and val.tolist() == ids[80:].tolist()
    assert prepared.tokenizer.name == ("char" if meta else "gpt2")
    if meta:
        assert prepared.tokenizer.decode(ids) == "".join(characters[i] for i in ids)
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": print}))
        with pytest.raises(UserError, match="meta.pkl: "):
            corpora.prepare(str(tmp_path))


def test_folder_that_gpt2_data_wrote_is_read_with_its_tokenizer(texts, tmp_path):
    corpora.prepare("texts", "bpe:270", tmp_path / "tokens")
    prepared = corpora.prepare(str(tmp_path / "tokens"))
    assert prepared.tokenizer.name == "bpe:270" and prepared.elsewhere


def test_order_of_many_sequences_is_a_permutation_in_the_memory_of_one_group(monkeypatch):
    monkeypatch.setattr("gpt2.data.tokens.GROUP", 8)
    for count in (7, 8, 9, 16, 43):
        visited = []
        for group in range(-(-count // 8)):
            first, order = order_of(count, group, np.random.default_rng([1, count]))
            assert len(order) <= 8
            visited += list(first + order)
        assert sorted(visited) == list(range(count)) and (count < 9 or visited != sorted(visited))
    assert GROUP == 1 << 20


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's count of memory")
@pytest.mark.parametrize("order", ["epochs", "llm.c"])
def test_ten_gigabytes_of_tokens_need_little_memory(tmp_path, order):
    """Sparse files: what check_parts, the fingerprint and 3000 batches keep in memory."""
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 1_000_000_000
    for i in range(5):
        with open(tmp_path / f"x_train_{i}.bin", "wb") as file:
            file.write(header.tobytes())
            file.truncate(1024 + 2_000_000_000)
    script = (
        "import sys, re\nfrom pathlib import Path\n"
        "from gpt2.data import fingerprint, tokens\nfrom gpt2.data.orders import ORDERS\n"
        "most = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "train = tokens.read_tokens(sorted(Path(sys.argv[1]).glob('x_train_*')))\n"
        "loader = ORDERS[sys.argv[2]].loader(train, 8, 64, 0)\n"
        "assert tokens.largest(train) == 0\n"
        "fingerprint._checksums(train)\n"
        "for _ in range(3000): loader.next_batch()\n"
        "print(len(train), most())"
    )
    done = small_run.python(script, tmp_path, order, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == 5_000_000_000 and peak < 200_000  # kB
