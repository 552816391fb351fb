"""Own layers and blocks: used by all that is done with a model, or refused by name; never ignored."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest

import gpt2
from gpt2.backward import auto, compiled
from gpt2.commands import check, evaluate, sample
from gpt2.commands.explain import __main__ as explain
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder, SlowGeneration
from gpt2.model.description import Block, Description, described
from gpt2.model.gpt2 import Parameter
from gpt2.model.optimizer import AdamW
from gpt2.model.own import OwnFile
from gpt2.parallel.processes import Processes
from gpt2.sampling import generate
from gpt2.train import cost, flops, program
from gpt2.weights import checkpoint
from tests.support.pages import blocks

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=23, block_size=9, n_layer=2, n_head=3, n_embd=12, dtype="float64")
FILES = {
    block.text.split('"""')[1].split(".py")[0]: block.text
    for block in blocks("docs/adding-a-layer.md")
    if block.kind == "python"
}


def own(name):
    """LAYERS and BLOCK of one of the page's files, as keyword arguments."""
    found: dict = {}
    exec(FILES[name], found)
    return {key.lower(): found[key] for key in ("LAYERS", "BLOCK") if key in found}


def without_reading(layers):
    """The same as forward functions alone."""
    return {name: layer.forward for name, layer in layers.items()}


def model_of(backward=None, config=CONFIG, **options):
    model = GPT2(config, backward, seed=1, **options)
    model.flat_params += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def batch():
    return np.random.default_rng(3).integers(0, 23, (2, 2, 7))


NAMES = ["rmsnorm", "rope", "swiglu"]
BY_NAME = pytest.mark.parametrize("name", NAMES)


def test_the_page_has_three_files():
    assert list(FILES) == NAMES


# ---- Training


@BY_NAME
@pytest.mark.parametrize("backward", [None, "auto", "whole", "mix"])
def test_every_backward_is_that_of_the_changed_model(name, backward):
    """Against central differences of the forward as it is written: h^2 = 1e-10 of a third derivative."""
    spec = {"rmsnorm": "manual,attention=auto", "rope": "auto,gelu=manual", "swiglu": "auto,matmul=manual"}
    model = model_of(spec[name] if backward == "mix" else backward, **own(name))
    plain = model_of(compile=False, **own(name))
    tokens, targets = batch()
    loss = model.loss_and_grads(tokens, targets)
    assert abs(loss - plain.loss(tokens, targets)) < 1e-12
    assert abs(loss - model_of().loss(tokens, targets)) > 1e-3  # GPT-2 would have another
    direction = np.random.default_rng(4).standard_normal(plain.flat_params.shape)
    ends = []
    for h in (1e-5, -1e-5):
        plain.flat_params[...] = model.flat_params + h * direction
        ends.append(plain.loss(tokens, targets))
    slope = (ends[0] - ends[1]) / 2e-5
    assert abs(model.flat_grads @ direction - slope) < 1e-6 * np.linalg.norm(model.flat_grads)


@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_a_layer_that_is_assigned_is_used_by_all(backward):
    tokens, targets = batch()
    rope = own("rope")["layers"]["attention"]
    model = model_of(backward)
    before = model.loss_and_grads(tokens, targets)
    model.layers["attention"] = rope.forward
    expected = model_of(layers={"attention": rope})
    assert model.loss_and_grads(tokens, targets) == pytest.approx(
        expected.loss_and_grads(tokens, targets), 1e-12
    )
    np.testing.assert_allclose(model.flat_grads, expected.flat_grads, rtol=1e-9, atol=1e-12)
    assert abs(model.loss(tokens, targets) - before) > 1e-3
    np.testing.assert_allclose(model.forward(tokens), expected.forward(tokens), rtol=1e-9, atol=1e-12)
    with pytest.warns(SlowGeneration):
        assert list(generate(model, [1], 6, temperature=0)) == list(generate(expected, [1], 6, temperature=0))
    assert not model.description.standard


def test_a_layer_that_is_assigned_keeps_the_tensors():
    model = model_of()
    with pytest.raises(UserError, match="changes the model's tensors; give it when the model is made"):
        model.layers["layernorm"] = own("rmsnorm")["layers"]["layernorm"]
    for change in (lambda: model.layers.update({}), lambda: model.layers.pop("gelu")):
        with pytest.raises(TypeError, match="one by one"):
            change()
    with pytest.raises(UserError, match="block already uses its layers"):
        model_of(**own("swiglu")).layers["attention"] = own("rope")["layers"]["attention"]


def test_a_layer_has_tensors_of_its_own():
    def scaled(inp, slope, bias):
        return np.tanh(inp * slope) + bias

    def parameters(config):
        n = 4 * config.n_embd
        return [Parameter("slope", (n,), start=1.5, decayed=True), Parameter("bias", (n,), start="normal")]

    layers = {"gelu": Layer("scaled", scaled, None, by_position=True, parameters=parameters)}
    tokens, targets = batch()
    grads = []
    for backward in (None, "auto", "whole"):
        model = GPT2(CONFIG, backward, seed=1, layers=layers)
        assert model.params["gelu_slope"].shape == (2, 48) and (model.params["gelu_slope"] == 1.5).all()
        assert model.params["gelu_bias"].std() == pytest.approx(0.02, rel=0.3)
        assert model.description.ranges["gelu_slope"] in model.decayed
        assert model.description.ranges["gelu_bias"] not in model.decayed
        model.loss_and_grads(tokens, targets)
        grads.append(model.flat_grads)
        assert np.abs(model.grads["gelu_slope"]).min() > 0
    for other in grads[1:]:
        np.testing.assert_allclose(other, grads[0], rtol=1e-9, atol=1e-13)
    assert list(generate(model, [1], 6, temperature=0))


# ---- Generation


def greedy(model, tokens, count):
    """The likeliest token, `count` times, each by a whole pass."""
    window = list(tokens)
    for _ in range(count):
        window.append(int(np.argmax(model.forward(np.array([window]))[0, -1])))
    return window[len(tokens) :]


@BY_NAME
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 1, 3, 1]])
def test_reading_on_gives_the_numbers_of_the_forward(name, dtype, tolerance, pieces):
    config = GPT2Config(**{**vars(CONFIG), "dtype": dtype})
    model = model_of(config=config, **own(name))
    tokens = np.random.default_rng(5).integers(0, 23, (2, 9))
    decoder = Decoder(model, batch=2)
    assert not decoder.slow
    assert model.generation.programs[2][1] is not None  # a single position is read by a program
    cuts = np.cumsum([0, *pieces])
    logits = np.concatenate([decoder.read(tokens[:, a:b]) for a, b in zip(cuts, cuts[1:])], axis=1)
    expected = model.forward(tokens)
    assert logits.dtype == expected.dtype
    assert np.abs(logits - expected).max() < tolerance * np.abs(expected).max()


def test_a_layer_that_does_not_say_how_it_reads_on_is_slow_and_right():
    model = model_of(layers=without_reading(own("rope")["layers"]))
    with pytest.warns(
        SlowGeneration, match=r"attention \(rope\), encoder \(embed\) does not declare"
    ) as text:
        made = list(generate(model, [1, 2], 7, temperature=0))
    assert made == greedy(model, [1, 2], 7) and len(text) == 1
    assert made == list(generate(model_of(**own("rope")), [1, 2], 7, temperature=0))


def test_what_a_layer_says_falsely_of_reading_on_is_found():
    rope = own("rope")["layers"]["attention"].forward
    model = model_of(layers={"attention": Layer("rope", rope, None, by_position=True)})
    with pytest.raises(UserError, match="gives other numbers than its forward"):
        list(generate(model, [1], 3))
    mixing = Block(lambda x, p, layers, config: x + np.cumsum(x, axis=1), by_position=True)
    with pytest.raises(UserError, match="gives other numbers than its forward"):
        Decoder(model_of(block=mixing))


def late(found, start, wrong):
    """The same, but for positions from 4 on."""
    out = np.array(found)
    out[:, max(0, 4 - start) :] *= wrong
    return out


def test_what_is_wrong_from_the_fifth_position_on_is_found():
    layer = own("rope")["layers"]["attention"]

    def read(qkv, **given):
        return late(layer.read(qkv, **given), given["start"], 1.5)

    def act(inp):  # right in pieces of four, which begin at 0 each
        return late(inp * inp, 0, 1.5)

    def block(x, p, layers, config):
        return late(x + layers["gelu"](x), 0, 1.5)

    for options, named in (
        ({"layers": {"attention": Layer("rope", layer.forward, None, read=read)}}, r"attention \(rope\)"),
        ({"layers": {"gelu": Layer("act", act, None, by_position=True)}}, r"gelu \(act\)"),
        ({"block": Block(block, by_position=True)}, r"the block \(block\)"),
    ):
        with pytest.raises(UserError, match=f"{named}, read in pieces, gives .* first at position 4; its by"):
            list(generate(model_of(**options), [1], 3))


def test_layers_are_tried_once(monkeypatch):
    calls = []
    layer = own("rope")["layers"]["attention"]

    def read(qkv, **given):
        calls.append(given["start"])
        return layer.read(qkv, **given)

    model = model_of(layers={"attention": Layer("rope", layer.forward, None, read=read)})
    Decoder(model)
    first = len(calls)
    Decoder(model)
    assert {*range(9)} <= {*calls[:first]} and len(calls) - first < first - 9


FILE_OF_BOTH = (
    FILES["swiglu"]
    + """


LAYERS = {"attention": lambda qkv, *, num_heads: qkv[..., : qkv.shape[-1] // 3]}
"""
)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        *(
            pytest.param(f"--backward {kind}", marks=pytest.mark.slow)
            for kind in ("auto", "whole", "manual,block=auto", "auto,layernorm=manual")
        ),
        pytest.param("--parallel processes --workers 2", marks=pytest.mark.slow),
    ],
)
def test_a_file_with_layers_and_a_block(flags, tmp_path, monkeypatch, capsys):
    """Its attention has no backward by hand, and stands in the block alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(FILE_OF_BOTH)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    small = "--n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 2 --warmup 0 --eval-batches 1"
    rest = "--sample-tokens 0 --threads 1 --data text.txt --tokenizer byte --layers two.py --steps 1"
    given = [*small.split(), *rest.split(), *flags.split(), "--out", "run"]
    assert program.main(given) == 0, capsys.readouterr().err
    assert program.main(["--resume", "run", "--steps", "2"]) == 0, capsys.readouterr().err
    assert sample.main(["--run", "run", "--max-tokens", "2"]) == 0
    assert evaluate.main(["--run", "run", "--data", "text.txt"]) == 0


def test_a_backward_by_hand_that_a_block_lacks_names_one_that_works():
    model = {"layers": {"gelu": lambda inp: np.tanh(inp)}, **own("swiglu")}
    with pytest.raises(ValueError, match="block is swiglu_block, which has no .* take 'manual,block=auto'"):
        GPT2(CONFIG, "manual", **model)
    assert GPT2(CONFIG, "manual,block=auto", **model).spec == GPT2(CONFIG, **model).spec


@pytest.mark.parametrize("make", [auto, compiled])
@pytest.mark.parametrize("backward", [None, "whole"])
def test_a_compiled_layer_is_given_or_assigned_alike(make, backward):
    act = Layer("act", lambda inp: (inp * inp, (inp,)), lambda dout, saved: (2.0 * saved[0] * dout,))
    given, assigned = model_of(backward, layers={"gelu": make(act)}), model_of(backward)
    assigned.layers["gelu"] = make(act)
    written = model_of(layers={"gelu": act}, compile=False)
    tokens, targets = batch()
    losses = [model.loss_and_grads(tokens, targets) for model in (given, assigned, written)]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-12)
    np.testing.assert_array_equal(given.flat_grads, assigned.flat_grads)
    assert backward or given.layers["gelu"].kind == assigned.layers["gelu"].kind


def test_text_goes_in_and_comes_out(tmp_path):
    model = GPT2(GPT2Config(**{**vars(CONFIG), "vocab_size": 256}), seed=1)
    words = tokenizer.byte()
    made = generate(model, "Once", 8, seed=3, tokenizer=words)
    assert made == words.decode(list(generate(model, words.encode("Once"), 8, seed=3)))
    assert generate(model, "Once", 8, seed=3, tokenizer=words, stop=[made[2]]) == made[:2]
    with pytest.raises(UserError, match="has no tokenizer"):
        generate(model, "Once")
    with pytest.raises(UserError, match="the prompt is token ids"):
        generate(model, [1], stop=["x"])
    gpt2.save(model, tmp_path / "m.safetensors", words)
    assert generate(gpt2.load(tmp_path / "m.safetensors"), "Once", 8, seed=3) == made


# ---- Files


@BY_NAME
def test_what_is_saved_is_the_same_model_again(name, tmp_path):
    model, path = model_of(**own(name)), tmp_path / "mine.safetensors"
    gpt2.save(model, path)
    with pytest.raises(UserError, match="own layers.*give them: gpt2.load"):
        gpt2.load(path)
    again = gpt2.load(path, **own(name))
    assert list(again.params) == list(model.params)
    assert again.forward(*batch()) == model.forward(*batch())
    other = own("rope" if name != "rope" else "rmsnorm")
    with pytest.raises(UserError, match="made with own layers .* given are others"):
        gpt2.load(path, **other)
    for target in ("x.bin", "folder"):
        with pytest.raises(UserError, match="this is another model"):
            gpt2.save(model, tmp_path / target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.safetensors"]


def test_layers_are_not_for_weights_of_gpt_2(tmp_path):
    gpt2.save(GPT2(CONFIG), tmp_path / "plain.safetensors")
    with pytest.raises(UserError, match="GPT-2 as it was released, and own layers are given"):
        gpt2.load(tmp_path / "plain.safetensors", **own("rope"))


def test_a_tensor_that_is_not_the_models_is_refused(tmp_path):
    model = model_of(**own("rmsnorm"))
    arrays = checkpoint.model_arrays(model_of())
    checkpoint.save(tmp_path / "x.safetensors", arrays, checkpoint.model_state(model))
    with pytest.raises(UserError, match="params.ln1b is not a tensor of this model"):
        gpt2.load(tmp_path / "x.safetensors", **own("rmsnorm"))


@pytest.mark.slow
@BY_NAME
def test_a_run_with_own_layers(name, tmp_path, monkeypatch, capsys):
    """train.py --layers: dry, a run, going on with it, sample, evaluate; then the file changes, and goes."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(FILES[name])
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    small = "--n-layer 2 --n-head 2 --n-embd 16 --block-size 16 --batch-size 2 --warmup 0 --eval-batches 1"
    rest = "--sample-tokens 4 --threads 1 --data text.txt --tokenizer byte --layers mine.py".split()
    d = Description(GPT2Config(256, 16, 2, 2, 16), OwnFile.at(file))
    assert program.main([*small.split(), *rest, "--dry-run"]) == 0
    assert f"{d.num_parameters:,}" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert program.main([*small.split(), *rest, "--steps", "2", "--out", "run"]) == 0
    assert program.main(["--resume", "run", "--steps", "4"]) == 0
    capsys.readouterr()
    last = tmp_path / "run" / "last.safetensors"
    model, state = gpt2.load(last), checkpoint.load(last)[1]
    assert state["own"]["file"] == {"path": str(file), "sha256": OwnFile.at(file).sha256}
    assert model.description.summary() == d.summary() and list(model.params) == [n for n, _ in d.shapes]
    assert sample.main(["--run", "run", "--max-tokens", "4"]) == 0
    assert "reading run, step 4" in capsys.readouterr().err
    assert evaluate.main(["--run", "run", "--data", "text.txt", "--json", "--checkpoint", "last"]) == 0
    assert json.loads(capsys.readouterr().out)["nats_per_token"] > 0
    changed = FILES[name] + "\n# other\n"
    for content, message in ((changed, "has changed"), (None, "cannot be read from here")):
        file.unlink() if content is None else file.write_text(content)
        for command in (
            lambda: sample.main(["--run", "run"]),
            lambda: evaluate.main(["--run", "run", "--data", "text.txt"]),
            lambda: program.main(["--resume", "run", "--steps", "6"]),
        ):
            assert command() == 2
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and ("made with the layers of" in error or message in error)
    (tmp_path / "moved.py").write_text(FILES[name])
    assert sample.main(["--run", "run", "--max-tokens", "1", "--layers", "moved.py"]) == 0
    assert program.main(["--resume", "run", "--steps", "6", "--layers", "moved.py"]) == 0


@pytest.mark.slow
def test_other_layers_and_adapters_of_a_run_with_own_layers(tmp_path, monkeypatch, capsys):
    """Another file is named before what follows from it; adapters find the backward that they need."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(FILES[name])
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    flags = "--n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 2 --eval-batches 1 --threads 1"
    more = "--sample-tokens 0 --data text.txt --tokenizer byte --steps 1".split()
    assert program.main([*flags.split(), *more, "--layers", "swiglu.py", "--out", "run"]) == 0
    capsys.readouterr()
    assert program.main(["--resume", "run", "--steps", "2", "--layers", "rope.py"]) == 2
    text = capsys.readouterr().err
    assert "swiglu.py, and rope.py holds others" in text and text.count("\n") == 1
    lora = [*flags.split(), *more, "--train", "lora:2"]
    assert program.main([*lora, "--layers", "rope.py", "--out", "adapted"]) == 0
    capsys.readouterr()
    assert program.main([*lora, "--layers", "swiglu.py", "--out", "no"]) == 2
    assert "own block has taken the place of the matrices" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_worker_processes_get_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILES["swiglu"])
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    flags = (
        "--n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 2 --eval-batches 1 --sample-tokens 0"
    )
    more = "--steps 2 --threads 1 --data text.txt --tokenizer byte --layers mine.py".split()
    losses = []
    for kind in ([], ["--parallel", "processes", "--workers", "2"]):
        assert program.main([*flags.split(), *more, *kind, "--out", f"run{len(kind)}"]) == 0
        lines = (tmp_path / f"run{len(kind)}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_no_other_process_can_find_is_refused():
    model = model_of(layers={"gelu": lambda inp: np.tanh(inp)})
    with pytest.raises(UserError, match="put them into a file"):
        Processes(model, AdamW(model), 2)
    assert pickle.loads(pickle.dumps(OwnFile("x.py", "0"))) == OwnFile("x.py", "0")


@pytest.mark.parametrize(
    "content, message",
    [
        ("def f(:", r"mine.py:1: SyntaxError: [^(]*$"),
        ("\nimport no_such_thing", r"mine.py:2: ModuleNotFoundError"),
        ("import sys\nsys.exit()", r"mine.py:2: SystemExit"),
        (
            "LAYERS = {'gelu': lambda inp: exit(3)}",
            r"\['gelu'\], <lambda>: fails for .*: SystemExit: 3",
        ),
        ("x = 1", "expected LAYERS = {'gelu': my_gelu_forward}, from the"),
        ("LAYERS = {}", "expected LAYERS = "),
        ("LAYERS = {'attn': print}", "there is no layer 'attn' to replace, expected encoder"),
        ("LAYERS = {'gelu': 3}", r"layers\['gelu'\]: is 3, expected a function"),
    ],
)
def test_a_file_without_layers_is_one_line_and_nothing_is_written(
    content, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(content)
    (tmp_path / "text.txt").write_text("the quick brown fox. " * 60)
    assert program.main("--data text.txt --tokenizer byte --layers mine.py --threads 1".split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message, error)
    assert not (tmp_path / "runs").exists()


# ---- Counts


def test_parameters_and_products_are_the_models():
    standard = Description(CONFIG)
    recorded = flops._recorded_flops(standard, 3, 8)
    # the head of the last position is counted for all, as in the formula
    assert recorded == flops.forward_flops(CONFIG, 3, 8)
    d = Description(CONFIG, **own("swiglu"))
    C, H, L = 12, 32, 2
    less = 2 * L * (8 * C * C - 3 * C * H)  # of a token: two matrices (4C, C), three of (H, C)
    assert flops.forward_flops(d, 3, 8) == recorded - 3 * 8 * less
    estimated = cost.estimate(CONFIG, 1, 4, backward="auto", **own("swiglu"))
    assert estimated.parameters == d.num_parameters == model_of(**own("swiglu")).num_parameters


# ---- Refusals

DECLARES = dict(parameters=lambda config: [Parameter("extra", (3,))])


def gelu(f):
    return {"layers": {"gelu": f}}


def with_backward(backward):
    return gelu(Layer("f", lambda inp: (inp, ()), backward))


def block(f, **options):
    """A block of x alone, or of all that a block is given."""
    return {"block": f if f.__code__.co_argcount == 4 else lambda x, p, layers, config: f(x), **options}


REFUSED = [
    (dict(layers={"swiglu": np.tanh}), "no layer 'swiglu' to replace, expected encoder"),
    (gelu(lambda inp: inp[:1]), r"layers\['gelu'\], .*returns float64 \(1, 3, 48\), expected float64 \(2"),
    (gelu(lambda inp: inp.astype("f4")), r"returns float32 \(2, 3, 48\), expected float64"),
    (gelu(lambda inp: None), "returns NoneType, expected float64"),
    (gelu(lambda inp: inp * np.random.random()), "gives another result each time"),
    (gelu(lambda inp: np.tanh(inp, out=inp)), "writes to its arguments"),
    (gelu(lambda inp: inp @ np.ones(3)), "fails for float64 .*ValueError"),
    (gelu(lambda inp, slope: inp), "takes 'slope', which is no parameter of this model"),
    (gelu(lambda inp, *rest: inp), r"takes \*rest; a layer names each"),
    (gelu(lambda inp, *, tau: inp), "takes the keyword 'tau'"),
    (dict(layers={"residual": lambda a: a}), "takes 1 arguments, it is given a, b"),
    (gelu(Layer("f", lambda inp: inp, None, **DECLARES)), "declares the parameter 'extra'"),
    (with_backward(lambda d, s: (d, d)), "2 gradients for 1 inputs"),
    (with_backward(lambda d, s: (d[0],)), "gradient 0 of its backward is float64"),
    (with_backward(lambda d, s: d), "its backward returns a ndarray, expected a tuple"),
    (block(lambda x: x[:1]), r"block .*returns float64 \(1, 3, 12\), expected"),
    (block(lambda x, p, layers, config: x @ p["nope"]), "reads a parameter 'nope' that is not there"),
    (block(lambda x, p, layers, config: layers["rope"](x)), "asks for the layer 'rope'; there are"),
    (dict(block=Block(lambda x, p, layers, config: x, **DECLARES)), "'extra' and never reads it"),
    (
        dict(layers={"attention": lambda qkv: qkv[..., :12]}, backward="manual"),
        "attention is <lambda>, which",
    ),
    (block(lambda x: x, backward="manual"), "block is <lambda>, which has no backward"),
    (block(lambda x: x, backward="auto,gelu=manual"), "gelu runs only inside the block"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(options, message):
    with pytest.raises(UserError, match=message) as found:
        GPT2(CONFIG, **options)
    assert "\n" not in str(found.value)


def test_a_standard_formula_is_no_own_layer():
    model = GPT2(CONFIG, layers={"gelu": LAYERS["gelu"], "matmul": LAYERS["matmul"].forward})
    assert model.description.standard and model.description.state() == {}
    assert described(CONFIG, {}, "here").standard


# ---- Which run is read


@pytest.fixture
def model():
    """Of the run in tests/conftest.py."""
    return GPT2(GPT2Config(**{**vars(CONFIG), "vocab_size": 256}), seed=1)


def test_sample_and_evaluate_say_what_they_read_and_what_else_there_was(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    arrays, state = checkpoint.load(run / "last.safetensors")
    for number, name in enumerate(("old", "new")):
        shutil.copytree(run, run.parent / "runs" / name)
        path = run.parent / "runs" / name / "last.safetensors"
        checkpoint.save(path, arrays, {**state, "step": 7, "turn": number})
    assert sample.main(["--max-tokens", "1"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("reading runs/new, step 7: last.safetensors")
    assert second.startswith("it is the newest of 2 runs; --run names another: runs/old, step 7")
    assert sample.main(["--max-tokens", "1", "--run", "runs/old"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reading runs/old")


# ---- Explained and checked ---------------------------------------------------------------------------

OWN = {"rmsnorm": ["layernorm"], "rope": ["attention", "encoder"], "swiglu": ["block"]}


@pytest.mark.slow
@BY_NAME
def test_explained_and_checked(name, tmp_path, capsys):
    """gpt2 check and gpt2 explain take a file of layers, and look at what is its own."""
    file = tmp_path / f"{name}.py"
    file.write_text(FILES[name])
    assert check.main(["--layers", str(file)]) == 0
    out = capsys.readouterr().out
    rows = [line.split()[0] for line in out.splitlines() if " ok" in line]
    assert rows == [*OWN[name], "model"] and "all hold" in out and ("manual" in out) == (name == "rmsnorm")
    assert explain.main(["all", "--layers", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"def {OWN[name][0]}_backward(" in out and "agreement       holds" in out
    assert ("None: this layer has only the derived backward" in out) == (name != "rmsnorm")
    page = tmp_path / "page.html"
    assert explain.main(["all", "--layers", str(file), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert f"{OWN[name][0]}_backward" in text and text.count("data-from=") > 10
    capsys.readouterr()
    assert explain.main(["model", "--layers", str(file)]) == 0
    out = capsys.readouterr().out
    assert FILES[name].split("\n\n\n")[1].strip() in out or name == "rope"  # its first function, as it stands
    assert f"# {OWN[name][0]}\n" in out and "def loss_backward(" in out
    assert ("def block_forward(" in out) == (name != "swiglu") and ("dwpe" in out) == (name != "rope")
    assert explain.main(["gelu", "--layers", str(file)]) == 2
    assert f"has no layer gelu; it has {', '.join(OWN[name])}" in capsys.readouterr().err
    assert check.main(["gelu", "--layers", str(file)]) == 2
    assert f"expected a file X.py or one of {', '.join(OWN[name])}, model" in capsys.readouterr().err


def test_an_own_backward_that_is_wrong_is_found(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(FILES["rmsnorm"].replace("dinp = ", "dinp = 1.001 * "))
    assert check.main(["layernorm", "--layers", str(tmp_path / "mine.py")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("layernorm")]
    assert line.count("BAD") == 2 and line.count("ok") == 3
