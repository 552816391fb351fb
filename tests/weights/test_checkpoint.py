"""Checkpoints: exact round trips, every damage noticed, and saves that fail leave the previous one."""

import errno
import json
import os
import pickle
import struct

import numpy as np
import pytest

import gpt2
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.weights import checkpoint

STATE = {"step": 7, "text": 'naïve " \\ 日', "nested": {"list": [1, 2.5, None, True]}}


def arrays():
    rng = np.random.default_rng(5)
    return {
        "a": rng.standard_normal((3, 4)).astype(np.float32),
        "b": rng.standard_normal(5),
        "c": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "scalar": np.array(2.5),
        "none": np.empty((0, 3)),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, arrays(), STATE)
    return path


def test_round_trip_is_exact(saved):
    loaded, state = checkpoint.load(saved)
    assert state == STATE
    assert list(loaded) == list(arrays())
    for name, array in arrays().items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
        assert loaded[name].flags.writeable


def test_special_numbers_views_and_big_endian_arrays_keep_their_values(tmp_path):
    special, whole = np.array([np.nan, -np.nan, np.inf, -0.0, 5e-324]), np.arange(24.0).reshape(4, 6)
    written = {"special": special, "view": whole[::2, 1::2], "big": whole.astype(">f8")}
    checkpoint.save(tmp_path / "c", written, {})
    loaded, _ = checkpoint.load(tmp_path / "c")
    assert loaded["special"].tobytes() == special.tobytes()
    assert (loaded["view"] == whole[::2, 1::2]).all() and (loaded["big"] == whole).all()


def test_large_array_is_written_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    array = np.random.default_rng(0).standard_normal((37, 41))
    checkpoint.save(tmp_path / "c", {"x": array}, {})
    assert (checkpoint.load(tmp_path / "c")[0]["x"] == array).all()


def test_safetensors_reads_a_checkpoint(saved):
    safetensors = pytest.importorskip("safetensors.numpy")
    theirs = safetensors.load_file(saved)
    for name, array in arrays().items():
        assert theirs[name].dtype == array.dtype and (theirs[name] == array).all()


def test_unsupported_dtype_is_refused(tmp_path):
    with pytest.raises(TypeError, match="x has dtype complex128, expected one of"):
        checkpoint.save(tmp_path / "c", {"x": np.zeros(2, complex)}, {})
    assert list(tmp_path.iterdir()) == []


# ---- Damage ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_truncation_and_a_changed_bit_at_any_byte_are_errors(saved):
    whole, rng = saved.read_bytes(), np.random.default_rng(0)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        for damaged in (whole[:at], flipped):
            saved.write_bytes(damaged)
            with pytest.raises(UserError, match="last.safetensors"):
                checkpoint.load(saved)


def test_trailing_bytes_are_an_error(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(UserError, match="does not fit the file"):
        checkpoint.load(saved)


def test_header_with_impossible_shapes_is_an_error(tmp_path):
    for shape in ([1 << 40], [1 << 40, 1 << 40], [-1], [1.5], [True], "x", [1] * 100, [0, 1 << 62, 1 << 62]):
        nbytes = 0 if shape and shape[0] == 0 else 4
        header = {
            "__metadata__": {"format": checkpoint.FORMAT, "sha256": "0" * 63 + "1", "state": "{}"},
            "x": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]},
        }
        text = json.dumps(header).encode()
        (tmp_path / "c").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * nbytes)
        with pytest.raises(UserError):
            checkpoint.load(tmp_path / "c")


class Bomb:
    def __reduce__(self):
        return os._exit, (66,)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"\xff" * 64,
        b"PK\x03\x04" + b"\0" * 60,
        pickle.dumps(Bomb()),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 5) + b'"a":1',
        struct.pack("<Q", 40_000) + b"[" * 40_000,
    ],
    ids=str,
)
def test_file_of_another_format_is_an_error(tmp_path, content):
    path = tmp_path / "c"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a checkpoint"):
        checkpoint.load(path)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        checkpoint.load(tmp_path / "nothing")


# ---- A save that fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_failed_save_leaves_the_previous_checkpoint(saved, monkeypatch, function):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(UserError, match="No space left on device, free some space; the previous checkpoint"):
        checkpoint.save(saved, {"other": np.zeros(3)}, {})
    monkeypatch.undo()
    assert checkpoint.load(saved)[1] == STATE
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_file_is_synced_before_it_is_renamed(saved, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    checkpoint.save(saved, arrays(), STATE)
    assert calls[:2] == ["fsync", "replace"]


# ---- Models ------------------------------------------------------------------------------------------------

CONFIG = GPT2Config(vocab_size=11, block_size=5, n_layer=2, n_head=3, n_embd=12)


def save_model(path, model, **state):
    checkpoint.save(path, checkpoint.model_arrays(model), {**checkpoint.model_state(model), **state})


def test_model_round_trip(tmp_path):
    model = GPT2(CONFIG, seed=3)
    file = tmp_path / "c.safetensors"
    save_model(file, model, step=4)
    again = gpt2.load(file)
    assert again.config == CONFIG and checkpoint.load(file)[1]["step"] == 4
    assert (again.flat_params == model.flat_params).all()


def test_state_that_does_not_match_the_arrays_is_an_error(tmp_path):
    model = GPT2(CONFIG)
    arrays, file = checkpoint.model_arrays(model), tmp_path / "c.safetensors"
    for change, message in (
        ({"n_layer": 10**9}, r"described is a model of 1,884,[\d,]* parameters, but .* they are cut short"),
        ({"vocab_size": 12}, r"params.wte: expected float32 \(12, 12\), found float32 \(11, 12\)"),
        ({"dtype": "float64"}, r"params.wte: expected float64 \(11, 12\), found float32 \(11, 12\)"),
    ):
        checkpoint.save(file, arrays, {"model": {**vars(CONFIG), **change}})
        with pytest.raises(UserError, match=message):
            gpt2.load(file)
    checkpoint.save(file, arrays, {})
    with pytest.raises(UserError, match="holds no model"):
        gpt2.load(file)
