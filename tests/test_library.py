"""What `import gpt2` offers: every name is there, typed, documented, and does what its docstring says."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2
from gpt2 import autodiff as ad
from gpt2.data import tokenizer
from gpt2.errors import UserError

ROOT = Path(__file__).parents[1]
CONFIG = gpt2.GPT2Config(vocab_size=256, block_size=16, n_layer=2, n_head=2, n_embd=8)


@pytest.fixture
def model():
    return gpt2.GPT2(CONFIG, seed=5)


@pytest.mark.parametrize("path", ["m.bin", "m.safetensors", "folder"])
def test_a_saved_model_is_loaded_again(path, model, tmp_path):
    if path == "folder":
        pytest.importorskip("safetensors")
    written = gpt2.save(model, tmp_path / "new" / path, tokenizer.byte())
    assert len(written) >= (1 if path == "m.safetensors" else 2) and all(file.exists() for file in written)
    again = gpt2.load(tmp_path / "new" / path, backward="auto")
    assert again.config == CONFIG and again.spec == "auto"
    assert np.array_equal(again.flat_params, model.flat_params)
    words = gpt2.load_tokenizer(tmp_path / "new" / path)
    prompt = words.encode("x")
    assert list(gpt2.generate(again, prompt, 6)) == list(gpt2.generate(model, prompt, 6))


def test_other_precisions(model, tmp_path):
    gpt2.save(model, tmp_path / "m.bin", dtype="bfloat16")
    again = gpt2.load(tmp_path / "m.bin", dtype="float64")
    assert again.flat_params.dtype == np.float64
    # 8 bits of mantissa: at most 1 part in 256 away, and somewhere away
    np.testing.assert_allclose(again.flat_params, model.flat_params, rtol=2**-8)
    assert not np.array_equal(again.flat_params, model.flat_params)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda model, folder: gpt2.load(folder / "nothing"), "no such file or folder"),
        (
            lambda model, folder: gpt2.save(model, folder / "m.bin", dtype="int8"),
            "expected float32 or bfloat16",
        ),
        (lambda model, folder: gpt2.save(model, folder / "m", dtype="bfloat16"), "is always float32"),
        (
            lambda model, folder: gpt2.load_tokenizer(gpt2.save(model, folder / "m.bin")[0]),
            "no tokenizer belongs",
        ),
    ],
)
def test_mistakes_are_one_line(call, message, model, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        call(model, tmp_path)
    assert "\n" not in str(error.value)


def test_every_name_is_documented():
    for name in set(gpt2.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(gpt2, name)), name
    for name in gpt2.autodiff.__all__:
        value = getattr(gpt2.autodiff, name)
        assert inspect.getdoc(value), name


def test_the_names_are_there_without_another_import():
    """In a new process: here, other tests have imported everything."""
    code = "import gpt2, sys; [getattr(gpt2, n) for n in gpt2.__all__]; print(gpt2.autodiff.grad(abs)(-2.0))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("-1.0\n", 0), run.stderr


def test_it_says_that_it_is_typed():
    assert (ROOT / "gpt2" / "py.typed").exists()
    assert 'gpt2 = ["py.typed"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_stub_knows_the_names_of_the_compiler():
    """Type checkers read it in place of the file that loads the names on first use."""
    stub = ast.parse((ROOT / "gpt2" / "autodiff" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # a module of the package is imported as one
    assert imported - {(None, "tree")} == {(module, name) for name, module in gpt2.autodiff._HOME.items()}
    (names,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(names)) == gpt2.autodiff.__all__


# ---- Manners ---------------------------------------------------------------------------------------------


def test_what_things_say_of_themselves():
    model = gpt2.GPT2(gpt2.GPT2Config.preset("tiny"))
    assert repr(model) == (
        "<GPT2: 120,576 parameters; 2 blocks, 2 heads, 64 channels, 256 tokens, context 64; "
        "float32, backward='manual'>"
    )
    shown = model._repr_html_()
    assert "<td>qkv</td><td>matmul</td><td>qkvw 2 x 192 x 64, qkvb 2 x 192</td><td>24,960</td>" in shown
    assert "<td>head</td><td>matmul</td><td>wte 256 x 64</td><td>shared</td>" in shown
    optimizer = gpt2.AdamW(model, lr=1e-3)
    assert repr(optimizer).startswith("<AdamW of 120,576 parameters: lr=0.001, betas=(0.9, 0.95), ")
    assert repr(model.layers["gelu"]) == "<Layer gelu: gelu_forward, backward manual>"

    def loss(w, x):
        return np.sum(np.tanh(w * x))

    derivative = ad.grad(loss)
    assert repr(derivative) == "<loss_grad: ad.grad(loss), not called yet>"
    derivative(np.ones(3), 2.0)
    assert repr(derivative) == "<loss_grad: ad.grad(loss), last called with w: f64[3], x: f64[]>"
    assert "def loss_grad(" in derivative._repr_html_()
    program = derivative.__derived__.last[1]
    assert repr(program).startswith("<Program loss_grad: ")
    page = program._repr_html_()
    assert page.startswith("<pre>import numpy") and "multiply(" in page and "<svg" in page


@pytest.mark.parametrize("module", [gpt2, ad, gpt2.train])
def test_dir_shows_what_is_public(module):
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(
        name for name in module.__all__ if not name.startswith("__")
    )
    assert all(getattr(module, name) is not None for name in module.__all__)


WRONG_KINDS = {
    "GPT2('tiny')": "GPT2: config is 'tiny', expected a GPT2Config; GPT2Config.preset('tiny') is one",
    "GPT2({})": "GPT2: config is {}, expected a GPT2Config",
    "AdamW(3)": "AdamW: model is 3, expected a model with flat_params",
    "AdamW(model, lr='big')": "AdamW: lr is 'big', expected a number",
    "AdamW(model, betas=0.9)": "AdamW: betas is 0.9, expected two numbers",
    "save(3, 'x')": "save: model is 3, expected a GPT2",
    "ad.grad(3)": "grad: expected a function, got 3",
    "ad.check_backward(1, 2, 3)": "check_backward: forward is 1, expected a function",
    "ad.check_backward(np.sin, np.cos, 3)": "check_backward: cases is 3, expected a list",
    "ad.check_backward(np.sin, np.cos, [3])": "check_backward: case 0 is int, expected a tuple",
    "ad.check_backward(np.dot, np.dot, (np.ones(2), np.ones(2)))": "or [(x, y)] for two inputs",
}


def test_a_backward_that_fails_is_told_how_it_is_called():
    def backward(a, b, dout):
        return dout @ b.T, a.T @ dout

    with pytest.raises(ValueError) as error:
        ad.check_backward(np.matmul, backward, [(np.ones((2, 3)), np.ones((3, 4)))])
    assert error.value.__notes__ == ["check_backward: the backward is called with dout, *inputs"]


@pytest.mark.parametrize("call", WRONG_KINDS)
def test_wrong_kinds_are_one_line(call):
    names = dict(vars(gpt2), GPT2=gpt2.GPT2, AdamW=gpt2.AdamW, save=gpt2.save, ad=ad, np=np)
    names["model"] = gpt2.GPT2(gpt2.GPT2Config.preset("tiny"))
    with pytest.raises((TypeError, ValueError)) as error:
        eval(call, names)
    assert WRONG_KINDS[call] in str(error.value) and "\n" not in str(error.value)
