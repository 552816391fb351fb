"""Own layers and blocks: used by everything done with a model, or refused by name; never ignored."""

import json
import pickle
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import gpt2
from gpt2.backward import auto, compiled
from gpt2.commands import check, evaluate, sample
from gpt2.commands.explain import __main__ as explain
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer
from gpt2.layers.layer import Parameter
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder, SlowGeneration
from gpt2.model.description import Block, Description, described
from gpt2.model.optimizer import AdamW
from gpt2.model.own import OwnFile
from gpt2.model.tensors import ranges_of
from gpt2.parallel.processes import Processes
from gpt2.sampling import generate
from gpt2.train import cost, flops, program
from gpt2.weights import checkpoint
from tests.support.models import greedy, random_model, slope
from tests.support.pages import blocks
from tests.support.slow import rest_slow

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=23, block_size=9, n_layer=2, n_head=3, n_embd=12, dtype="float64")
FILES = {
    block.text.split('"""')[1].split(".py")[0]: block.text
    for block in blocks("docs/adding-a-layer.md")
    if block.kind == "python"
}


def own(name):
    """LAYERS and BLOCK of one of the page's files, as keyword arguments of GPT2."""
    names: dict = {}
    exec(FILES[name], names)
    return {key.lower(): names[key] for key in ("LAYERS", "BLOCK") if key in names}


def model_of(backward=None, config=CONFIG, **options):
    return random_model(config, backward, **options)


def batch():
    return np.random.default_rng(3).integers(0, 23, (2, 2, 7))


NAMES = ["rmsnorm", "rope", "swiglu"]
each_file = pytest.mark.parametrize("name", NAMES)


def test_page_has_three_files():
    assert list(FILES) == NAMES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a text, the page's files, and one with both layers and a block."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    attention = 'LAYERS = {"attention": lambda qkv, *, num_heads: qkv[..., : qkv.shape[-1] // 3]}\n'
    for name, text in {**FILES, "both": FILES["swiglu"] + "\n\n" + attention}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def train(*flags):
    """train.py with small sizes; the last of repeated flags counts."""
    small = "--n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 2 --warmup 0 --eval-batches 1"
    short = "--sample-tokens 0 --threads 1 --data text.txt --tokenizer byte --steps 1"
    return program.main([*small.split(), *short.split(), *" ".join(flags).split()])


# ---- Training


@each_file
@pytest.mark.parametrize("backward", [None, "auto", "whole", "mix"])
def test_every_backward_is_the_slope_of_the_uncompiled_loss(name, backward):
    mixes = {"rmsnorm": "manual,attention=auto", "rope": "auto,gelu=manual", "swiglu": "auto,matmul=manual"}
    model = model_of(mixes[name] if backward == "mix" else backward, **own(name))
    uncompiled = model_of(compile=False, **own(name))
    loss = model.loss_and_grads(*batch())
    assert abs(loss - uncompiled.loss(*batch())) < 1e-12
    assert abs(loss - model_of().loss(*batch())) > 1e-3  # the own layers are used
    direction = np.random.default_rng(4).standard_normal(model.flat_params.shape)
    expected = slope(uncompiled, uncompiled.flat_params, direction, *batch())
    assert abs(model.flat_grads @ direction - expected) < 1e-6 * np.linalg.norm(model.flat_grads)


@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_assigned_layer_is_used_everywhere(backward):
    tokens, targets = batch()
    rope = own("rope")["layers"]["attention"]
    model, expected = model_of(backward), model_of(layers={"attention": rope})
    before = model.loss_and_grads(tokens, targets)
    model.layers["attention"] = rope.forward
    losses = [m.loss_and_grads(tokens, targets) for m in (model, expected)]
    assert losses[0] == pytest.approx(losses[1], 1e-12)
    np.testing.assert_allclose(model.flat_grads, expected.flat_grads, rtol=1e-9, atol=1e-12)
    assert abs(model.loss(tokens, targets) - before) > 1e-3
    np.testing.assert_allclose(model.forward(tokens), expected.forward(tokens), rtol=1e-9, atol=1e-12)
    with pytest.warns(SlowGeneration):
        assert list(generate(model, [1], 6, temperature=0)) == list(generate(expected, [1], 6, temperature=0))
    assert not model.description.standard


def test_assignments_that_change_tensors_are_refused():
    model = model_of()
    with pytest.raises(UserError, match="changes the model's tensors; give it when the model is made"):
        model.layers["layernorm"] = own("rmsnorm")["layers"]["layernorm"]
    for change in (lambda: model.layers.update({}), lambda: model.layers.pop("gelu")):
        with pytest.raises(TypeError, match="one by one"):
            change()
    with pytest.raises(UserError, match="block already uses its layers"):
        model_of(**own("swiglu")).layers["attention"] = own("rope")["layers"]["attention"]


def test_layer_may_declare_parameters():
    def scaled(inp, slope, bias):
        return np.tanh(inp * slope) + bias

    def parameters(config):
        n = 4 * config.n_embd
        return [Parameter("slope", (n,), start=1.5, decayed=True), Parameter("bias", (n,), start="normal")]

    layers = {"gelu": Layer("scaled", scaled, None, by_position=True, parameters=parameters)}
    grads = []
    for backward in (None, "auto", "whole"):
        model = GPT2(CONFIG, backward, seed=1, layers=layers)
        assert model.params["gelu_slope"].shape == (2, 48) and (model.params["gelu_slope"] == 1.5).all()
        assert model.params["gelu_bias"].std() == pytest.approx(0.02, rel=0.3)
        assert ranges_of(model.description.shapes)["gelu_slope"] in model.decayed
        assert ranges_of(model.description.shapes)["gelu_bias"] not in model.decayed
        model.loss_and_grads(*batch())
        grads.append(model.flat_grads)
        assert np.abs(model.grads["gelu_slope"]).min() > 0
        np.testing.assert_allclose(grads[-1], grads[0], rtol=1e-9, atol=1e-13)
    assert list(generate(model, [1], 6, temperature=0))


# ---- Generation


@pytest.mark.parametrize("name", ["", *NAMES])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 1, 3, 1]])
def test_reading_in_pieces_equals_the_forward(name, dtype, tolerance, pieces):
    """Of a model with the layers of a file, or of GPT-2's own."""
    model = model_of(config=replace(CONFIG, dtype=dtype), **own(name) if name else {})
    tokens = np.random.default_rng(5).integers(0, 23, (2, 9))
    decoder = Decoder(model, batch=2)
    assert not decoder.slow
    ends = np.cumsum([0, *pieces])
    logits = np.concatenate([decoder.read(tokens[:, a:b]) for a, b in zip(ends, ends[1:])], axis=1)
    if 1 in pieces:
        assert model.one_position[2][1] is not None  # a single position is read by a program
    expected = model.forward(tokens)
    assert logits.dtype == expected.dtype
    assert np.abs(logits - expected).max() < tolerance * np.abs(expected).max()


def test_layer_without_read_is_slow_and_right():
    rope = own("rope")["layers"]
    model = model_of(layers={name: layer.forward for name, layer in rope.items()})
    message = r"attention \(rope\), encoder \(embed\) does not declare"
    with pytest.warns(SlowGeneration, match=message) as warnings:
        text = list(generate(model, [1, 2], 7, temperature=0))
    assert text == greedy(model, [1, 2], 7) and len(warnings) == 1
    assert text == list(generate(model_of(layers=rope), [1, 2], 7, temperature=0))


def test_false_by_position_is_refused():
    rope = Layer("rope", own("rope")["layers"]["attention"].forward, None, by_position=True)
    mixing = Block(lambda x, p, layers, config: x + np.cumsum(x, axis=1), by_position=True)
    for options in ({"layers": {"attention": rope}}, {"block": mixing}):
        with pytest.raises(UserError, match="gives other numbers than its forward"):
            Decoder(model_of(**options))


def scaled_from_4(out, start=0):
    """A copy whose positions from 4 on are scaled, where the first of `out` is position `start`."""
    out = np.array(out)
    out[:, max(0, 4 - start) :] *= 1.5
    return out


def test_reading_that_is_wrong_from_position_4_is_refused():
    layer = own("rope")["layers"]["attention"]

    def read(qkv, **state):
        return scaled_from_4(layer.read(qkv, **state), state["start"])

    def act(inp):  # right in pieces of up to four positions, each of which begins at 0
        return scaled_from_4(inp * inp)

    def block(x, p, layers, config):
        return scaled_from_4(x + layers["gelu"](x))

    for options, name in (
        ({"layers": {"attention": Layer("rope", layer.forward, None, read=read)}}, r"attention \(rope\)"),
        ({"layers": {"gelu": Layer("act", act, None, by_position=True)}}, r"gelu \(act\)"),
        ({"block": Block(block, by_position=True)}, r"the block \(block\)"),
    ):
        with pytest.raises(UserError, match=f"{name}, read in pieces, gives .* first at position 4; its by"):
            list(generate(model_of(**options), [1], 3))


def test_reading_is_tried_once():
    calls = []
    layer = own("rope")["layers"]["attention"]

    def read(qkv, **state):
        calls.append(state["start"])
        return layer.read(qkv, **state)

    model = model_of(layers={"attention": Layer("rope", layer.forward, None, read=read)})
    Decoder(model)
    first = len(calls)
    Decoder(model)
    assert {*range(9)} <= {*calls[:first]} and len(calls) - first < first - 9


@pytest.mark.parametrize("backward", rest_slow(["", "whole", "manual,block=auto"]))
def test_file_with_layers_and_a_block_runs(backward, folder, capsys):
    """Its attention has no manual backward, and only the block uses it."""
    flags = f"--backward {backward}" if backward else ""
    assert train("--layers both.py --out run", flags) == 0, capsys.readouterr().err
    assert program.main(["--resume", "run", "--steps", "2"]) == 0, capsys.readouterr().err
    assert sample.main(["--run", "run", "--max-tokens", "2"]) == 0
    assert evaluate.main(["--run", "run", "--data", "text.txt"]) == 0


def test_missing_manual_backward_of_a_block_names_a_choice_that_works():
    options = {"layers": {"gelu": lambda inp: np.tanh(inp)}, **own("swiglu")}
    with pytest.raises(ValueError, match="block is swiglu_block, which has no .* take 'manual,block=auto'"):
        GPT2(CONFIG, "manual", **options)
    assert GPT2(CONFIG, "manual,block=auto", **options).spec == GPT2(CONFIG, **options).spec


@pytest.mark.parametrize("make", [auto, compiled])
@pytest.mark.parametrize("backward", [None, "whole"])
def test_compiled_layer_may_be_passed_or_assigned(make, backward):
    act = Layer("act", lambda inp: (inp * inp, (inp,)), lambda dout, saved: (2.0 * saved[0] * dout,))
    passed, assigned = model_of(backward, layers={"gelu": make(act)}), model_of(backward)
    assigned.layers["gelu"] = make(act)
    uncompiled = model_of(layers={"gelu": act}, compile=False)
    losses = [model.loss_and_grads(*batch()) for model in (passed, assigned, uncompiled)]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-12)
    np.testing.assert_array_equal(passed.flat_grads, assigned.flat_grads)
    assert backward or passed.layers["gelu"].kind == assigned.layers["gelu"].kind


def test_generate_takes_and_returns_text(model, tmp_path):
    words = tokenizer.byte()
    text = generate(model, "Once", 8, seed=3, tokenizer=words)
    assert text == words.decode(list(generate(model, words.encode("Once"), 8, seed=3)))
    assert generate(model, "Once", 8, seed=3, tokenizer=words, stop=[text[2]]) == text[:2]
    with pytest.raises(UserError, match="has no tokenizer"):
        generate(model, "Once")
    with pytest.raises(UserError, match="the prompt is token ids"):
        generate(model, [1], stop=["x"])
    gpt2.save(model, tmp_path / "m.safetensors", words)
    assert generate(gpt2.load(tmp_path / "m.safetensors"), "Once", 8, seed=3) == text


# ---- Files


@each_file
def test_saved_model_is_loaded_with_its_layers(name, tmp_path):
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


def test_standard_weights_with_own_layers_are_refused(tmp_path):
    gpt2.save(GPT2(CONFIG), tmp_path / "plain.safetensors")
    with pytest.raises(UserError, match="GPT-2 as it was released, and own layers are given"):
        gpt2.load(tmp_path / "plain.safetensors", **own("rope"))


def test_unknown_tensor_in_a_file_is_refused(tmp_path):
    model = model_of(**own("rmsnorm"))
    arrays = checkpoint.model_arrays(model_of())
    checkpoint.save(tmp_path / "x.safetensors", arrays, checkpoint.model_state(model))
    with pytest.raises(UserError, match="params.ln1b is not a tensor of this model"):
        gpt2.load(tmp_path / "x.safetensors", **own("rmsnorm"))


@pytest.mark.slow
@each_file
def test_run_with_own_layers(name, folder, capsys):
    """A dry run, a run, resuming, sample, evaluate; then the file changes, disappears, and is elsewhere."""
    file = folder / "mine.py"
    file.write_text(FILES[name])
    description = Description(GPT2Config(256, 16, 2, 2, 16), OwnFile.at(file))
    flags = "--layers mine.py --n-layer 2 --sample-tokens 4"
    assert train(flags, "--dry-run") == 0
    assert f"{description.num_parameters:,}" in capsys.readouterr().out
    assert not (folder / "runs").exists()
    assert train(flags, "--steps 2 --out run") == 0
    assert program.main(["--resume", "run", "--steps", "4"]) == 0
    capsys.readouterr()
    last = folder / "run" / "last.safetensors"
    model, state = gpt2.load(last), checkpoint.load(last)[1]
    assert state["own"]["file"] == {"path": str(file), "sha256": OwnFile.at(file).sha256}
    assert model.description.summary() == description.summary()
    assert list(model.params) == [tensor for tensor, _ in description.shapes]
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
    assert sample.main(["--run", "run", "--max-tokens", "1", "--layers", f"{name}.py"]) == 0
    assert program.main(["--resume", "run", "--steps", "6", "--layers", f"{name}.py"]) == 0


@pytest.mark.slow
def test_run_refuses_other_layers_and_takes_adapters(folder, capsys):
    """The other file is named before its consequences; adapters choose the backward that they need."""
    assert train("--layers swiglu.py --out run") == 0
    capsys.readouterr()
    assert program.main(["--resume", "run", "--steps", "2", "--layers", "rope.py"]) == 2
    error = capsys.readouterr().err
    assert "swiglu.py, and rope.py holds others" in error and error.count("\n") == 1
    assert train("--train lora:2 --layers rope.py --out adapted") == 0
    capsys.readouterr()
    assert train("--train lora:2 --layers swiglu.py --out no") == 2
    assert "own block has taken the place of the matrices" in capsys.readouterr().err
    assert not (folder / "no").exists()


@pytest.mark.slow
def test_worker_processes_load_the_file(folder):
    losses = []
    for out, flags in (("one", ""), ("two", "--parallel processes --workers 2")):
        assert train("--steps 2 --layers both.py --out", out, flags) == 0
        lines = (folder / out / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_processes_refuse_layers_that_cannot_be_imported():
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
        ("LAYERS = {'gelu': lambda inp: exit(3)}", r"\['gelu'\], <lambda>: fails for .*: SystemExit: 3"),
        ("x = 1", "expected LAYERS = {'gelu': my_gelu_forward}, from the"),
        ("LAYERS = {}", "expected LAYERS = "),
        ("LAYERS = {'attn': print}", "there is no layer 'attn' to replace, expected encoder"),
        ("LAYERS = {'gelu': 3}", r"layers\['gelu'\]: is 3, expected a function"),
    ],
)
def test_bad_file_is_refused_in_one_line(content, message, folder, capsys):
    (folder / "mine.py").write_text(content)
    assert train("--layers mine.py") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message, error)
    assert not (folder / "runs").exists()


# ---- Counts


def test_counts_include_own_layers():
    standard = flops.training_flops(CONFIG, 3, 8)
    # the formula counts the head of the last position for all positions
    assert 3 * flops._recorded_flops(Description(CONFIG), 3, 8) == standard
    d = Description(CONFIG, **own("swiglu"))
    C, H, L = 12, 32, 2
    less = 2 * L * (8 * C * C - 3 * C * H)  # of a token: two matrices (4C, C), three of (H, C)
    assert flops.training_flops(d, 3, 8) == standard - 3 * 3 * 8 * less
    estimated = cost.estimate(CONFIG, 1, 4, backward="auto", **own("swiglu"))
    assert estimated.parameters == d.num_parameters == model_of(**own("swiglu")).num_parameters


# ---- Refusals

EXTRA_PARAMETER = dict(parameters=lambda config: [Parameter("extra", (3,))])


def gelu(f):
    return {"layers": {"gelu": f}}


def gelu_backward(backward):
    return gelu(Layer("f", lambda inp: (inp, ()), backward))


def block(f, **options):
    """A block that is a function of x alone, or of all four arguments."""
    return {"block": f if f.__code__.co_argcount == 4 else lambda x, p, layers, config: f(x), **options}


REFUSED = [
    (dict(layers={"swiglu": np.tanh}), "no layer 'swiglu' to replace, expected encoder"),
    (gelu(lambda inp: inp[:1]), r"layers\['gelu'\], .*returns float64 \(1, 3, 48\), expected float64 \(2"),
    (gelu(lambda inp: inp.astype("f4")), r"returns float32 \(2, 3, 48\), expected float64"),
    (gelu(lambda inp: None), "returns NoneType, expected float64"),
    (gelu(lambda inp: inp * np.random.random()), "gives another result each time"),
    (gelu(lambda inp: np.tanh(inp, out=inp)), "writes to its arguments"),
    (gelu(lambda inp: inp @ np.ones(3)), "fails for float64 .*ValueError"),
    (gelu(lambda inp, slope: inp), "takes 'slope', which is not a parameter of this model"),
    (gelu(lambda inp, *rest: inp), r"takes \*rest; a layer names each"),
    (gelu(lambda inp, *, tau: inp), "takes the keyword 'tau'"),
    (dict(layers={"residual": lambda a: a}), "takes 1 arguments, the model passes a, b"),
    (gelu(Layer("f", lambda inp: inp, None, **EXTRA_PARAMETER)), "declares the parameter 'extra'"),
    (gelu_backward(lambda d, s: (d, d)), "2 gradients for 1 inputs"),
    (gelu_backward(lambda d, s: (d[0],)), "gradient 0 of its backward is float64"),
    (gelu_backward(lambda d, s: d), "its backward returns a ndarray, expected a tuple"),
    (block(lambda x: x[:1]), r"block .*returns float64 \(1, 3, 12\), expected"),
    (block(lambda x, p, layers, config: x @ p["nope"]), "reads an unknown parameter 'nope'"),
    (block(lambda x, p, layers, config: layers["rope"](x)), "asks for the layer 'rope'; there are"),
    (dict(block=Block(lambda x, p, layers, config: x, **EXTRA_PARAMETER)), "'extra' and never reads it"),
    (dict(layers=dict(attention=lambda x: x[..., :12]), backward="manual"), "attention is <lambda>, which"),
    (block(lambda x: x, backward="manual"), "block is <lambda>, which has no backward"),
    (block(lambda x: x, backward="auto,gelu=manual"), "gelu runs only inside the block"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_bad_layer_is_refused_by_name(options, message):
    with pytest.raises(UserError, match=message) as error:
        GPT2(CONFIG, **options)
    assert "\n" not in str(error.value)


def test_standard_layers_are_not_own():
    model = GPT2(CONFIG, layers={"gelu": LAYERS["gelu"], "matmul": LAYERS["matmul"].forward})
    assert model.description.standard and model.description.state() == {}
    assert described(CONFIG, {}, "here").standard


# ---- Which run is read


@pytest.fixture
def model():
    """A model with a token for each byte; also that of the fixture `run` in tests/conftest.py."""
    return GPT2(replace(CONFIG, vocab_size=256), seed=1)


def test_sample_says_which_run_it_reads(run, monkeypatch, capsys):
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


# ---- check and explain

OWN = {"rmsnorm": ["layernorm"], "rope": ["attention", "encoder"], "swiglu": ["block"]}  # layers of each file


@pytest.mark.slow
@each_file
def test_check_and_explain_take_a_file_of_layers(name, tmp_path, capsys):
    """They show the layers of the file alone."""
    file = tmp_path / f"{name}.py"
    file.write_text(FILES[name])
    layers = ["--layers", str(file)]

    def printed(command, *arguments, status=0):
        capsys.readouterr()
        assert command.main([*arguments, *layers]) == status
        out, err = capsys.readouterr()
        return err if status else out

    out = printed(check)
    rows = [line.split()[0] for line in out.splitlines() if " ok" in line]
    assert rows == [*OWN[name], "model"] and "all hold" in out and ("manual" in out) == (name == "rmsnorm")
    out = printed(explain, "all")
    assert f"def {OWN[name][0]}_backward(" in out and "agreement       holds" in out
    assert ("None: this layer has only the derived backward" in out) == (name != "rmsnorm")
    if name == "rope":
        page = tmp_path / "page.html"
        printed(explain, "all", "--out", str(page))
        text = page.read_text(encoding="utf-8")
        assert f"{OWN[name][0]}_backward" in text and text.count("data-from=") > 10
    out = printed(explain, "model")
    assert FILES[name].split("\n\n\n")[1].strip() in out or name == "rope"  # its first function, as it stands
    assert f"# {OWN[name][0]}\n" in out and "def loss_backward(" in out
    assert ("def block_forward(" in out) == (name != "swiglu") and ("dwpe" in out) == (name != "rope")
    assert f"has no layer gelu; it has {', '.join(OWN[name])}" in printed(explain, "gelu", status=2)
    expected = f"expected a file X.py or one of {', '.join(OWN[name])}, model"
    assert expected in printed(check, "gelu", status=2)


def test_check_finds_a_wrong_backward(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(FILES["rmsnorm"].replace("dinp = ", "dinp = 1.001 * "))
    assert check.main(["layernorm", "--layers", str(tmp_path / "mine.py")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("layernorm")]
    assert line.count("BAD") == 2 and line.count("ok") == 3
