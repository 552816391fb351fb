"""Weights keep their tokenizer, and files of two models are never combined."""

import os
import shutil
import signal

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.weights import checkpoint, peft
from tests.support.faults import Faults, kill
from tests.support.slow import rest_slow

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")

LETTERS = {1: "abcde", 2: "vwxyz"}


def bpe(letters):
    """A tokenizer of 260 tokens, the last ones made of these letters."""
    return tokenizer.bpe(f"{letters} " * 50, 260)


def constant_model(number, words):
    """A model for this tokenizer whose parameters all are this number."""
    model = GPT2(GPT2Config(words.vocab_size, 8, 1, 1, 4), seed=None)
    model.flat_params[:] = number
    return model


@pytest.fixture
def model():
    return constant_model(1, tokenizer.byte())


def last_token(path):
    """The text of the last token of the weights' tokenizer."""
    words = gpt2.load_tokenizer(path)
    return words.decode([words.vocab_size - 1])


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_two_models_in_one_folder_keep_their_tokenizers(tmp_path, suffix):
    for letters in LETTERS.values():
        words = bpe(letters)
        gpt2.save(constant_model(1, words), tmp_path / f"{letters}.{suffix}", words)
    for letters in LETTERS.values():
        assert last_token(tmp_path / f"{letters}.{suffix}").strip() in letters


def test_checkpoint_contains_its_tokenizer_and_ignores_others(tmp_path):
    words, other = tokenizer.char("abc"), tokenizer.char("xyz")
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        other.save(folder / "tokenizer.json")
    gpt2.save(constant_model(1, words), tmp_path / "a" / "with.safetensors", words)
    gpt2.save(constant_model(1, words), tmp_path / "a" / "without.safetensors")
    shutil.copy(tmp_path / "a" / "with.safetensors", tmp_path / "b")
    assert last_token(tmp_path / "b" / "with.safetensors") == "c"
    with pytest.raises(UserError, match="no tokenizer belongs to these weights"):
        gpt2.load_tokenizer(tmp_path / "a" / "without.safetensors")
    assert checkpoint.load_state(tmp_path / "a" / "with.safetensors")["tokenizer"]["name"] == "char"


def test_changed_tokenizer_in_a_checkpoint_is_noticed(tmp_path):
    words = tokenizer.char("abc")
    (path,) = gpt2.save(constant_model(1, words), tmp_path / "x.safetensors", words)
    content = path.read_bytes()
    assert content.count(b'"YQ==", "Yg=="') == 1
    path.write_bytes(content.replace(b'"YQ==", "Yg=="', b'"Yg==", "YQ=="'))
    with pytest.raises(UserError, match="its tokenizer does not match its checksum"):
        gpt2.load_tokenizer(path)


def test_run_uses_the_tokenizer_in_its_checkpoint(run, tmp_path):
    path = run / "last.safetensors"
    arrays, state = checkpoint.load(path)
    words, kept = checkpoint.tokenizer_contents(tokenizer.byte())
    checkpoint.save(path, {**arrays, **words}, {**state, **kept})
    bpe("abcde").save(run / "tokenizer.json")
    assert gpt2.load_tokenizer(run).name == "byte"


def test_saving_beside_files_of_another_model_is_refused(tmp_path):
    words, char = bpe("abcde"), tokenizer.char("".join(map(chr, range(300, 560))))
    assert char.vocab_size == words.vocab_size
    for name in ("x.bin", "folder"):
        gpt2.save(constant_model(1, words), tmp_path / name, words)
        gpt2.save(constant_model(2, words), tmp_path / name, words)  # replaces the same files
        with pytest.raises(UserError, match="(x_tokenizer.bin|vocab.json): belongs to other weights"):
            gpt2.save(constant_model(3, char), tmp_path / name, None if name == "x.bin" else char)
        assert gpt2.load(tmp_path / name).flat_params[0] == 2
    stale = tmp_path / "folder" / "special_tokens_map.json"  # transformers would add its tokens to these
    stale.write_text("{}")
    with pytest.raises(UserError, match="special_tokens_map.json: belongs to other weights; remove it"):
        gpt2.save(constant_model(1, words), tmp_path / "folder", words)
    stale.unlink()
    tuned = gpt2.lora(gpt2.load(tmp_path / "folder"), rank=1)
    with pytest.raises(UserError, match="model.safetensors: belongs to other weights"):
        gpt2.save(tuned, tmp_path / "folder")
    gpt2.save(tuned, tmp_path / "adapter")
    with pytest.raises(UserError, match="adapter_config.json: belongs to other weights"):
        gpt2.save(constant_model(1, words), tmp_path / "adapter", words)


def test_source_and_files_of_a_run_are_not_replaced_by_a_conversion(tmp_path, run):
    folder = tmp_path / "folder"
    gpt2.save(constant_model(1, tokenizer.byte()), folder)
    before = {path: path.read_bytes() for place in (run, folder) for path in place.iterdir()}
    for source, destination, message in (
        (folder, folder / "model.safetensors", "source and destination are the same"),
        (folder, run / "last.safetensors", "belongs to the run in this folder"),
        (run, run / "best.safetensors", "belongs to the run in this folder"),
    ):
        with pytest.raises(UserError, match=message):
            convert.convert(str(source), destination)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert not (run / "best.safetensors").exists()


def test_saving_names_the_files_that_were_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    paths = gpt2.save(constant_model(1, tokenizer.byte()), tmp_path / "folder")
    assert [path.name for path in paths] == ["config.json", "model.safetensors"]


def test_tokenizer_of_gpt2_bin_is_not_used_for_other_weights(tmp_path):
    words = bpe("abcde")
    gpt2.save(constant_model(1, words), tmp_path / "gpt2.bin", words)
    gpt2.save(constant_model(1, words), tmp_path / "mine.bin")
    with pytest.raises(UserError, match="no tokenizer belongs to these weights"):
        gpt2.load_tokenizer(tmp_path / "mine.bin")


@posix
@pytest.mark.parametrize("name", rest_slow(["x.bin", "folder", "adapter"]))
def test_save_killed_at_any_point_leaves_one_model_or_is_refused(tmp_path, name):
    """Both models have the same sizes, so a mixture would load without an error."""
    words = {number: bpe(letters) for number, letters in LETTERS.items()}
    models = {number: constant_model(number, words[number]) for number in words}
    for number, model in models.items():
        gpt2.save(model, tmp_path / f"base{number}", words[number])

    def write(number, target):
        if name != "adapter":
            gpt2.save(models[number], target, words[number])
            return
        tuned = gpt2.lora(gpt2.load(tmp_path / f"base{number}"), rank=1, alpha=number)
        tuned.flat_params[:] = number
        peft.write(target, tuned, str(tmp_path / f"base{number}"))

    with Faults() as faults:
        write(1, tmp_path / "first" / name)
    before = faults.calls[: faults.calls.index("replace")]
    assert before.count("fsync") >= before.count("open")  # every file is synced before any is renamed
    seen = set()
    for at in [at for at, call in enumerate(faults.calls, 1) if call != "write" or at % 8 == 0]:
        place = tmp_path / str(at)
        shutil.copytree(tmp_path / "first", place)
        child = os.fork()
        if not child:
            with Faults(at, kill):
                write(2, place / name)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        try:
            seen.add(model_number(place / name))
        except UserError as error:
            assert "was interrupted" in str(error)
            seen.add("refused")
    place = tmp_path / "2"  # a kill left temporary files here
    assert [*place.rglob(".gpt2-*")]
    write(2, place / name)
    assert model_number(place / name) == 2 and not [*place.rglob(".*")]
    assert seen == {1, 2, "refused"}


def model_number(target):
    """The number of the model, 1 or 2; all files are checked to be of that one."""
    model = gpt2.load(target)
    number = int(model.flat_params[0])
    assert np.all(model.flat_params == number)
    if model.description.lora is not None:
        modules = [module for place in model.description.lora.modules.values() for module in place]
        assert {rank * scale for rank, scale in modules} == {number}  # alpha
        assert model.params["lnfb"][0] == number
    assert last_token(target).strip() in LETTERS[number]
    return number
