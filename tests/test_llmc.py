"""llm.c's files and its program: formats byte by byte, batches, sampling, and ten steps beside PyTorch.

The reference for formats is a separate writer in this file, which takes transformers' model in PyTorch as
llm.c's script does. Tests that need it are skipped where the peers are missing.
"""

import copy
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from gpt2.commands import convert
from gpt2.data import llmc as batches
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.train import llmc
from gpt2.weights import checkpoint, pretrained
from gpt2.weights import llmc as files

SIZES = dict(vocab_size=97, n_positions=16, n_embd=24, n_layer=3, n_head=3)
CONFIG = GPT2Config(vocab_size=97, block_size=16, n_layer=3, n_head=3, n_embd=24)


def make_peer(peers, **sizes):
    """A GPT2LMHeadModel all of whose parameters are random."""
    torch, transformers = peers
    torch.manual_seed(0)
    config = transformers.GPT2Config(**{**SIZES, **sizes}, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def peer(peers):
    return make_peer(peers)


def peer_tensors(peer, gradients=False):
    """The sixteen tensors in llm.c's order from PyTorch, vocabulary padded with zeros, as torch tensors."""
    import torch

    V, C, L = peer.config.vocab_size, peer.config.n_embd, peer.config.n_layer

    def one(name):
        parameter = peer.transformer.get_parameter(name)
        tensor = (parameter.grad if gradients else parameter).detach()
        return tensor.T.contiguous() if ".c_" in name and name.endswith("weight") else tensor

    def blocks(name):
        return torch.stack([one(f"h.{l}.{name}") for l in range(L)])

    wte = torch.zeros(-(-V // 128) * 128, C)
    wte[:V] = one("wte.weight")
    names = (
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "attn.c_proj.bias",
        "ln_2.weight",
        "ln_2.bias",
        "mlp.c_fc.weight",
        "mlp.c_fc.bias",
        "mlp.c_proj.weight",
        "mlp.c_proj.bias",
    )
    return [wte, one("wpe.weight"), *map(blocks, names), one("ln_f.weight"), one("ln_f.bias")]


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
    """The bytes of a debug state, with PyTorch's logits, loss and gradients."""
    import torch

    logits = peer(torch.tensor(inputs)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    peer.zero_grad()
    loss.backward()
    parts = [
        np.int32(inputs),
        np.int32(targets),
        logits.detach().numpy(),
        loss.detach().numpy(),
        *(tensor.numpy() for tensor in peer_tensors(peer, gradients=True)),
    ]
    return header(20240327, 2, *inputs.shape) + b"".join(part.tobytes() for part in parts)


def random_model(config=CONFIG):
    model = GPT2(config, seed=3)
    noise = np.random.default_rng(4).standard_normal(model.flat_params.size)
    model.flat_params += (0.1 * noise).astype(config.dtype)
    return model


def batch(seed=5, B=2, T=16):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 97, (B, T)), rng.integers(0, 97, (B, T))


# ---- Checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_checkpoints_of_the_peer(peer, tmp_path, kind):
    """What it wrote is read, computes what it computes, and is written again byte by byte."""
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
def test_round_trip(tmp_path, dtype, V):
    model = random_model(GPT2Config(**{**vars(CONFIG), "vocab_size": V, "dtype": dtype}))
    path = tmp_path / "model.bin"
    files.write(path, model.params, model.config)
    back = pretrained.find(str(path), dtype).model()
    assert back.config == model.config
    assert np.array_equal(back.flat_params, model.flat_params.astype(np.float32))
    assert path.stat().st_size == 1024 + 4 * (model.num_parameters + (128 - V) * 24)


def test_bfloat16_is_off_by_its_rounding_only(tmp_path):
    model = random_model()
    files.write(tmp_path / "model.bin", model.params, model.config, "bfloat16")
    back = pretrained.find(str(tmp_path / "model.bin")).model().flat_params
    assert (back != model.flat_params).any()
    assert np.all(np.abs(back - model.flat_params) <= 2.0**-8 * np.abs(model.flat_params))


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
def test_headers_that_lie(tmp_path, numbers, message):
    """One line, and no memory for what they promise."""
    model = random_model()
    path = tmp_path / "model.bin"
    files.write(path, model.params, model.config)
    path.write_bytes(header(*numbers) + path.read_bytes()[1024:])
    with pytest.raises(UserError) as error:
        pretrained.find(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 7, 1023, 1024, 5000, -4, 4])
def test_files_of_another_length(tmp_path, size):
    model = random_model()
    path = tmp_path / "model.bin"
    files.write(path, model.params, model.config)
    content = path.read_bytes()
    path.write_bytes(content + bytes(size) if size == 4 else content[:size])
    with pytest.raises(UserError, match="header"):
        pretrained.find(str(path))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        files.read_config(tmp_path / "nowhere.bin")
    with pytest.raises(UserError, match="directory"):
        files.read_config(tmp_path)


# ---- Debug states ----------------------------------------------------------------------------------------


def test_a_state_of_the_peer_agrees(peer, tmp_path, capsys):
    """PyTorch's logits, loss and sixteen gradients beside ours, through the command."""
    (tmp_path / "model.bin").write_bytes(peer_checkpoint(peer, "float32"))
    (tmp_path / "state.bin").write_bytes(peer_state(peer, *batch()))
    assert convert.main([str(tmp_path / "model.bin"), "--check-state", str(tmp_path / "state.bin")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 18 + 1 and lines[-1] == "all agree"
    assert all(line.endswith("ok") and float(line.split()[1]) < 1e-5 for line in lines[1:-1])


def test_a_state_is_written_as_the_peer_does(peer, tmp_path):
    """Byte by byte where nothing is computed, within rounding where it is."""
    inputs, targets = batch()
    (tmp_path / "model.bin").write_bytes(peer_checkpoint(peer, "float32"))
    expected = peer_state(peer, inputs, targets)
    model = pretrained.find(str(tmp_path / "model.bin")).model()
    path = tmp_path / "state.bin"
    files.write_state(path, convert.state_of(model, inputs, targets), model.config)
    content = path.read_bytes()
    assert len(content) == len(expected)
    ints = 1024 + 2 * 4 * inputs.size
    assert content[:ints] == expected[:ints]
    ours, theirs = (np.frombuffer(data[ints:], "<f4") for data in (content, expected))
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("name, index", [("logits", (1, 2, 3)), ("fcprojw", (2, 0, 5)), ("lnfb", (7,))])
def test_what_does_not_agree_is_named(tmp_path, capsys, name, index):
    model = random_model()
    state = convert.state_of(model, *batch())
    array = state.logits if name == "logits" else state.grads[name]
    array[index] += 0.1 * np.linalg.norm(array)
    files.write(tmp_path / "model.bin", model.params, model.config)
    files.write_state(tmp_path / "state.bin", state, model.config)
    assert convert.main([str(tmp_path / "model.bin"), "--check-state", str(tmp_path / "state.bin")]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if "NOT OK" in line]
    shown = name if name == "logits" else f"d{name}"
    assert len(wrong) == 1 and wrong[0].split()[0] == shown and wrong[0].endswith(f"most at {list(index)}")


def test_not_a_number_does_not_agree(tmp_path):
    model = random_model()
    state = convert.state_of(model, *batch())
    state.grads["wte"][3, 4] = np.nan
    errors = {name: error for name, error, _ in convert.compare(random_model(), state)}
    assert np.isnan(errors.pop("dwte")) and max(errors.values()) == 0
    files.write(tmp_path / "model.bin", model.params, model.config)
    files.write_state(tmp_path / "state.bin", state, model.config)
    assert not convert.check_state(tmp_path / "model.bin", tmp_path / "state.bin", say=lambda line: None)


def test_write_state_by_the_command(tmp_path, capsys):
    from gpt2.data.tokens import write_tokens

    model = random_model()
    files.write(tmp_path / "model.bin", model.params, model.config)
    write_tokens(tmp_path / "tokens.bin", np.arange(40) % 97)
    model_bin, state, tokens = (str(tmp_path / name) for name in ("model.bin", "state.bin", "tokens.bin"))
    sizes = ["--batch-size", "3", "--block-size", "8"]
    assert convert.main([model_bin, "--write-state", state, "--data", tokens, *sizes]) == 0
    written = files.read_state(state, model.config)
    assert written.inputs.tolist() == np.arange(24).reshape(3, 8).tolist()
    assert np.array_equal(written.targets, written.inputs + 1)
    assert convert.main([model_bin, "--check-state", state]) == 0
    capsys.readouterr()
    assert convert.main([model_bin, "--write-state", state, "--data", tokens]) == 2
    assert "40 tokens, a batch of B=4 and T=64 needs 257" in capsys.readouterr().err
    longer = ["--batch-size", "1", "--block-size", str(model.config.block_size + 1)]
    assert convert.main([model_bin, "--write-state", state, "--data", tokens, *longer]) == 2
    assert f"; give --block-size {model.config.block_size}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: header(20240326, 2, 2, 16) + data[1024:], "begins with 20240326"),
        (
            lambda data: header(20240327, 1, 2, 16) + data[1024:],
            "version 1 of llm.c's debug states, expected 2",
        ),
        (lambda data: header(20240327, 2, 2**30, 16) + data[1024:], "is it of this model?"),
        (lambda data: header(20240327, 2, 2, 2**30) + data[1024:], "the model reads at most 16"),
        (lambda data: header(20240327, 2, 0, 16) + data[1024:], "a batch of B=0"),
        (lambda data: data[:-4], "is it of this model?"),
        (lambda data: data + bytes(8), "is it of this model?"),
        (lambda data: data[:1024] + struct.pack("<i", 97) + data[1028:], "inputs hold tokens from"),
        (lambda data: data[:100], "begin with a header of 1024"),
    ],
)
def test_damaged_states(tmp_path, change, message):
    model = random_model()
    path = tmp_path / "state.bin"
    files.write_state(path, convert.state_of(model, *batch()), model.config)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError) as error:
        files.read_state(path, model.config)
    assert message in str(error.value) and "\n" not in str(error.value)


# ---- Tokenizers ------------------------------------------------------------------------------------------


def tokenizer_bytes(tokens, version=2, end=None, count=None):
    """A tokenizer file by its definition."""
    count = len(tokens) if count is None else count
    end = len(tokens) - 1 if end is None else end
    return header(20240328, version, count, end) + b"".join(bytes([len(t)]) + t for t in tokens)


def test_gpt2s_tokenizer(gpt2_tokenizer, tmp_path):
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
def test_own_tokenizers(tmp_path, prose, name):
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
def test_damaged_tokenizers(tmp_path, content, message):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        files.read_tokenizer(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_token_that_is_too_long(tmp_path):
    words = tokenizer.Tokenizer("bpe:257", tokenizer.GPT2_PIECES, [*BYTES, b"a" * 256])
    with pytest.raises(UserError, match="a token has 256 bytes"):
        files.write_tokenizer(tmp_path / "x.bin", words)


# ---- The program's batches and sampling ------------------------------------------------------------------


class Twister:
    """MT19937 by its definition (Matsumoto and Nishimura 1998)."""

    def __init__(self, seed):
        state = [seed]
        for j in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + j) % 2**32)
        self.state = state

    def numbers(self):
        x = self.state
        while True:
            y = (x[0] & 0x80000000) | (x[1] & 0x7FFFFFFF)
            x.append(x[397] ^ (y >> 1) ^ (0x9908B0DF if y % 2 else 0))
            del x[0]
            y = x[-1]
            y ^= y >> 11
            y ^= y << 7 & 0x9D2C5680
            y ^= y << 15 & 0xEFC60000
            yield y ^ y >> 18


def test_the_twister_of_this_file():
    """The 10000th number from seed 5489, as the C++ standard gives it for std::mt19937."""
    numbers = Twister(5489).numbers()
    assert [next(numbers) for _ in range(10_000)][-1] == 4123659995


def test_training_batches_are_in_llmcs_order():
    """Two rounds and a bit over 17 samples, by a straightforward shuffle with the twister above."""
    B, T = 2, 3
    tokens = np.arange(17 * B * T + 4)
    loader = batches.LlmcLoader(tokens, B, T)
    numbers = Twister(42).numbers()
    expected = []
    for _ in range(3):
        order = list(range(17))
        for i in range(16, 0, -1):
            j = next(numbers) % (i + 1)
            order[i], order[j] = order[j], order[i]
        expected += order
    for k in range(40):
        inputs, targets = loader.next_batch()
        start = expected[k] * B * T
        assert inputs.tolist() == [[start, start + 1, start + 2], [start + 3, start + 4, start + 5]]
        assert np.array_equal(targets, inputs + 1)


def test_the_loader_goes_on_where_it_was():
    tokens = np.arange(1000)
    loader = batches.LlmcLoader(tokens, 2, 8)
    for _ in range(150):  # into the third round
        loader.next_batch()
    state = loader.state()
    expected = [loader.next_batch()[0].tolist() for _ in range(5)]
    other = batches.LlmcLoader(tokens, 2, 8)
    other.next_batch()
    other.load_state(state)
    assert [other.next_batch()[0].tolist() for _ in range(5)] == expected
    assert (
        loader.batch(0)[0].tolist() == batches.LlmcLoader(tokens, 2, 8).next_batch()[0].tolist()
    )  # and back


def test_the_last_token_is_a_target_only():
    """2 * 8 * 3 tokens are two samples and no third, 2 * 8 * 3 + 1 are three."""
    assert batches.LlmcLoader(np.arange(48), 2, 8).samples == 2
    assert batches.LlmcLoader(np.arange(49), 2, 8).samples == 3
    with pytest.raises(UserError, match="16 tokens, llm.c's batches of 2 times 8 need 17"):
        batches.LlmcLoader(np.arange(16), 2, 8)


def test_validation_is_in_file_order():
    got = [inputs.tolist() for inputs, _ in batches.validation(np.arange(30), 2, 4, 5)]
    assert got[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [first[0][0] for first in got] == [0, 8, 16, 0, 8]


def test_coins():
    """xorshift64* by its recurrence, in Python's own integers, from the seed that llm.c has."""
    state, coins = 1337, llmc.Coins()
    for _ in range(100):
        state ^= state >> 12
        state = (state ^ state << 25) % 2**64
        state ^= state >> 27
        assert coins.next() == (state * 0x2545F4914F6CDD1D % 2**64 >> 40) / 2**24


def test_choose_inverts_the_cumulated_probabilities():
    logits = np.log(np.float32([0.1, 0.2, 0.0 + 1e-30, 0.3, 0.4]))
    assert [llmc.choose(logits, coin) for coin in (0.0, 0.05, 0.15, 0.299, 0.301, 0.61, 0.999999)] == [
        0,
        0,
        1,
        1,
        3,
        4,
        4,
    ]


def test_printable():
    assert [llmc.printable(t) for t in (b"a", b"\n", b"\x01", b"\x80", b"\xc3\xa9", b" the")] == [
        b"a",
        b"\n",
        b"",
        b"",
        b"\xc3\xa9",
        b" the",
    ]


def test_lines_for_gpt2():
    """The numbers that llm.c prints for the smallest released model."""
    config = GPT2Config()
    assert llmc.model_lines(config)[-1] == "num_parameters: 124475904"
    assert llmc.activations_line(config, 4, 64) == "num_activations: 73347840"
    assert llmc.data_lines(range(305260), range(32768), 4, 64) == [
        "train dataset num_batches: 1192",
        "val dataset num_batches: 128",
    ]
    assert llmc.step_line(3, 4.13821351, 0.0201) == "step 3: train loss 4.138214 (took 20.100000 ms)"
    assert llmc.val_line(5.3254137) == "val loss 5.325414"


def test_generation_with_the_cache_is_that_of_whole_passes():
    """Token after token by whole passes and a sum over probabilities, as llm.c does it."""
    from gpt2.model.decoder import Decoder

    model = random_model()
    got = list(llmc.generate(Decoder(model), 5, 15, earlier=4))
    coins = llmc.Coins()
    for _ in range(4):
        coins.next()
    tokens = [5]
    for _ in range(15):
        logits = model.forward(np.array([tokens]))[0, -1].astype(np.float64)
        probs = np.exp(logits - logits.max())
        total, coin, token = 0.0, coins.next() * probs.sum(), 0
        while (total := total + probs[token]) <= coin:
            token += 1
        tokens.append(token)
    assert got == tokens[1:]


# ---- The program -----------------------------------------------------------------------------------------


def tokens_of(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


@pytest.fixture(scope="module")
def start(peers, tmp_path_factory):
    """A folder with a small model over bytes in llm.c.s files: (folder, peer, training, validation)."""
    from gpt2.data.tokens import write_tokens

    folder = tmp_path_factory.mktemp("llmc")
    peer = make_peer(peers, vocab_size=256, n_positions=80, n_layer=2)
    (folder / "model.bin").write_bytes(peer_checkpoint(peer, "float32"))
    files.write_tokenizer(folder / "model_tokenizer.bin", tokenizer.byte())
    text = Path(__file__).read_text(encoding="utf-8")
    train, val = tokens_of(text[:5000]), tokens_of(text[5000:7500])
    write_tokens(folder / "x_train.bin", train)
    write_tokens(folder / "x_val.bin", val)
    return folder, peer, train, val


def run_preset(start, folder, capfd, *arguments):
    """What train.py --preset llm.c prints: standard output alone, as lines."""
    from gpt2.train import program

    status = program.main(
        [
            "--preset",
            "llm.c",
            "--init",
            str(start[0] / "model.bin"),
            "--data",
            str(start[0] / "x_train.bin"),
            "--out",
            str(folder),
            *arguments,
        ]
    )
    out, err = capfd.readouterr()
    assert status == 0, err
    return out.splitlines()


def reference(start, steps):
    """By PyTorch, B=4, T=64: losses, those of validation before steps 0, 10, ..., wte, its moment v."""
    import torch

    _, peer, train, val = start
    peer = copy.deepcopy(peer)

    def loss(tokens, k):
        part = torch.tensor(tokens[256 * k : 256 * (k + 1) + 1])
        logits = peer(part[:-1].view(4, 64)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[1:])

    numbers, order = Twister(42).numbers(), list(range((len(train) - 1) // 256))
    for i in range(len(order) - 1, 0, -1):
        j = next(numbers) % (i + 1)
        order[i], order[j] = order[j], order[i]
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


def test_losses_are_those_of_an_independent_program(start, tmp_path, capfd):
    """The same checkpoint and tokens: eleven steps and two validations, from the lines it prints."""
    lines = run_preset(start, tmp_path / "run", capfd, "--steps", "11")
    expected, validation, wte, v = reference(start, 11)
    assert lines[:8] == [
        "[GPT-2]",
        "max_seq_len: 80",
        "vocab_size: 256",
        "padded_vocab_size: 256",
        "num_layers: 2",
        "num_heads: 3",
        "channels: 24",
        "num_parameters: 22560",
    ]
    assert lines[8:10] == ["train dataset num_batches: 19", "val dataset num_batches: 9"]
    assert re.fullmatch(r"num_activations: \d+", lines[10])
    steps = [
        re.fullmatch(r"step (\d+): train loss (\d+\.\d{6}) \(took \d+\.\d{6} ms\)", line)
        for line in lines[12:22] + lines[23:]
    ]
    assert [int(step[1]) for step in steps] == list(range(11))
    assert np.abs(np.array([float(step[2]) for step in steps]) - expected).max() < 1e-4
    text = [float(re.fullmatch(r"val loss (\d+\.\d{6})", lines[i])[1]) for i in (11, 22)]
    assert np.abs(np.array(text) - validation).max() < 1e-4
    assert abs(expected[0] - expected[1]) > 1e-3  # batches differ by more than what is allowed
    # Decay and the second moment's memory hardly show in eleven losses, but they do here
    arrays, _ = checkpoint.load(tmp_path / "run" / "last.safetensors")
    assert np.abs(arrays["params.wte"] - wte).max() < 1e-6
    assert np.abs(arrays["adamw.v.wte"] - v).max() < 1e-5 * v.max()


def test_it_generates_as_llmc_does(start, tmp_path, capfd):
    """After validation, before the step; the second sample goes on with the random numbers of the first."""
    from gpt2.model.decoder import Decoder

    lines = run_preset(
        start,
        tmp_path / "run",
        capfd,
        "--steps",
        "5",
        "--sample-every",
        "2",
        "--sample-tokens",
        "20",
        "--lr",
        "0",
        "--min-lr",
        "0",
    )
    at = lines.index("generating:")
    assert lines[at - 1].startswith("step 1: ") and lines[at + 1] == "---"
    text = "\n".join(lines)
    samples = [part.split("\n---")[0] for part in text.split("generating:\n---\n")[1:]]
    model = pretrained.find(str(start[0] / "model.bin")).model()  # untouched: the learning rate is 0
    for sample, earlier in zip(samples, (0, 20), strict=True):
        tokens = llmc.generate(Decoder(model), tokenizer.byte().start, 20, earlier)
        expected = b"".join(llmc.printable(bytes([token])) for token in tokens)
        assert sample == expected.decode(errors="replace").replace("\r", "\n").replace("\f", "\n")


@pytest.mark.slow
def test_it_resumes_in_the_same_order(start, tmp_path, capfd):
    from gpt2.train import program

    whole = run_preset(start, tmp_path / "whole", capfd, "--steps", "6")
    run_preset(start, tmp_path / "parts", capfd, "--steps", "3")
    assert program.main(["--resume", str(tmp_path / "parts"), "--steps", "6"]) == 0
    rest = capfd.readouterr().out.splitlines()

    def losses(lines):
        return [line.split(" (")[0] for line in lines if line.startswith("step ")]

    assert losses(rest) == losses(whole)[3:]


@pytest.mark.slow
def test_the_released_weights_give_the_published_losses(tmp_path, capfd, shakespeare, gpt2_tokenizer):
    """What llm.c and its ports print for GPT-2 on tinyshakespeare; needs the weights of gpt2."""
    from gpt2.train import program

    try:
        pretrained.find("gpt2")
    except UserError as error:
        pytest.skip(f"needs the released weights: {error}")
    assert (
        program.main(
            [
                "--preset",
                "llm.c",
                "--data",
                "tinyshakespeare",
                "--steps",
                "11",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    text = [float(number) for number in re.findall(r"loss (\d+\.\d+)", capfd.readouterr().out)]
    published = [
        5.3254,
        4.6777,
        5.1908,
        4.4377,
        4.1382,
        4.1445,
        3.8342,
        4.2978,
        4.2804,
        4.2496,
        4.3922,
        4.4159,
    ]
    assert np.abs(np.array(text[:12]) - published).max() < 1e-3
