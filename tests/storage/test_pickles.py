"""Files of torch.save and pickle: read as PyTorch reads them, and nothing that they name runs."""

import os
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from gpt2.errors import UserError
from gpt2.storage.pickles import StoredTensor, load


def plain(value):
    """A loaded value with arrays in place of its tensors."""
    if isinstance(value, StoredTensor):
        return value.array()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


META = {
    "vocab_size": 3,
    "itos": {0: "a", 1: "é", 2: "\n"},
    "more": [1.5, (True, None, 1 << 70), b"x", {}, ()],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_objects_are_read_in_every_protocol(tmp_path, protocol):
    path = tmp_path / "meta.pkl"
    meta = META if protocol > 2 else {**META, "more": META["more"][:2]}  # bytes are a call of codecs there
    path.write_bytes(pickle.dumps(meta, protocol))
    assert load(path) == meta
    path.write_bytes(pickle.dumps(OrderedDict(b=1, a=2), protocol))
    assert list(load(path).items()) == [("b", 1), ("a", 2)] and type(load(path)) is not OrderedDict


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_those_of_torch(tmp_path, zipped):
    """Of every type; views of one storage, transposed, empty, and of no axes."""
    torch = pytest.importorskip("torch")
    path, rng = tmp_path / "x.pt", np.random.default_rng(0)
    whole = torch.from_numpy(rng.standard_normal((5, 7)).astype("f4"))
    names = "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
    tensors = {name: (whole * 3).to(getattr(torch, name)) for name in names}
    tensors |= {"whole": whole, "part": whole[1:4, 2:6], "transposed": whole.T, "empty": whole[:0]}
    tensors |= {"number": torch.tensor(2.5), "alike": torch.ones(1).expand(4, 6)}
    tensors["parameter"] = torch.nn.Parameter(whole[2])
    layer = torch.nn.Linear(2, 3)
    torch.save(
        {"t": tensors, "of a module": layer.state_dict(), "n": 3}, path, _use_new_zipfile_serialization=zipped
    )
    found = plain(load(path))
    assert found["n"] == 3
    np.testing.assert_array_equal(found["of a module"]["weight"], layer.weight.detach().numpy())
    for name, tensor in tensors.items():
        expected = tensor.detach()
        if name == "bfloat16":
            expected = expected.view(torch.int16)
        array = found["t"][name]
        assert array.shape == expected.shape and not array.flags.writeable
        np.testing.assert_array_equal(array.view(expected.numpy().dtype), expected.numpy())
    assert load(path)["t"]["bfloat16"].kind == "BF16"


class Calls:
    """Pickled, a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


NAMING = [
    Calls(print, "run"),
    Calls(os.getcwd),
    Calls(getattr, [], "append"),
    Calls(pickle.loads, b"N."),
    print,
]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("naming", NAMING, ids=["print()", "getcwd()", "getattr()", "loads()", "print"])
def test_any_other_name_is_refused_and_nothing_runs(tmp_path, capsys, protocol, naming):
    raw = pickle.dumps([1, naming], protocol)
    (tmp_path / "x.pkl").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", raw)
    for path in (tmp_path / "x.pkl", tmp_path / "x.pt"):
        message = r"x\.p\w+: names \w+\.\w+, and a name in a pickle may run"
        with pytest.raises(UserError, match=message) as error:
            load(path)
        assert "\n" not in str(error.value) and not capsys.readouterr().out


def opcodes(*parts):
    return b"\x80\x02" + b"".join(parts) + b"."


TENSOR, ORDERED = b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n"
DAMAGED = {
    "empty": b"",
    "text": b"to be or not to be",
    "cut short": pickle.dumps(META, 4)[:-7],
    "a table of four billion entries": opcodes(b"N", b"r" + struct.pack("<I", 0xFFFFFFFF)),
    "an attribute of a function": opcodes(TENSOR, b"N}U\x0c__defaults__)s\x86b"),
    "an attribute of a type": opcodes(ORDERED, b"}U\x05items)sb"),
    "a tensor of texts": opcodes(TENSOR, b"(U\x01aK\x00))t", b"R"),
    "a storage of nothing": opcodes(b"U\x01aQ"),
    "another storage": opcodes(b"(U\x07storageU\x01xU\x01xU\x01xK\x01tQ"),
    "a call of text": opcodes(b"ctorch\nFloatStorage\n)R"),
    "zip without data.pkl": b"PK\x05\x06" + bytes(18),
    "header of a zip alone": b"PK\x03\x04",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_is_one_error_line(tmp_path, case):
    (tmp_path / "x.pt").write_bytes(DAMAGED[case])
    with pytest.raises(UserError, match=r"x\.pt: no file of torch\.save or pickle, or damaged \(") as error:
        load(tmp_path / "x.pt")
    assert "\n" not in str(error.value)


def test_attributes_of_an_ordered_dict_are_dropped(tmp_path):
    (tmp_path / "x.pkl").write_bytes(opcodes(ORDERED, b")R", b"}U\x05itemsNsb"))
    assert list(load(tmp_path / "x.pkl").items()) == []


def test_file_cut_short_or_packed_is_refused(tmp_path):
    """And a tensor that leaves its storage."""
    torch = pytest.importorskip("torch")
    for zipped in (True, False):
        path = tmp_path / f"{zipped}.pt"
        torch.save({"x": torch.ones(1000)}, path, _use_new_zipfile_serialization=zipped)
        path.write_bytes(path.read_bytes()[:-60])
        with pytest.raises((UserError, ValueError), match="damaged|cut short"):
            plain(load(path))
    torch.save({"x": torch.ones(4, 5)}, path := tmp_path / "x.pt")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    graph = files["x/data.pkl"]
    larger, negative = (graph.replace(b"K\x04K\x05", n + b"K\x06") for n in (b"K\x04", b"J\xff\xff\xff\xff"))
    for message, change in (
        ("is compressed", {}),
        ("leaves its storage", {"x/data.pkl": larger}),
        ("made of something else", {"x/data.pkl": negative}),
        ("big-endian", {"x/byteorder": b"big"}),
    ):
        method = zipfile.ZIP_STORED if change else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as archive:
            for file, content in {**files, **change}.items():
                archive.writestr(file, content)
        with pytest.raises((UserError, ValueError), match=message):
            plain(load(path))
