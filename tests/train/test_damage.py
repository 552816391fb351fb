"""Damaged files of every kind are read, or refused in one line. python -m tests.long.damage tries 20,000."""

import ast
import json
import random
import re
import struct
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpt2
from docs import house
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.weights import checkpoint, huggingface, llmc, pretrained
from tests import ROOT
from tests.support.damage import CONFIG, Subject, fuzz, model, outcome, spoil, subjects

SUBJECTS = {subject.name: subject for subject in subjects()}


def each(subjects):
    """Parametrizes a test by kinds of files."""
    return pytest.mark.parametrize("subject", subjects, ids=lambda subject: subject.name)


def examples(count):
    """Hypothesis with so many examples, the same in each run."""
    health = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=health)


def sound(subject, folder):
    """The bytes of a sound file, made in the folder the first time."""
    if not (folder / "sound").exists():
        subject.make(folder)
        (folder / "sound").write_bytes((folder / subject.file).read_bytes())
    return (folder / "sound").read_bytes()


def check_no_surprise(subject, folder, content):
    result = outcome(subject, folder, content)
    assert result.kind != "surprise", result.text


@pytest.mark.slow
@each(SUBJECTS.values())
def test_mutated_files_are_read_or_refused(subject, tmp_path):
    results = [result for _, _, result in fuzz(subject, tmp_path, 40, seed=1)]
    assert not [result.text for result in results if result.kind == "surprise"]
    # the mutations do something: some files are refused, and for more than one reason
    refused = [re.sub(r"\d+", "", result.text)[-60:] for result in results if result.kind == "refused"]
    assert len(refused) >= 8
    assert len(set(refused)) >= (1 if subject.name == "metrics" else 2), refused  # it has one message


@each(SUBJECTS.values())
@examples(8)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(subject, tmp_path, content):
    """Also behind the first bytes of a sound file, where a magic number may be."""
    for damaged in (content, sound(subject, tmp_path)[:8] + content):
        check_no_surprise(subject, tmp_path, damaged)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@each([s for s in SUBJECTS.values() if s.file.endswith(".json") or s.name == "metrics"])
@examples(25)
@given(value=VALUE, data=st.data())
def test_any_json_is_read_or_refused(subject, tmp_path, value, data):
    """A value in place of the whole file, and of one of its entries."""
    record = json.loads(sound(subject, tmp_path).decode().split("\n{", 1)[0])
    record[data.draw(st.sampled_from(sorted(record)))] = value
    for content in (value, record):
        check_no_surprise(subject, tmp_path, json.dumps(content).encode() + b"\n")


# ---- The helpers: what counts as a surprise ----------------------------------------------------------------


def reader(read):
    return Subject("x", "x", None, read)


def invalid_pattern(folder):
    ranks = {b"a": 0}
    return tokenizer.tiktoken.Encoding("x", pat_str="(", mergeable_ranks=ranks, special_tokens={})


@pytest.mark.parametrize(
    "read, text",
    [
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (lambda folder: bytearray(8 << 20), "8,3.* bytes of memory for a file of 4"),
        (lambda folder: np.zeros(1 << 21), "16,7.* bytes of memory"),
        (lambda folder: [][0], "IndexError"),
        (lambda folder: int("x"), "ValueError"),
        (lambda folder: warnings.warn("w", stacklevel=1), "UserWarning"),
        (invalid_pattern, "Error|Panic"),
    ],
)
def test_errors_memory_and_warnings_are_surprises(tmp_path, read, text):
    result = outcome(reader(read), tmp_path, b"abcd")
    assert result.kind == "surprise" and re.search(text, result.text), result


def test_endless_reading_is_a_surprise(tmp_path, monkeypatch):
    from tests.support import damage

    monkeypatch.setattr(damage, "SECONDS", 0.05)

    def read(folder):
        while True:
            pass

    assert outcome(reader(read), tmp_path, b"").text.startswith("Hangs")


def test_unnoticed_change_under_a_checksum_is_a_surprise(tmp_path):
    sealed = Subject("x", "x", None, lambda folder: None, sealed=True)
    assert outcome(sealed, tmp_path, b"a", b"b").kind == "surprise"
    assert outcome(sealed, tmp_path, b"a", b"a").kind == "read"


def test_mutations_are_the_same_in_each_run():
    assert spoil(b"some content", random.Random(5)) == spoil(b"some content", random.Random(5))


# ---- Damage of one kind each -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, number):
    damaged = model()
    damaged.params["fcw"][1, 3, 2] = number
    llmc.write(tmp_path / "m.bin", damaged.params, CONFIG)
    arrays, state = checkpoint.model_arrays(damaged), checkpoint.model_state(damaged)
    checkpoint.save(tmp_path / "c.safetensors", arrays, state)
    message = re.escape(f"fcw[1, 3, 2] is {number}, expected finite numbers")
    for file in ("m.bin", "c.safetensors"):
        with pytest.raises(UserError, match=message):
            pretrained.find(str(tmp_path / file)).model()
        with pytest.raises(UserError, match=message):
            gpt2.load(tmp_path / file)


def test_config_of_a_larger_model_than_the_weights_is_refused(tmp_path):
    """Nothing is allocated for it: these would be petabytes."""
    small = model()
    state = {"model": {**vars(CONFIG), "n_layer": 1 << 40}}
    checkpoint.save(tmp_path / "c.safetensors", checkpoint.model_arrays(small), state)
    with pytest.raises(UserError, match="described is a model of .* but the weights have"):
        pretrained.find(str(tmp_path / "c.safetensors")).model()
    huggingface.write(tmp_path / "hf", small.params, CONFIG)
    path = tmp_path / "hf" / huggingface.CONFIG
    path.write_text(path.read_text().replace('"n_embd": 4', '"n_embd": 4000000'))
    with pytest.raises(UserError, match="described is a model of .* but the weights have"):
        pretrained.find(str(tmp_path / "hf")).model()


@pytest.mark.parametrize(
    "name", ["../m.safetensors", "/etc/passwd", "..", "", "a\0b", "\ud800", "a/b", "a\\..\\b"], ids=ascii
)
def test_index_may_only_name_files_in_its_folder(tmp_path, name):
    huggingface.write(tmp_path / "hf", model().params, CONFIG)
    (tmp_path / "hf" / huggingface.WEIGHTS).rename(tmp_path / "m.safetensors")  # a sound file, elsewhere
    (tmp_path / "hf" / huggingface.INDEX).write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    with pytest.raises(UserError):
        pretrained.find(str(tmp_path / "hf")).model()


def test_names_of_tensors_are_not_used_as_file_names(tmp_path):
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
def test_numbers_of_400_digits_are_refused(tmp_path, name, content):
    SUBJECTS[name].make(tmp_path)
    assert outcome(SUBJECTS[name], tmp_path, content.encode()).kind == "refused"


def test_messages_have_bounded_length():
    assert len(str(UserError("x" * 10**6))) < 2100


@pytest.mark.parametrize("length", [0, 1, 7, 1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_header_of_a_wrong_length_is_refused(tmp_path, length):
    (tmp_path / "c").write_bytes(struct.pack("<Q", length) + b"{}" * 9)
    with pytest.raises(UserError, match="c: "):
        checkpoint.load(tmp_path / "c")


# ---- Nothing is executed -----------------------------------------------------------------------------------

# Workers get their commands in pickled messages, through pipes that only their parent has; the functions of
# the compiler are executed from source that it wrote itself.
PICKLES = {
    "gpt2/model/gpt2.py",  # dumps alone: whether own layers can be pickled
    "gpt2/parallel/processes.py",
    "gpt2/parallel/worker.py",
    "gpt2/parallel/workers.py",
    "gpt2/storage/pickles.py",  # knows tensors and containers alone
}
EXECUTES = {
    "gpt2/autodiff/reuse/guard.py",
    "gpt2/autodiff/emit/program.py",
    "gpt2/autodiff/programs/fast_path.py",
    "gpt2/autodiff/tracebacks.py",  # a constant text, compiled under the name of the user's file
    "gpt2/autodiff/show/runnable.py",  # the expression that was written for a constant, to compare its bits
    "gpt2/autodiff/show/panels.py",  # source text that the compiler made of a layer
    "gpt2/commands/exercises/sheets/emit.py",  # what a student's compiler has written, in its own process
    "gpt2/model/own.py",  # a file of layers named by the user, or by a run, with its SHA-256
}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}


def dangers(path):
    """What in a source file could execute the content of another file: pickle, eval, np.load and others."""
    words = "|".join((*UNSAFE_MODULES, "eval", "exec", "__import__", "load", "allow_pickle"))
    if not re.search(rf"\b({words})\b", path.read_text(encoding="utf-8")):
        return  # without parsing it
    for node in ast.walk(house.parsed(path)):
        if isinstance(node, ast.Import):
            yield from ("pickle" for alias in node.names if alias.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield "pickle"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "__import__", "builtins.eval", "builtins.exec"):
                yield "exec"
            elif any(ast.unparse(word) == "allow_pickle=False" for word in node.keywords):
                continue
            elif called in ("np.load", "numpy.load", "torch.load"):
                yield called
            elif any(word.arg == "allow_pickle" for word in node.keywords):
                yield "allow_pickle"


def test_no_file_that_is_read_is_executed():
    files = {}
    for path in [ROOT / "train.py", *(ROOT / "gpt2").rglob("*.py"), *(ROOT / "data").rglob("*.py")]:
        for danger in dangers(path):
            files.setdefault(danger, set()).add(path.relative_to(ROOT).as_posix())
    assert files == {"pickle": PICKLES, "exec": EXECUTES}


def test_dangers_are_found(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "import pickle\nfrom yaml import load\nnp.load(x, allow_pickle=True)\neval('1')\n"
        "np.load(x, allow_pickle=False)\n"
    )
    assert sorted(dangers(path)) == ["exec", "np.load", "pickle", "pickle"]
