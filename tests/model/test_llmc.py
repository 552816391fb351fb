"""llm.c's files and program: formats byte by byte, batches, sampling, and eleven steps compared with PyTorch.

Formats are compared with a separate writer in this file, which takes a PyTorch model of transformers, as
llm.c's script does. Tests that need it are skipped where PyTorch or transformers is missing.
"""

import copy
import random
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt2.commands import convert
from gpt2.data import llmc as batches
from gpt2.data import tokenizer
from gpt2.data.tokens import read_tokens, write_tokens
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.model.optimizer import AdamW
from gpt2.train import llmc, program
from gpt2.weights import checkpoint, pretrained
from gpt2.weights import llmc as files
from tests.support.models import random_model

CONFIG = GPT2Config(vocab_size=97, block_size=16, n_layer=3, n_head=3, n_embd=24)


def make_peer(peers, **sizes):
    """A GPT2LMHeadModel of CONFIG's sizes, or others, whose parameters are all random."""
    torch, transformers = peers
    torch.manual_seed(0)
    sizes = dict(vocab_size=97, n_positions=16, n_embd=24, n_layer=3, n_head=3) | sizes
    config = transformers.GPT2Config(**sizes, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def peer(peers):
    return make_peer(peers)


def peer_tensors(peer, gradients=False):
    """PyTorch's sixteen tensors in llm.c's order, the vocabulary padded with zeros."""
    import torch

    V, C, L = peer.config.vocab_size, peer.config.n_embd, peer.config.n_layer

    def tensor(name):
        parameter = peer.transformer.get_parameter(name)
        value = (parameter.grad if gradients else parameter).detach()
        return value.T.contiguous() if ".c_" in name and name.endswith("weight") else value

    wte = torch.zeros(-(-V // 128) * 128, C)
    wte[:V] = tensor("wte.weight")
    blocks = [
        torch.stack([tensor(f"h.{l}.{part}.{kind}") for l in range(L)])
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        for kind in ("weight", "bias")
    ]
    return [wte, tensor("wpe.weight"), *blocks, tensor("ln_f.weight"), tensor("ln_f.bias")]


def header(*numbers):
    return struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))


def peer_checkpoint(peer, kind):
    """The bytes of a checkpoint as llm.c's script would write them."""
    import torch

    version = {"float32": 3, "bfloat16": 5}[kind]
    c = peer.config
    sizes = c.n_positions, c.vocab_size, c.n_layer, c.n_head, c.n_embd, -(-c.vocab_size // 128) * 128
    body = b"".join(
        tensor.to(getattr(torch, kind)).view(torch.uint8).numpy().tobytes() for tensor in peer_tensors(peer)
    )
    return header(20240326, version, *sizes) + body


def peer_state(peer, inputs, targets):
    """The bytes of a debug state with PyTorch's logits, loss and gradients."""
    import torch

    logits = peer(torch.tensor(inputs)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    peer.zero_grad()
    loss.backward()
    tensors = [logits, loss, *peer_tensors(peer, gradients=True)]
    parts = [np.int32(inputs), np.int32(targets), *(tensor.detach().numpy() for tensor in tensors)]
    return header(20240327, 2, *inputs.shape) + b"".join(part.tobytes() for part in parts)


def batch(seed=5, B=2, T=16):
    """Random inputs and targets."""
    return np.random.default_rng(seed).integers(0, 97, (2, B, T))


@pytest.fixture
def saved(tmp_path):
    """A random model and its checkpoint in llm.c's format: (model, path)."""
    model = random_model(CONFIG)
    path = tmp_path / "model.bin"
    files.write(path, model.params, model.config)
    return model, path


# ---- Checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_checkpoint_of_transformers_is_read_and_rewritten(peer, tmp_path, kind):
    """The model read from it gives the same logits and writes the same bytes."""
    import torch

    path = tmp_path / "model.bin"
    path.write_bytes(peer_checkpoint(peer, kind))
    assert files.read_header(path).stored == kind
    model = pretrained.find(str(path)).model()
    assert model.config == CONFIG
    files.write(tmp_path / "again.bin", model.params, model.config, kind)
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()
    if kind == "float32":
        tokens, _ = batch()
        with torch.no_grad():
            expected = peer(torch.tensor(tokens)).logits.numpy()
        assert np.abs(model.forward(tokens) - expected).max() < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("V", [97, 128])
def test_checkpoint_round_trip(tmp_path, dtype, V):
    model = random_model(replace(CONFIG, vocab_size=V, dtype=dtype))
    path = tmp_path / "model.bin"
    files.write(path, model.params, model.config)
    back = pretrained.find(str(path), dtype).model()
    assert back.config == model.config
    assert np.array_equal(back.flat_params, model.flat_params.astype(np.float32))
    assert path.stat().st_size == 1024 + 4 * (model.num_parameters + (128 - V) * 24)


def test_bfloat16_errs_by_its_rounding(saved):
    model, path = saved
    files.write(path, model.params, model.config, "bfloat16")
    again = pretrained.find(str(path)).model().flat_params
    assert (again != model.flat_params).any()
    assert np.all(np.abs(again - model.flat_params) <= 2.0**-8 * np.abs(model.flat_params))


@pytest.mark.parametrize(
    "numbers, message",
    [
        ((20240327, 3, 16, 97, 3, 3, 24, 128), "begins with 20240327, llm.c's checkpoint files begin with"),
        ((20240326, 2, 16, 97, 3, 3, 24, 128), "version 2 of llm.c's checkpoints, expected 3 (float32) or 5"),
        ((20240326, 3, 16, 97, 3, 5, 24, 128), "n_embd 24 is not divisible by n_head 5"),
        ((20240326, 3, 16, -97, 3, 3, 24, 128), "vocab_size is -97"),
        ((20240326, 3, 16, 97, 3, 3, 24, 96), "the padded vocabulary has 96 tokens, fewer than the"),
        ((20240326, 3, 16, 97, 4, 3, 24, 128), "the header promises"),
        ((20240326, 5, 16, 97, 3, 3, 24, 128), "the header promises"),
        ((20240326, 3, 2**31 - 1, 2**31 - 1, 2**31 - 1, 1, 2**31 - 1, 2**31 - 1), "the header promises"),
    ],
)
def test_wrong_headers_are_refused(saved, numbers, message):
    """In one line, and without allocating what the header promises."""
    _, path = saved
    path.write_bytes(header(*numbers) + path.read_bytes()[1024:])
    with pytest.raises(UserError) as error:
        pretrained.find(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 7, 1023, 1024, 5000, -4, 4])
def test_truncated_and_extended_files_are_refused(saved, size):
    _, path = saved
    content = path.read_bytes()
    path.write_bytes(content + bytes(size) if size == 4 else content[:size])
    with pytest.raises(UserError, match="header"):
        pretrained.find(str(path))


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        files.read_config(tmp_path / "nowhere.bin")
    with pytest.raises(UserError, match="directory"):
        files.read_config(tmp_path)


# ---- Debug states ----------------------------------------------------------------------------------------


def test_state_equals_pytorchs(peer, tmp_path, capsys):
    """Read by gpt2 convert: logits, loss and sixteen gradients; and written: tokens byte by byte, results
    within rounding."""
    inputs, targets = batch()
    model_bin, path = tmp_path / "model.bin", tmp_path / "state.bin"
    model_bin.write_bytes(peer_checkpoint(peer, "float32"))
    expected = peer_state(peer, inputs, targets)
    path.write_bytes(expected)
    assert convert.main([str(model_bin), "--check-state", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 18 + 1 and lines[-1] == "all agree"
    assert all(line.endswith("ok") and float(line.split()[1]) < 1e-5 for line in lines[1:-1])

    model = pretrained.find(str(model_bin)).model()
    files.write_state(path, convert.state_of(model, inputs, targets), model.config)
    content = path.read_bytes()
    assert len(content) == len(expected)
    ints = 1024 + 2 * 4 * inputs.size
    assert content[:ints] == expected[:ints]
    ours, theirs = (np.frombuffer(data[ints:], "<f4") for data in (content, expected))
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("name, index", [("logits", (1, 2, 3)), ("fcprojw", (2, 0, 5)), ("lnfb", (7,))])
def test_tensor_that_disagrees_is_named(saved, tmp_path, capsys, name, index):
    model, path = saved
    state = convert.state_of(model, *batch())
    array = state.logits if name == "logits" else state.grads[name]
    array[index] += 0.1 * np.linalg.norm(array)
    files.write_state(tmp_path / "state.bin", state, model.config)
    assert convert.main([str(path), "--check-state", str(tmp_path / "state.bin")]) == 1
    (wrong,) = [line for line in capsys.readouterr().out.splitlines() if "NOT OK" in line]
    assert wrong.split()[0] == (name if name == "logits" else f"d{name}")
    assert wrong.endswith(f"most at {list(index)}")


def test_nan_disagrees(saved, tmp_path):
    model, path = saved
    state = convert.state_of(model, *batch())
    state.grads["wte"][3, 4] = np.nan
    errors = {name: error for name, error, _ in convert.compare(random_model(CONFIG), state)}
    assert np.isnan(errors.pop("dwte")) and max(errors.values()) == 0
    files.write_state(tmp_path / "state.bin", state, model.config)
    assert not convert.check_state(path, tmp_path / "state.bin", say=lambda line: None)


def test_convert_writes_a_state(saved, tmp_path, capsys):
    model, path = saved
    model_bin, state, tokens = (str(path), str(tmp_path / "state.bin"), str(tmp_path / "tokens.bin"))
    write_tokens(tokens, np.arange(40) % 97)
    writing = [model_bin, "--write-state", state, "--data", tokens]
    assert convert.main([*writing, "--batch-size", "3", "--block-size", "8"]) == 0
    written = files.read_state(state, model.config)
    assert written.inputs.tolist() == np.arange(24).reshape(3, 8).tolist()
    assert np.array_equal(written.targets, written.inputs + 1)
    assert convert.main([model_bin, "--check-state", state]) == 0
    capsys.readouterr()
    assert convert.main(writing) == 2
    assert "40 tokens, a batch of B=4 and T=64 needs 257" in capsys.readouterr().err
    assert convert.main([*writing, "--batch-size", "1", "--block-size", "17"]) == 2
    assert "; give --block-size 16\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damaged, message",
    [
        (lambda d: header(20240326, 2, 2, 16) + d[1024:], "begins with 20240326"),
        (lambda d: header(20240327, 1, 2, 16) + d[1024:], "version 1 of llm.c's debug states, expected 2"),
        (lambda d: header(20240327, 2, 2**30, 16) + d[1024:], "is it of this model?"),
        (lambda d: header(20240327, 2, 2, 2**30) + d[1024:], "the model reads at most 16"),
        (lambda d: header(20240327, 2, 0, 16) + d[1024:], "a batch of B=0"),
        (lambda d: d[:-4], "is it of this model?"),
        (lambda d: d + bytes(8), "is it of this model?"),
        (lambda d: d[:1024] + struct.pack("<i", 97) + d[1028:], "inputs hold tokens from"),
        (lambda d: d[:100], "begin with a header of 1024"),
    ],
)
def test_damaged_states_are_refused(tmp_path, damaged, message):
    model = random_model(CONFIG)
    path = tmp_path / "state.bin"
    files.write_state(path, convert.state_of(model, *batch()), model.config)
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(UserError) as error:
        files.read_state(path, model.config)
    assert message in str(error.value) and "\n" not in str(error.value)


# ---- Tokenizers ------------------------------------------------------------------------------------------


def tokenizer_bytes(tokens, version=2, end=None, count=None):
    """A tokenizer file written by its definition."""
    count = len(tokens) if count is None else count
    end = len(tokens) - 1 if end is None else end
    return header(20240328, version, count, end) + b"".join(bytes([len(t)]) + t for t in tokens)


def test_gpt2_tokenizer_round_trip(gpt2_tokenizer, tmp_path):
    path = tmp_path / "gpt2_tokenizer.bin"
    files.write_tokenizer(path, gpt2_tokenizer)
    tokens = [gpt2_tokenizer.decode_bytes([i]) for i in range(50257)]
    assert path.read_bytes() == tokenizer_bytes(tokens)
    for version in (1, 2):
        path.write_bytes(tokenizer_bytes(tokens, version, end=0 if version == 1 else None))
        back = files.read_tokenizer(path)
        assert back.ranks == gpt2_tokenizer.ranks and back.end_of_text == 50256
        assert back.encode("Hello there").tolist() == gpt2_tokenizer.encode("Hello there").tolist()


@pytest.mark.parametrize("name", ["byte", "bpe:270"])
def test_other_tokenizers_round_trip(tmp_path, prose, name):
    words = tokenizer.make(name, prose[1])
    files.write_tokenizer(tmp_path / "x.bin", words)
    back = files.read_tokenizer(tmp_path / "x.bin")
    assert (back.name, back.ranks, back.special) == (words.name, words.ranks, words.special)


BYTES = [bytes([b]) for b in range(256)]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "begin with a header"),
        (header(20240520, 2, 256), "begins with 20240520"),
        (tokenizer_bytes(BYTES, version=3), "version 3"),
        (tokenizer_bytes(BYTES, count=257), "promises 257 tokens, the file of 1,536 bytes has fewer"),
        (tokenizer_bytes(BYTES, count=2**31 - 1), "has fewer"),
        (tokenizer_bytes(BYTES, count=255), "has more"),
        (tokenizer_bytes(BYTES)[:-1], "has fewer"),
        (tokenizer_bytes(BYTES)[:-2] + b"\x07a", "has fewer"),
        (tokenizer_bytes([*BYTES[:-1], b"ab"]), "the first 256 tokens are not the 256 bytes"),
        (tokenizer_bytes([*BYTES, b"ab", b"ab"]), "empty or repeated"),
        (tokenizer_bytes([*BYTES, b""]), "empty"),
        (tokenizer_bytes([*BYTES, b"<|endoftext|>"], end=3), "end of text is token 3"),
    ],
)
def test_damaged_tokenizers_are_refused(tmp_path, content, message):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        files.read_tokenizer(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_token_over_255_bytes_is_refused(tmp_path):
    words = tokenizer.Tokenizer("bpe:257", tokenizer.GPT2_PIECES, [*BYTES, b"a" * 256])
    with pytest.raises(UserError, match="a token has 256 bytes"):
        files.write_tokenizer(tmp_path / "x.bin", words)


# ---- The program's batches and sampling ------------------------------------------------------------------


def mersenne_twister(seed):
    """MT19937 seeded by the recurrence of its authors (Matsumoto and Nishimura 1998), run by Python."""
    state = [seed]
    for j in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + j) % 2**32)
    twister = random.Random()
    twister.setstate((3, (*state, 624), None))
    return twister


def test_mersenne_twister_is_that_of_cpp():
    """The 10000th number from seed 5489, which the C++ standard gives for std::mt19937."""
    twister = mersenne_twister(5489)
    assert [twister.getrandbits(32) for _ in range(10_000)][-1] == 4123659995


def shuffled(count, twister):
    """llm.c's shuffle of range(count)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = twister.getrandbits(32) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def test_training_batches_are_in_llmcs_order():
    """Two epochs of 17 samples and part of a third."""
    B, T = 2, 3
    loader, twister = batches.LlmcLoader(np.arange(17 * B * T + 4), B, T), mersenne_twister(42)
    for sample in [*shuffled(17, twister), *shuffled(17, twister), *shuffled(17, twister)[:6]]:
        inputs, targets = loader.next_batch()
        assert np.array_equal(inputs, np.arange(sample * B * T, (sample + 1) * B * T).reshape(B, T))
        assert np.array_equal(targets, inputs + 1)


# What llm.c's train_gpt2.c (commit f1e2ace) prints for the model and the shards below, compiled by gcc -O2
LOSSES = """
6.434602 6.508258 6.491731 6.460641 6.482021 6.439984 6.506698 6.401340 6.464622 6.430015 6.393169
6.460842 6.421002 6.470214 6.383882 6.397212 6.394194 6.472570 6.451945 6.431022 6.434548 6.444744
6.458311 6.489871 6.466274 6.466702 6.418662 6.445631 6.450938 6.494456 6.471065 6.408348 6.461405
6.447299 6.434843 6.402320 6.444920 6.451632 6.432360 6.468594 6.431434
"""
VALIDATED = {0: 6.468810, 10: 6.468349, 20: 6.467449, 30: 6.456753, 40: 6.446902}


def test_losses_on_uneven_shards_are_llmcs(tmp_path):
    """41 steps of 4 times 64 over four shards, to the last digit and the order of float32 sums."""
    model = GPT2(GPT2Config(vocab_size=512, block_size=64, n_layer=2, n_head=2, n_embd=32), "whole")
    rng = random.Random(7)
    for name, p in model.params.items():
        p[...] = np.reshape([0.4 * rng.random() - 0.2 for _ in range(p.size)], p.shape)
        p += name in ("ln1w", "ln2w", "lnfw")
    paths = {"train": [], "val": []}
    for part, sizes in (("train", (3000, 5203, 2311, 4100)), ("val", (1500, 1900))):
        for k, i in enumerate(map(np.arange, sizes)):
            paths[part].append(tmp_path / f"{part}_{k}.bin")
            write_tokens(paths[part][-1], (i * i // 7 + 5 * i + k) % 512)
    train, val = map(read_tokens, paths.values())
    loader = batches.LlmcLoader(train, 4, 64)
    optimizer = AdamW(model, lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0)
    for step, expected in enumerate(map(float, LOSSES.split())):
        if step in VALIDATED:
            losses = [model.loss(*batch) for batch in batches.validation(val, 4, 64, 5)]
            assert np.isclose(np.mean(losses), VALIDATED[step], rtol=1e-6), step
        assert np.isclose(model.loss_and_grads(*loader.next_batch()), expected, rtol=1e-6), step
        optimizer.step(clip=None)


def test_loader_resumes():
    tokens = np.arange(1000)
    loader, resumed, fresh = (batches.LlmcLoader(tokens, 2, 8) for _ in range(3))
    for _ in range(150):  # into the third epoch
        loader.next_batch()
    resumed.next_batch()
    resumed.load_state(loader.state())
    for _ in range(5):
        assert resumed.next_batch()[0].tolist() == loader.next_batch()[0].tolist()
    assert loader.batch(0)[0].tolist() == fresh.next_batch()[0].tolist()  # and back in the first epoch


def test_last_token_is_only_a_target():
    """2 * 8 * 3 tokens are two samples and no third, 2 * 8 * 3 + 1 are three."""
    assert batches.LlmcLoader(np.arange(48), 2, 8).samples == 2
    assert batches.LlmcLoader(np.arange(49), 2, 8).samples == 3
    with pytest.raises(UserError, match="16 tokens, llm.c's batches of 2 times 8 need 17"):
        batches.LlmcLoader(np.arange(16), 2, 8)


def test_validation_batches_are_in_file_order():
    got = [inputs.tolist() for inputs, _ in batches.validation(np.arange(30), 2, 4, 5)]
    assert got[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [first[0][0] for first in got] == [0, 8, 16, 0, 8]


def test_coins_are_xorshift64():
    """By its recurrence in Python's integers, from llm.c's seed."""
    state, coins = 1337, llmc.coins()
    for _ in range(100):
        state ^= state >> 12
        state = (state ^ state << 25) % 2**64
        state ^= state >> 27
        assert next(coins) == (state * 0x2545F4914F6CDD1D % 2**64 >> 40) / 2**24


def test_choose_inverts_the_cumulative_distribution():
    logits = np.log(np.float32([0.1, 0.2, 1e-30, 0.3, 0.4]))
    coins = (0.0, 0.05, 0.15, 0.299, 0.301, 0.61, 0.999999)
    assert [llmc.choose(logits, coin) for coin in coins] == [0, 0, 1, 1, 3, 4, 4]


def test_printable_drops_control_and_stray_bytes():
    printed = [b"a", b"\n", b"\xc3\xa9", b" the"]
    assert [llmc.printable(token) for token in printed] == printed
    assert llmc.printable(b"\x01") == llmc.printable(b"\x80") == b"" and llmc.printable(b"a\0b") == b"a"


def test_log_lines_of_gpt2_equal_llmcs():
    """The numbers that llm.c prints for the smallest released model."""
    config = GPT2Config()
    lines = llmc.first_lines(config, range(305260), range(32768), 4, 64)
    assert lines[7:] == [
        "num_parameters: 124475904",
        "train dataset num_batches: 1192",
        "val dataset num_batches: 128",
        "num_activations: 73347840",
    ]


def test_generation_equals_whole_passes():
    """Each token from a whole pass and a running sum of probabilities, as in llm.c."""
    model = random_model(CONFIG)
    generated = list(llmc.generate(Decoder(model), 5, 15, earlier=4))
    coins = llmc.coins()
    for _ in range(4):
        next(coins)
    tokens = [5]
    for _ in range(15):
        logits = model.forward(np.array([tokens]))[0, -1].astype(np.float64)
        probs = np.exp(logits - logits.max())
        total, coin, token = 0.0, next(coins) * probs.sum(), 0
        while (total := total + probs[token]) <= coin:
            token += 1
        tokens.append(token)
    assert generated == tokens[1:]


# ---- The program -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(peers, tmp_path_factory):
    """A small model over bytes and a text in llm.c's files: (folder, peer, training, validation tokens)."""
    folder = tmp_path_factory.mktemp("llmc")
    peer = make_peer(peers, vocab_size=256, n_positions=80, n_layer=2)
    (folder / "model.bin").write_bytes(peer_checkpoint(peer, "float32"))
    files.write_tokenizer(folder / "model_tokenizer.bin", tokenizer.byte())
    text = Path(__file__).read_bytes()
    train, val = (np.frombuffer(part, np.uint8).astype(np.int64) for part in (text[:5000], text[5000:7500]))
    write_tokens(folder / "x_train.bin", train)
    write_tokens(folder / "x_val.bin", val)
    return folder, peer, train, val


def run_preset(start, out, capfd, flags):
    """The lines that train.py --preset llm.c prints on standard output."""
    paths = ("--init", start[0] / "model.bin", "--data", start[0] / "x_train.bin", "--out", out)
    status = program.main(["--preset", "llm.c", *map(str, paths), *flags.split()])
    printed, errors = capfd.readouterr()
    assert status == 0, errors
    return printed.splitlines()


def reference(start, steps):
    """PyTorch's run, B=4, T=64: losses, validation losses before steps 0, 10, ..., wte, its second moment."""
    import torch

    _, peer, train, val = start
    peer = copy.deepcopy(peer)

    def loss(tokens, k):
        part = torch.tensor(tokens[256 * k : 256 * (k + 1) + 1])
        logits = peer(part[:-1].view(4, 64)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[1:])

    order = shuffled((len(train) - 1) // 256, mersenne_twister(42))
    adam = torch.optim.AdamW(peer.parameters(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    training, validation = [], []
    for step in range(steps):
        if step % 10 == 0:
            with torch.no_grad():
                validation.append(np.mean([loss(val, k).item() for k in range(5)]))
        adam.zero_grad()
        now = loss(train, order[step])
        now.backward()
        adam.step()
        training.append(now.item())
    wte = peer.transformer.wte.weight
    return training, validation, wte.detach().numpy(), adam.state[wte]["exp_avg_sq"].numpy()


def test_training_log_agrees_with_pytorch(start, tmp_path, capfd):
    """Eleven steps and two validations from the same checkpoint and tokens."""
    lines = run_preset(start, tmp_path / "run", capfd, "--steps 11")
    expected, validation, wte, v = reference(start, 11)
    sizes = "max_seq_len: 80,vocab_size: 256,padded_vocab_size: 256,num_layers: 2,num_heads: 3,channels: 24"
    assert lines[:8] == ["[GPT-2]", *sizes.split(","), "num_parameters: 22560"]
    assert lines[8:10] == ["train dataset num_batches: 19", "val dataset num_batches: 9"]
    assert re.fullmatch(r"num_activations: \d+", lines[10])
    step_line = r"step (\d+): train loss (\d+\.\d{6}) \(took \d+\.\d{6} ms\)"
    steps = [re.fullmatch(step_line, line) for line in lines[12:22] + lines[23:]]
    assert [int(step[1]) for step in steps] == list(range(11))
    assert np.abs(np.array([float(step[2]) for step in steps]) - expected).max() < 1e-4
    printed = [float(re.fullmatch(r"val loss (\d+\.\d{6})", lines[i])[1]) for i in (11, 22)]
    assert np.abs(np.array(printed) - validation).max() < 1e-4
    assert abs(expected[0] - expected[1]) > 1e-3  # batches differ by more than the tolerance
    # Decay and the second moment hardly show in eleven losses, but they do here
    arrays, _ = checkpoint.load(tmp_path / "run" / "last.safetensors")
    assert np.abs(arrays["params.wte"] - wte).max() < 1e-6
    assert np.abs(arrays["adamw.v.wte"] - v).max() < 1e-5 * v.max()


def test_samples_are_printed_as_by_llmc(start, tmp_path, capfd):
    """After validation, before the step; the second sample continues with the random numbers of the first."""
    flags = "--steps 5 --sample-every 2 --sample-tokens 20 --lr 0 --min-lr 0"
    lines = run_preset(start, tmp_path / "run", capfd, flags)
    at = lines.index("generating:")
    assert lines[at - 1].startswith("step 1: ") and lines[at + 1] == "---"
    text = "\n".join(lines)
    samples = [part.split("\n---")[0] for part in text.split("generating:\n---\n")[1:]]
    model = pretrained.find(str(start[0] / "model.bin")).model()  # not changed: the learning rate is 0
    for sample, earlier in zip(samples, (0, 20), strict=True):
        tokens = llmc.generate(Decoder(model), tokenizer.byte().start, 20, earlier)
        expected = b"".join(llmc.printable(bytes([token])) for token in tokens)
        assert sample == expected.decode(errors="replace").replace("\r", "\n").replace("\f", "\n")


@pytest.mark.slow
def test_resumed_run_has_the_same_losses(start, tmp_path, capfd):
    def losses(lines):
        return [line.split(" (")[0] for line in lines if line.startswith("step ")]

    whole = run_preset(start, tmp_path / "whole", capfd, "--steps 6")
    run_preset(start, tmp_path / "parts", capfd, "--steps 3")
    assert program.main(["--resume", str(tmp_path / "parts"), "--steps", "6"]) == 0
    assert losses(capfd.readouterr().out.splitlines()) == losses(whole)[3:]


@pytest.mark.slow
def test_released_weights_give_the_published_losses(tmp_path, capfd, shakespeare, gpt2_tokenizer):
    """What llm.c and its ports print for GPT-2 on tinyshakespeare; needs the weights of gpt2."""
    try:
        pretrained.find("gpt2")
    except UserError as error:
        pytest.skip(f"needs the released weights: {error}")
    flags = "--preset llm.c --data tinyshakespeare --steps 11 --out".split()
    assert program.main([*flags, str(tmp_path / "run")]) == 0
    losses = [float(number) for number in re.findall(r"loss (\d+\.\d+)", capfd.readouterr().out)]
    published = "5.3254 4.6777 5.1908 4.4377 4.1382 4.1445 3.8342 4.2978 4.2804 4.2496 4.3922 4.4159"
    assert np.abs(np.array(losses[:12]) - np.float64(published.split())).max() < 1e-3
