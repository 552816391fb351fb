"""Weights know their tokenizer, and files that belong together are never taken from two models."""

import os
import shutil
import signal

import numpy as np
import pytest

import gpt2
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.weights import checkpoint, peft
from tests.support.faults import Faults, kill

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")


LETTERS = {1: "abcde", 2: "vwxyz"}


def bpe(letters):
    """A tokenizer of 260 tokens, the last ones made of these letters."""
    return tokenizer.bpe(f"{letters} " * 50, 260)


@pytest.fixture
def model():
    return of_ones()


def of_ones(number=1, words=None):
    words = words or tokenizer.byte()
    made = GPT2(GPT2Config(words.vocab_size, 8, 1, 1, 4), seed=None)
    made.flat_params[:] = number
    return made


def spoken(path):
    """What the last token of the weights' tokenizer stands for."""
    words = gpt2.load_tokenizer(path)
    return words.decode([words.vocab_size - 1])


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_two_models_in_one_folder_keep_their_tokenizers(tmp_path, suffix):
    for letters in ("abcde", "vwxyz"):
        words = bpe(letters)
        gpt2.save(of_ones(1, words), tmp_path / f"{letters}.{suffix}", words)
    for letters in ("abcde", "vwxyz"):
        assert spoken(tmp_path / f"{letters}.{suffix}").strip() in letters


def test_a_checkpoint_takes_its_tokenizer_along_and_no_other(tmp_path):
    words, other = tokenizer.char("abc"), tokenizer.char("xyz")
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        other.save(folder / "tokenizer.json")
    gpt2.save(of_ones(1, words), tmp_path / "a" / "with.safetensors", words)
    gpt2.save(of_ones(1, words), tmp_path / "a" / "without.safetensors")
    shutil.copy(tmp_path / "a" / "with.safetensors", tmp_path / "b")
    assert spoken(tmp_path / "b" / "with.safetensors") == "c"
    with pytest.raises(UserError, match="no tokenizer belongs to these weights"):
        gpt2.load_tokenizer(tmp_path / "a" / "without.safetensors")
    assert checkpoint.load_state(tmp_path / "a" / "with.safetensors")["tokenizer"]["name"] == "char"


def test_a_tokenizer_changed_inside_a_checkpoint_is_noticed_without_the_weights(tmp_path):
    words = tokenizer.char("abc")
    (path,) = gpt2.save(of_ones(1, words), tmp_path / "x.safetensors", words)
    content = path.read_bytes()
    assert content.count(b'"YQ==", "Yg=="') == 1
    path.write_bytes(content.replace(b'"YQ==", "Yg=="', b'"Yg==", "YQ=="'))
    with pytest.raises(UserError, match="its tokenizer does not match its checksum"):
        gpt2.load_tokenizer(path)


def test_a_run_speaks_its_own_tokenizer_whatever_lies_beside(run, tmp_path):
    path = run / "last.safetensors"
    arrays, state = checkpoint.load(path)
    words, kept = checkpoint.tokenizer_contents(tokenizer.byte())
    checkpoint.save(path, {**arrays, **words}, {**state, **kept})
    bpe("abcde").save(run / "tokenizer.json")
    assert gpt2.load_tokenizer(run).name == "byte"


def test_what_would_stay_of_another_model_is_refused(tmp_path):
    words, char = bpe("abcde"), tokenizer.char("".join(map(chr, range(300, 560))))
    assert char.vocab_size == words.vocab_size
    for name in ("x.bin", "folder"):
        gpt2.save(of_ones(1, words), tmp_path / name, words)
        gpt2.save(of_ones(2, words), tmp_path / name, words)  # the same files are replaced
        with pytest.raises(UserError, match="(x_tokenizer.bin|vocab.json): belongs to other weights"):
            gpt2.save(of_ones(3, char), tmp_path / name, None if name == "x.bin" else char)
        assert gpt2.load(tmp_path / name).flat_params[0] == 2
    tuned = gpt2.lora(gpt2.load(tmp_path / "folder"), rank=1)
    with pytest.raises(UserError, match="model.safetensors: belongs to other weights"):
        gpt2.save(tuned, tmp_path / "folder")
    gpt2.save(tuned, tmp_path / "adapter")
    with pytest.raises(UserError, match="adapter_config.json: belongs to other weights"):
        gpt2.save(of_ones(1, words), tmp_path / "adapter", words)


def test_the_tokenizer_of_llm_c_s_gpt2_is_for_its_vocabulary_alone(tmp_path):
    words = bpe("abcde")
    gpt2.save(of_ones(1, words), tmp_path / "gpt2.bin", words)
    gpt2.save(of_ones(1, words), tmp_path / "mine.bin")
    with pytest.raises(UserError, match="no tokenizer belongs to these weights"):
        gpt2.load_tokenizer(tmp_path / "mine.bin")


@posix
@pytest.mark.parametrize("name", ["folder", "x.bin", "adapter"])
def test_killed_at_any_point_a_conversion_leaves_one_model_or_is_refused(tmp_path, name):
    """Both have the same sizes: what is of two models could only be seen in the text."""
    pytest.importorskip("safetensors")
    made = {1: of_ones(1, bpe("abcde")), 2: of_ones(2, bpe("vwxyz"))}
    for number in made:
        gpt2.save(made[number], tmp_path / f"base{number}", bpe(LETTERS[number]))

    def write(number, target):
        if name != "adapter":
            gpt2.save(made[number], target, bpe(LETTERS[number]))
            return
        tuned = gpt2.lora(gpt2.load(tmp_path / f"base{number}"), rank=1, alpha=number)
        tuned.flat_params[:] = number
        peft.write(target, tuned, str(tmp_path / f"base{number}"))

    with Faults() as faults:
        write(1, tmp_path / "first" / name)
    before = faults.calls[: faults.calls.index("replace")]
    assert before.count("fsync") >= before.count("open")  # of each file, before any of them is renamed
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
            seen.add(which(place / name))
        except UserError as error:
            assert "was interrupted" in str(error)
            seen.add("refused")
    place = tmp_path / "2"  # where a kill left temporary files
    assert [*place.rglob(".gpt2-*")]
    write(2, place / name)
    assert which(place / name) == 2 and not [*place.rglob(".*")]
    assert seen == {1, 2, "refused"}


def which(target):
    """1 or 2, once weights and tokenizer are found to be of one model."""
    made = gpt2.load(target)
    number = int(made.flat_params[0])
    assert np.all(made.flat_params == number)
    if made.description.lora is not None:
        assert made.description.lora.alpha == number and made.params["lnfb"][0] == number
    assert spoken(target).strip() in LETTERS[number]
    return number
