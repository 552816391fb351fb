"""Spoilt files of every kind: read, or refused in one line. python -m tests.long.damage tries 20,000."""

import ast
import json
import random
import re
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpt2
from docs import house
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.weights import checkpoint, huggingface, llmc, pretrained
from tests.support.damage import CONFIG, Subject, fuzz, model, outcome, spoil, subjects

ROOT = Path(__file__).parents[1]
EVERY = subjects()
KINDS = pytest.mark.parametrize("subject", EVERY, ids=[subject.name for subject in EVERY])


def need(subject):
    if subject.make.__name__ in ("hub", "in_two_files", "all_in_one"):
        pytest.importorskip("safetensors")


@pytest.mark.slow
@KINDS
def test_spoilt_files(subject, tmp_path):
    need(subject)
    surprises = [came.text for _, _, came in fuzz(subject, tmp_path, 40, seed=1) if came.kind == "surprise"]
    assert not surprises


@pytest.mark.slow
@KINDS
def test_most_kinds_of_damage_are_noticed(subject, tmp_path):
    """That the spoiling does something: some files are refused, and for more than one reason."""
    need(subject)
    came = [came for _, _, came in fuzz(subject, tmp_path, 25, seed=2)]
    refused = [re.sub(r"\d+", "", c.text)[-60:] for c in came if c.kind == "refused"]
    assert len(refused) >= 5
    assert len(set(refused)) >= (1 if subject.name == "metrics" else 2), refused  # it has one message


@KINDS
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=300))
def test_any_bytes(subject, tmp_path, content):
    """Random bytes; also behind the first bytes of a sound one, where a magic number may be."""
    need(subject)
    if not (tmp_path / subject.file).exists():
        subject.make(tmp_path)
        (tmp_path / "sound").write_bytes((tmp_path / subject.file).read_bytes())
    begin = (tmp_path / "sound").read_bytes()[:8]
    for spoilt in (content, begin + content):
        came = outcome(subject, tmp_path, spoilt)
        assert came.kind != "surprise", came.text


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
JSON_FILES = [subject for subject in EVERY if subject.file.endswith(".json") or subject.name == "metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("subject", JSON_FILES, ids=[subject.name for subject in JSON_FILES])
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(value=VALUE, data=st.data())
def test_any_json(subject, tmp_path, value, data):
    """Another value for one of the names that the file has, and any value for the whole of it."""
    need(subject)
    if not (tmp_path / "sound").exists():
        subject.make(tmp_path)
        (tmp_path / "sound").write_bytes((tmp_path / subject.file).read_bytes())
    sound = json.loads((tmp_path / "sound").read_text(encoding="utf-8").split("\n{", 1)[0])
    sound[data.draw(st.sampled_from(sorted(sound)))] = value
    for content in (value, sound):
        came = outcome(subject, tmp_path, json.dumps(content).encode() + b"\n")
        assert came.kind != "surprise", came.text


# ---- What the fuzzers look for is found --------------------------------------------------------------------


def reader(read):
    return Subject("x", "x", None, read)


@pytest.mark.parametrize(
    "read, found",
    [
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (lambda folder: bytearray(8 << 20), "8,3.* bytes of memory for a file of 4"),
        (lambda folder: np.zeros(1 << 21), "16,7.* bytes of memory"),
        (lambda folder: [][0], "IndexError"),
        (lambda folder: int("x"), "ValueError"),
        (lambda folder: warnings.warn("w", stacklevel=1), "UserWarning"),
        (
            lambda folder: tokenizer.tiktoken.Encoding(
                "x", pat_str="(", mergeable_ranks={b"a": 0}, special_tokens={}
            ),
            "Error|Panic",
        ),
    ],
)
def test_surprises(tmp_path, read, found):
    came = outcome(reader(read), tmp_path, b"abcd")
    assert came.kind == "surprise" and re.search(found, came.text), came


def test_no_end_is_a_surprise(tmp_path, monkeypatch):
    from tests.support import damage

    monkeypatch.setattr(damage, "SECONDS", 0.05)

    def read(folder):
        while True:
            pass

    assert outcome(reader(read), tmp_path, b"").text.startswith("Hangs")


def test_a_change_under_a_seal_is_a_surprise(tmp_path):
    sealed = Subject("x", "x", None, lambda folder: None, sealed=True)
    assert outcome(sealed, tmp_path, b"a", b"b").kind == "surprise"
    assert outcome(sealed, tmp_path, b"a", b"a").kind == "read"


def test_spoiling_is_the_same_every_time():
    assert spoil(b"some content", random.Random(5)) == spoil(b"some content", random.Random(5))


# ---- What was found, one by one ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(tmp_path, number):
    spoilt = model()
    spoilt.params["fcw"][1, 3, 2] = number
    llmc.write(tmp_path / "m.bin", spoilt.params, CONFIG)
    arrays, state = checkpoint.model_arrays(spoilt), checkpoint.model_state(spoilt)
    checkpoint.save(tmp_path / "c.safetensors", arrays, state)
    message = re.escape(f"fcw[1, 3, 2] is {number}, expected finite numbers")
    for file in ("m.bin", "c.safetensors"):
        with pytest.raises(UserError, match=message):
            pretrained.find(str(tmp_path / file)).model()
        with pytest.raises(UserError, match=message):
            gpt2.load(tmp_path / file)


def test_a_description_that_promises_more_than_the_weights_hold(tmp_path):
    """Nothing is allocated for it: these would be petabytes."""
    small = model()
    checkpoint.save(
        tmp_path / "c.safetensors",
        checkpoint.model_arrays(small),
        {"model": {**vars(CONFIG), "n_layer": 1 << 40}},
    )
    with pytest.raises(UserError, match="described is a model of .* but the weights have"):
        pretrained.find(str(tmp_path / "c.safetensors")).model()
    pytest.importorskip("safetensors")
    huggingface.write(tmp_path / "hf", small.params, CONFIG)
    path = tmp_path / "hf" / huggingface.CONFIG
    path.write_text(path.read_text().replace('"n_embd": 4', '"n_embd": 4000000'))
    with pytest.raises(UserError, match="described is a model of .* but the weights have"):
        pretrained.find(str(tmp_path / "hf")).model()


TRICKS = ["../m.safetensors", "/etc/passwd", "..", "", "a\0b", "\ud800", "a/b", "a\\..\\b"]


@pytest.mark.parametrize("name", TRICKS, ids=ascii)
def test_an_index_names_files_beside_it(tmp_path, name):
    pytest.importorskip("safetensors")
    huggingface.write(tmp_path / "hf", model().params, CONFIG)
    (tmp_path / "hf" / huggingface.WEIGHTS).rename(tmp_path / "m.safetensors")  # a sound file, elsewhere
    (tmp_path / "hf" / huggingface.INDEX).write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    with pytest.raises(UserError):
        pretrained.find(str(tmp_path / "hf")).model()


def test_names_of_tensors_are_never_names_of_files(tmp_path):
    path = tmp_path / "in" / "c"
    arrays = {"../out": np.zeros(3), "/tmp/out": np.ones(2), "": np.ones(1)}
    checkpoint.save(path, arrays, {})
    assert list(checkpoint.load(path)[0]) == list(arrays)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["in", "in/c"]


@pytest.mark.parametrize(
    "name, content",
    [
        ("settings", "steps = " + "9" * 5000),
        ("settings", "lr = " + "9" * 400),
        ("metrics", '{"step": 1' + "0" * 400 + "}\n"),
        ("metrics", '{"step": 1, "loss": 1' + "0" * 400 + "}\n"),
    ],
)
def test_numbers_beyond_all_bounds(tmp_path, name, content):
    (subject,) = [subject for subject in EVERY if subject.name == name]
    subject.make(tmp_path)
    assert outcome(subject, tmp_path, content.encode()).kind == "refused"


def test_messages_have_an_end():
    assert len(str(UserError("x" * 10**6))) < 2100


# ---- Nothing is executed -----------------------------------------------------------------------------------

# Workers are told what to do in pickled messages, through pipes that only their parent has; the functions of
# the compiler are executed from source that it wrote itself.
PICKLES = {
    "gpt2/model/gpt2.py",  # dumps alone: whether own layers can be pickled
    "gpt2/parallel/processes.py",
    "gpt2/parallel/worker.py",
    "gpt2/parallel/workers.py",
}
EXECUTES = {
    "gpt2/autodiff/reuse/guard.py",
    "gpt2/autodiff/emit/program.py",
    "gpt2/autodiff/programs/fast_path.py",
    "gpt2/commands/explain/panels.py",  # source text that the compiler made of a layer
    "gpt2/model/own.py",  # a file of layers that the user names, or a run names, with the run's SHA-256
}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}


def dangers(path):
    """What in a source file could execute what a file holds: pickle, eval, exec, np.load and the like."""
    for node in ast.walk(house.parsed(path)):
        if isinstance(node, ast.Import):
            yield from ("pickle" for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield "pickle"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "__import__", "builtins.eval", "builtins.exec"):
                yield "exec"
            elif called in ("np.load", "numpy.load", "torch.load"):
                yield called
            elif any(word.arg == "allow_pickle" for word in node.keywords):
                yield "allow_pickle"


def test_nothing_that_is_read_is_executed():
    found = {}
    for path in [ROOT / "train.py", *(ROOT / "gpt2").rglob("*.py"), *(ROOT / "data").rglob("*.py")]:
        for danger in dangers(path):
            found.setdefault(danger, set()).add(path.relative_to(ROOT).as_posix())
    assert found == {"pickle": PICKLES, "exec": EXECUTES}


def test_what_is_dangerous_is_seen(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("import pickle\nfrom yaml import load\nnp.load(x, allow_pickle=True)\neval('1')\n")
    assert sorted(dangers(path)) == ["exec", "np.load", "pickle", "pickle"]


def test_the_first_bytes_say_how_long_a_header_is(tmp_path):
    for length in (0, 1, 7, 1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        (tmp_path / "c").write_bytes(struct.pack("<Q", length) + b"{}" * 9)
        with pytest.raises(UserError, match="c: "):
            checkpoint.load(tmp_path / "c")
