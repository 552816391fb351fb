"""Token files, and the batches drawn from them."""

from collections import Counter

import numpy as np
import pytest

from gpt2.data import tokens
from gpt2.data.tokens import Epochs, Loader, evenly, read_tokens, write_token_stream, write_tokens
from gpt2.errors import UserError


def test_token_file_has_the_format_of_llm_c(tmp_path):
    path = tmp_path / "t.bin"
    write_tokens(path, [5, 65535, 0])
    content = path.read_bytes()
    header = np.frombuffer(content[:1024], "<i4")
    assert list(header[:3]) == [20240520, 1, 3] and not header[3:].any()
    assert content[1024:] == b"\x05\x00\xff\xff\x00\x00"
    assert list(read_tokens(path)) == [5, 65535, 0]


def test_token_file_of_a_large_vocabulary_is_that_of_llm_cs_llama3(tmp_path):
    path = tmp_path / "t.bin"
    write_tokens(path, [65536, 2])
    content = path.read_bytes()
    assert list(np.frombuffer(content[:12], "<i4")) == [20240801, 7, 2]
    assert content[1024:] == b"\0\0\1\0\2\0\0\0" and list(read_tokens(path)) == [65536, 2]
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match="promises 2 tokens, the file has 1.75"):
        read_tokens(path)
    # the vocabulary decides, not the tokens that a part of the text happens to have
    write_token_stream(path, [np.array([3])], vocab_size=65537)
    assert read_tokens(path).dtype == np.uint32


def test_ids_beyond_the_range_are_an_error(tmp_path):
    for ids, size in (([1, 65536], 1 << 16), ([-1, 3], 1 << 16), ([1, 1 << 32], 1 << 17)):
        with pytest.raises(UserError, match="a token file of uint(16|32) holds 0..(65535|4294967295)"):
            write_token_stream(tmp_path / "t.bin", [np.array(ids)], size)


def test_more_tokens_than_the_header_can_count_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "MOST", 5)
    write_tokens(tmp_path / "t.bin", range(5))
    with pytest.raises(UserError, match="a token file holds at most 5 tokens"):
        write_tokens(tmp_path / "t.bin", range(6))
    assert len(read_tokens(tmp_path / "t.bin")) == 5


def edited(content, at, value):
    header = np.frombuffer(content[: tokens.HEADER_BYTES], "<i4").copy()
    header[at] = value
    return header.tobytes() + content[tokens.HEADER_BYTES :]


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda c: b"", "0 bytes, a token file has a header of 1024; `.*data` makes token files of a text$"),
        (lambda c: b"To be" * 300, "a token file begins with 20240520; `.*data` makes"),
        (lambda c: c[:1000], "1000 bytes"),
        (lambda c: edited(c, 0, 7), "begins with 7, a token file begins with 20240520"),
        (lambda c: edited(c, 1, 2), "version 2"),
        (lambda c: edited(c, 2, 11), "promises 11 tokens, the file has 10"),
        (lambda c: edited(c, 2, -1), "promises -1 tokens"),
        (lambda c: c[:-1], "promises 10 tokens, the file has 9.5"),
        (lambda c: c + b"\0\0", "promises 10 tokens, the file has 11"),
        (lambda c: edited(c[: tokens.HEADER_BYTES], 2, 0), "holds no tokens"),
    ],
)
def test_damaged_token_file_is_an_error(tmp_path, damage, message):
    path = tmp_path / "t.bin"
    write_tokens(path, range(10))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        read_tokens(path)


def test_targets_are_the_tokens_after_the_inputs():
    loader = Loader(np.arange(100), B=3, T=7, seed=1)
    inputs, targets = loader.next_batch()
    assert inputs.shape == targets.shape == (3, 7) and inputs.dtype == np.int32
    assert (targets == inputs + 1).all()
    assert (inputs == inputs[:, :1] + np.arange(7)).all()


def test_every_start_in_the_corpus_is_drawn():
    loader = Loader(np.arange(10), B=4, T=3)
    seen = {int(row[0]) for _ in range(50) for row in loader.next_batch()[0]}
    assert seen == set(range(7))  # 6 is the last start with three inputs and a next token


def test_batches_depend_on_seed_and_position_only():
    one, same, other = (Loader(np.arange(1000), 2, 5, seed=seed) for seed in (1, 1, 2))
    first = [one.next_batch()[0] for _ in range(4)]
    assert all((same.next_batch()[0] == batch).all() for batch in first)
    assert any((other.next_batch()[0] != batch).any() for batch in first)
    assert (first[0] != first[1]).any()


def test_loader_resumes_from_its_state():
    one, two = Loader(np.arange(1000), 2, 5, seed=3), Loader(np.arange(1000), 2, 5, seed=99)
    one.next_batch()
    two.load_state(one.state())
    for _ in range(3):
        assert (one.next_batch()[0] == two.next_batch()[0]).all()


def test_each_epoch_visits_every_token_once_in_an_order_of_its_own():
    loader = Epochs(np.arange(1000), B=7, T=10, seed=4)
    assert loader.pieces == 98
    seen = [Counter(), Counter()]
    for epoch in range(2):
        for _ in range(14):  # 14 batches of 7 are the 98 sequences
            inputs, targets = loader.next_batch()
            assert (targets == inputs + 1).all()
            seen[epoch].update(inputs.ravel().tolist())
    for counts in seen:
        assert len(counts) == 980 and set(counts.values()) == {1}
        assert set(range(20, 970)) < set(counts)
    assert set(seen[0]) != set(seen[1])  # the second epoch has another offset, and order
    loader = Epochs(np.arange(1000), B=98, T=10, seed=4)
    orders = [np.argsort(loader.batch(k)[0][:, 0]) for k in range(2)]
    assert (orders[0] != orders[1]).any() and (orders[0] != np.arange(98)).any()


def test_batches_cross_epochs_and_can_be_read_in_any_order():
    loader = Epochs(np.arange(1000), B=5, T=10, seed=4)
    in_turn = [loader.next_batch()[0] for _ in range(60)]
    again = Epochs(np.arange(1000), B=5, T=10, seed=99)
    again.load_state(dict(seed=4, position=0))
    for k in (59, 0, 19, 20, 40):
        assert (again.batch(k)[0] == in_turn[k]).all()


@pytest.mark.parametrize("size", [1, 4, 14])
def test_other_batch_size_continues_with_the_next_sequence(size):
    """No token repeats within an epoch even if a run is resumed with another --batch-size."""
    loader = Epochs(np.arange(1000), B=7, T=10, seed=4)
    rows = [row for _ in range(6) for row in loader.next_batch()[0]]
    for B in (size, 2):
        state = loader.state()
        loader = Epochs(np.arange(1000), B=B, T=10, seed=99)
        loader.load_state(state)
        rows += [row for _ in range(28 // B) for row in loader.next_batch()[0]]
    assert len(rows) == loader.pieces == 98
    assert len({int(token) for row in rows for token in row}) == 980


@pytest.mark.parametrize("count", range(9, 27))
def test_epoch_of_a_short_corpus_stays_within_it(count):
    loader = Epochs(np.arange(count), B=3, T=8, seed=0)
    starts = {int(row[0]) for _ in range(60) for row in loader.next_batch()[0]}
    assert min(starts) >= 0 and max(starts) + 8 < count
    if count < 17:
        assert starts == set(range(count - 8))


def test_corpus_shorter_than_a_block_is_an_error():
    message = "^the training text has 1 token, a sequence of block_size 7 needs 8;"
    with pytest.raises(UserError, match=message):
        Loader(np.arange(1), B=3, T=7)
    with pytest.raises(UserError, match="8 tokens, a sequence of block_size 8 needs 9"):
        Loader(np.arange(8), B=1, T=8)
    Loader(np.arange(9), B=1, T=8).next_batch()
    with pytest.raises(UserError, match="validation split has 8 tokens"):
        list(evenly(np.arange(8), B=1, T=8))


def test_evaluation_covers_the_split_once():
    batches = list(evenly(np.arange(33), B=3, T=4))
    inputs = np.concatenate([inputs for inputs, _ in batches])
    assert (inputs.ravel() == np.arange(32)).all()
    assert [len(inputs) for inputs, _ in batches] == [3, 3, 2]
    assert all((targets == inputs + 1).all() for inputs, targets in batches)


def test_evaluation_on_a_few_batches_covers_the_split_evenly():
    starts = [int(row[0]) for inputs, _ in evenly(np.arange(1001), B=2, T=10, batches=5) for row in inputs]
    assert starts == [100 * i for i in range(10)]
