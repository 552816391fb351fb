"""Hugging Face folders: the same logits as transformers, exact round trips, and errors for other files.

Tests that need transformers are skipped if it is not installed, and all of them without safetensors.
"""

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert
from gpt2.data import huggingface as tokenizer_files
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.weights import bfloat16, checkpoint, huggingface, llmc, pretrained
from tests.support.peaks import peak_of

safetensors_numpy = pytest.importorskip("safetensors.numpy")


def write_words(folder, words, longest):
    """Write only the files of a tokenizer."""
    for name, content in huggingface.tokenizer_contents(words, longest).items():
        (folder / name).write_bytes(content)


SIZES = dict(vocab_size=97, n_layer=3, n_head=3, n_embd=24)
TOKENS = np.random.default_rng(5).integers(0, 97, (2, 16))


def random_model(**sizes):
    """A model with all tensors random, so that swapping two of them changes its logits."""
    model = GPT2(GPT2Config(**{"block_size": 16, **SIZES, **sizes}), seed=3)
    noise = np.random.default_rng(4).standard_normal(model.flat_params.size)
    model.flat_params += (0.1 * noise).astype(model.config.dtype)
    return model


def random_peer(peers):
    """A GPT2LMHeadModel with all parameters random."""
    torch, transformers = peers
    torch.manual_seed(0)
    peer = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=16, **SIZES)).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return peer


def logits_of(peers, peer, tokens):
    with peers[0].no_grad():
        return peer(peers[0].tensor(tokens)).logits.float().numpy()


# ---- With transformers -------------------------------------------------------------------------------------


def test_logits_agree_with_transformers(peers, tmp_path):
    peer = random_peer(peers)
    peer.save_pretrained(tmp_path)
    logits = pretrained.find(str(tmp_path)).model().forward(TOKENS)
    expected = logits_of(peers, peer, TOKENS)
    assert np.abs(expected).max() > 1  # so 1e-4 is a small error
    assert np.abs(logits - expected).max() < 1e-4


def test_weights_of_the_bare_model_are_read(peers, tmp_path):
    """GPT2Model, which has no head, saves h.0... instead of transformer.h.0..."""
    peer = random_peer(peers)
    peer.transformer.save_pretrained(tmp_path)
    names = safetensors_numpy.load_file(tmp_path / "model.safetensors")
    assert "wte.weight" in names
    logits = pretrained.find(str(tmp_path)).model().forward(TOKENS)
    assert np.abs(logits - logits_of(peers, peer, TOKENS)).max() < 1e-4


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_weights_are_read_exactly(peers, tmp_path, kind):
    torch, _ = peers
    peer = random_peer(peers).to(getattr(torch, kind))
    peer.save_pretrained(tmp_path)
    params = pretrained.find(str(tmp_path)).model().params
    expected = peer.transformer.h[1].mlp.c_fc.weight.detach().float().numpy().T
    assert np.array_equal(params["fcw"][1], expected)


def test_transformers_reads_our_files(peers, tmp_path):
    _, transformers = peers
    model = written(tmp_path)
    peer, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert np.abs(logits_of(peers, peer.eval(), TOKENS) - model.forward(TOKENS)).max() < 1e-4


def test_weights_and_config_have_the_same_permissions(tmp_path):
    written(tmp_path)
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes[huggingface.WEIGHTS] == modes["config.json"]


def test_round_trip_through_transformers_is_exact(peers, tmp_path):
    _, transformers = peers
    model = written(tmp_path / "a")
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    back = pretrained.find(str(tmp_path / "b")).model()
    assert back.config == model.config
    assert np.array_equal(back.flat_params, model.flat_params)


@pytest.mark.parametrize("name", ["gpt2", "byte", "bpe:800"])
def test_tokenizer_agrees_with_transformers(peers, tmp_path, request, name):
    _, transformers = peers
    text = Path(__file__).read_text(encoding="utf-8").replace("<|", "< |")  # no special tokens
    words = request.getfixturevalue("gpt2_tokenizer") if name == "gpt2" else tokenizer.make(name, text)
    write_words(tmp_path, words, 10**6)
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for sample in (text, "It's 1234  o'clock,\n\n\tnaïve 日本 \x00\x80 the the kingkingdom queenly"):
        assert theirs.encode(sample) == words.encode(sample).tolist()
    if words.special:
        assert theirs.encode("<|endoftext|>") == [words.end_of_text]
    back = tokenizer_files.read(tmp_path)
    assert back.ranks == words.ranks and back.special == words.special
    theirs.save_pretrained(tmp_path / "again")  # version 5 puts everything into tokenizer.json
    again = tokenizer_files.read(tmp_path / "again")
    assert again.ranks == words.ranks and again.special == words.special


@pytest.mark.slow
def test_merges_are_those_of_gpt2s_own_file(gpt2_tokenizer, tmp_path):
    write_words(tmp_path, gpt2_tokenizer, 1024)
    ours = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()
    original = tokenizer._vocab_file().read_text(encoding="utf-8").split("\n")[:-1]
    assert ours[1:] == original[1:]


# ---- Without transformers ----------------------------------------------------------------------------------


def written(tmp_path, **sizes):
    model = random_model(**sizes)
    huggingface.write(tmp_path, model.params, model.config)
    return model


def change_config(folder, **changes):
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not Ellipsis}))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = safetensors_numpy.load_file(path)
    change(tensors)
    safetensors_numpy.save_file(tensors, path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_round_trip_is_exact(tmp_path, dtype):
    model = written(tmp_path, dtype=dtype)
    back = pretrained.find(str(tmp_path), dtype).model()
    assert back.config == model.config
    assert np.array_equal(back.flat_params, model.flat_params.astype(np.float32))


def test_only_linear_weights_are_transposed(tmp_path):
    model = written(tmp_path)
    tensors = safetensors_numpy.load_file(tmp_path / "model.safetensors")
    assert len(tensors) == 2 + 12 * 3 + 2
    assert np.array_equal(tensors["transformer.h.2.attn.c_attn.weight"], model.params["qkvw"][2].T)
    assert np.array_equal(tensors["transformer.h.1.attn.c_proj.weight"], model.params["attprojw"][1].T)
    assert np.array_equal(tensors["transformer.wpe.weight"], model.params["wpe"])


def test_masks_and_a_tied_head_are_ignored(tmp_path):
    model = written(tmp_path)

    def add(tensors):
        for l in range(3):
            tensors[f"transformer.h.{l}.attn.bias"] = np.tri(16, dtype=np.uint8)[None, None]
            tensors[f"transformer.h.{l}.attn.masked_bias"] = np.array(-1e4, np.float32)
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]

    change_tensors(tmp_path, add)
    assert np.array_equal(pretrained.find(str(tmp_path)).model().flat_params, model.flat_params)


def test_sharded_weights_are_read(tmp_path):
    model = written(tmp_path)
    tensors = safetensors_numpy.load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    half = len(tensors) // 2
    where = {}
    for number, names in enumerate((list(tensors)[:half], list(tensors)[half:])):
        file = f"model-{number}.safetensors"
        safetensors_numpy.save_file({name: tensors[name] for name in names}, tmp_path / file)
        where |= dict.fromkeys(names, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert np.array_equal(pretrained.find(str(tmp_path)).model().flat_params, model.flat_params)
    where["transformer.wte.weight"] = "../elsewhere.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(UserError, match="a file in the same folder"):
        pretrained.find(str(tmp_path)).model()


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(model_type="gpt_neo"), "model_type is 'gpt_neo', expected 'gpt2'"),
        (dict(activation_function="relu6"), "activation_function is 'relu6', expected one of gelu_new, "),
        (dict(activation_function=["relu"]), "activation_function is ['relu'], expected one of gelu_new, "),
        (dict(layer_norm_epsilon="small"), "layer_norm_epsilon is 'small', expected a number"),
        (dict(scale_attn_by_inverse_layer_idx=2), "scale_attn_by_inverse_layer_idx is 2, expected True"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings is False, and the weights have no lm_head"),
        (dict(tie_word_embeddings="yes"), "tie_word_embeddings is 'yes', expected true or false"),
        (dict(add_cross_attention=True), "attends to an encoder cannot be read"),
        (dict(n_inner=0), "n_inner is 0, expected a whole number from 1, or None"),
        (dict(n_inner=100), "h.0.mlp.c_fc.weight has shape (24, 96), expected (24, 100)"),
        (dict(hidden_size=32), "n_embd is 24, and hidden_size 32; remove one of them"),
        (dict(n_head=5), "n_embd 24 is not divisible by n_head 5"),
        (dict(n_layer="three"), "n_layer is 'three', expected a whole number"),
        (dict(n_embd=...), "lacks 'n_embd'"),
        (dict(n_layer=2), "do not belong to a GPT-2 of 2 blocks, the first is h.2"),
        (dict(n_layer=4), "12 tensors are missing, the first is h.3.attn.c_attn.bias"),
        (dict(vocab_size=98), "wte.weight has shape (97, 24), expected (98, 24)"),
    ],
)
def test_unsupported_config_is_one_error_line(tmp_path, changes, message):
    written(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(UserError) as error:
        pretrained.find(str(tmp_path)).model()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, tensor, message",
    [
        ("lm_head.weight", np.ones((98, 24), np.float32), r"lm_head.weight has shape \(98, 24\)"),
        ("transformer.h.0.mlp.c_gate.weight", np.ones((4, 4), np.float32), "do not belong to a GPT-2"),
        ("transformer.ln_f.bias", np.zeros(24, np.int32), "ln_f.bias is of type I32"),
    ],
)
def test_unsupported_tensor_is_refused(tmp_path, name, tensor, message):
    written(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.update({name: tensor}))
    with pytest.raises(UserError, match=message):
        pretrained.find(str(tmp_path)).model()


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "damaged",
    [
        *(lambda content, n=n: content[:n] for n in (0, 7, 100, -100, -4)),
        lambda content: b"short",
        lambda content: b"\xff" * 100,
        lambda content: (1 << 40).to_bytes(8, "little") + b"{}",
        lambda content: (10).to_bytes(8, "little") + b"not json at all",
    ],
)
def test_damaged_file_is_named_in_one_error_line(tmp_path, damaged, sharded):
    written(tmp_path)
    file = tmp_path / "model.safetensors"
    if sharded:
        where = dict.fromkeys(safetensors_numpy.load_file(file), "model-00001-of-00001.safetensors")
        file = file.rename(tmp_path / "model-00001-of-00001.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    file.write_bytes(damaged(file.read_bytes()))
    message = rf"^{re.escape(str(file))}: no safetensors file, or damaged"
    with pytest.raises(UserError, match=message) as error:
        gpt2.load(tmp_path)
    assert "\n" not in str(error.value)


def test_missing_weights_or_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="config.json: No such file"):
        pretrained.find(str(tmp_path))
    written(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="expected model.safetensors"):
        pretrained.find(str(tmp_path)).model()
    with pytest.raises(UserError, match="no such file or folder; expected gpt2, gpt2-medium"):
        pretrained.find(str(tmp_path / "nowhere"))


def test_released_model_is_found_in_the_data_folder_or_refused_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("GPT2_OFFLINE", "1")
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match="gpt2-xl.*(GPT2_OFFLINE is set|needs the huggingface_hub package)"):
        pretrained.find("gpt2-xl")
    model = written(tmp_path / "gpt2")
    weights = pretrained.find("gpt2")
    assert weights.path == tmp_path / "gpt2"
    assert np.array_equal(weights.model().flat_params, model.flat_params)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    with pytest.raises(UserError, match=r"needs the huggingface_hub package .* or that of llm\.c's \.bin"):
        pretrained.find("gpt2")


def test_char_tokenizer_is_written_for_transformers(tmp_path):
    """Its words are single characters; one that is not in the vocabulary is an error there too."""
    words = tokenizer.char("naïve: 日本\n\t🙂 '\"")
    model = GPT2(GPT2Config(words.vocab_size, 16, 1, 1, 8), seed=0)
    gpt2.save(model, tmp_path / "m", words)
    again = gpt2.load_tokenizer(tmp_path / "m")
    assert (again.name, again.ranks) == ("char", words.ranks)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "日\nïv 🙂\t:  en\n\n"
    assert theirs.encode(text) == words.encode(text).tolist()
    assert theirs.decode(theirs.encode(text)) == text
    theirs.save_pretrained(tmp_path / "again")
    assert gpt2.load_tokenizer(tmp_path / "again").ranks == words.ranks
    with pytest.raises(Exception, match="WordLevel"):
        theirs.encode("x")


def test_spelling_of_bytes_is_one_to_one():
    assert len(tokenizer.BYTES) == 256
    assert huggingface.spell(b" \n\x00a\xff") == "ĠĊĀaÿ"


def test_convert_there_and_back(tmp_path, capsys):
    """.safetensors -> folder -> .bin -> .safetensors, by the command, and the tokenizer with it."""
    model = random_model(vocab_size=256)
    start = tmp_path / "a" / "start.safetensors"
    checkpoint.save(start, checkpoint.model_arrays(model), checkpoint.model_state(model))
    tokenizer.byte().save(start.with_name("tokenizer.json"))
    for source, destination in ((start, "hf"), ("hf", "c/x.bin"), ("c/x.bin", "d/end.safetensors")):
        assert convert.main([str(tmp_path / source), str(tmp_path / destination)]) == 0
    assert str(tmp_path / "d" / "end.safetensors") in capsys.readouterr().out
    end = pretrained.find(str(tmp_path / "d" / "end.safetensors"))
    assert end.tokenizer().name == "byte"
    assert np.array_equal(end.model().flat_params, model.flat_params)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere", "x.bin"], "nowhere: no such file or folder"),
        (["hf"], "give one of"),
        (["hf", "hf"], "source and destination are the same"),
        (["hf", "x.safetensors", "--dtype", "bfloat16"], "X.bin, for llm.c, can be bfloat16"),
        (["hf", "--write-state", "s.bin"], "--data"),
        (["hf", "x.bin", "--batch-size", "-1"], "--batch-size -1: expected 1 or more"),
    ],
)
def test_invalid_convert_command_is_one_error_line(tmp_path, monkeypatch, capsys, arguments, message):
    written(tmp_path / "hf")
    monkeypatch.chdir(tmp_path)
    assert convert.main(arguments) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1


@pytest.mark.parametrize("kind", ["huggingface", "llm.c"])
def test_weights_are_read_without_a_second_copy(kind, tmp_path):
    model = random_model(n_embd=240)
    if kind == "huggingface":
        huggingface.write(tmp_path, model.params, model.config)
        path = tmp_path
    else:
        path = tmp_path / "m.bin"
        llmc.write(path, model.params, model.config)
    weights, read = pretrained.find(str(path)), GPT2(model.config, seed=None)
    weights.into(read)  # imports modules
    largest = max(x.nbytes for name, x in model.params.items() if name != "wte") // model.config.n_layer
    buffer = io.DEFAULT_BUFFER_SIZE  # of the open file: 128 KiB from Python 3.14 on
    assert peak_of(lambda: weights.into(read)) - buffer < largest / 2
    assert np.array_equal(read.flat_params, model.flat_params)


def test_bfloat16_rounds_to_nearest_even():
    """By definition: to the nearer neighbour, and of two equally near to the one whose last bit is 0."""
    rng = np.random.default_rng(6)
    numbers = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    ties = (rng.integers(0, 1 << 16, 1000, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    numbers = np.concatenate([numbers, ties, np.float32([0.0, -0.0, 1e-40, 3.4e38])])
    numbers = numbers[np.isfinite(numbers)]
    down = (numbers.view(np.uint32) >> 16).astype(np.uint16)  # the neighbour towards zero
    up = down + np.uint16(1)
    wide = [np.abs(bfloat16.to_float32(bits).astype(np.float64)) for bits in (down, up)]
    wide[1][np.isinf(wide[1])] = 2.0**128  # the next number if there were one
    below, above = np.abs(numbers) - wide[0], wide[1] - np.abs(numbers)
    expected = np.where((below < above) | ((below == above) & (down % 2 == 0)), down, up)
    assert np.array_equal(bfloat16.from_float32(numbers), expected)


def test_bfloat16_keeps_signs_infinities_and_nans():
    numbers = np.array([-0.0, np.inf, -np.inf, np.nan, -1.5], np.float32)
    got = bfloat16.to_float32(bfloat16.from_float32(numbers))
    assert np.array_equal(got, numbers, equal_nan=True) and np.signbit(got[0])
    tiny = np.array([0x7F800001], np.uint32).view(np.float32)  # a nan whose upper half is that of infinity
    assert np.isnan(bfloat16.to_float32(bfloat16.from_float32(tiny))).all()
