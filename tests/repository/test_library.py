"""What `import gpt2` offers: every name exists, is typed and documented, and refuses wrong arguments."""

import ast

import numpy as np
import pytest

import gpt2
from gpt2 import autodiff as ad
from gpt2.data import tokenizer
from gpt2.errors import UserError
from tests import ROOT

CONFIG = gpt2.GPT2Config(vocab_size=256, block_size=16, n_layer=2, n_head=2, n_embd=8)


@pytest.fixture
def model():
    return gpt2.GPT2(CONFIG, seed=5)


@pytest.mark.parametrize("path", ["m.bin", "m.safetensors", "folder"])
def test_saved_model_is_loaded_again(path, model, tmp_path):
    target = tmp_path / "new" / path
    written = gpt2.save(model, target, tokenizer.byte())
    assert len(written) >= (1 if path == "m.safetensors" else 2) and all(file.exists() for file in written)
    again = gpt2.load(target, backward="auto")
    assert again.config == CONFIG and again.spec == "auto"
    assert np.array_equal(again.flat_params, model.flat_params)
    prompt = gpt2.load_tokenizer(target).encode("x")
    assert list(gpt2.generate(again, prompt, 6)) == list(gpt2.generate(model, prompt, 6))


def test_model_is_saved_and_loaded_in_other_precisions(model, tmp_path):
    gpt2.save(model, tmp_path / "m.bin", dtype="bfloat16")
    again = gpt2.load(tmp_path / "m.bin", dtype="float64")
    assert again.flat_params.dtype == np.float64
    # bfloat16 has 8 bits of mantissa, so it errs by up to 1/256, and somewhere it errs
    np.testing.assert_allclose(again.flat_params, model.flat_params, rtol=2**-8)
    assert not np.array_equal(again.flat_params, model.flat_params)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda model: gpt2.load("nothing"), "no such file or folder"),
        (lambda model: gpt2.save(model, "m.bin", dtype="int8"), "expected float32 or bfloat16"),
        (lambda model: gpt2.save(model, "m", dtype="bfloat16"), "is always float32"),
        (lambda model: gpt2.load_tokenizer(gpt2.save(model, "m.bin")[0]), "no tokenizer belongs"),
    ],
)
def test_bad_files_and_precisions_are_refused(call, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        call(model)
    assert "\n" not in str(error.value)


def test_package_is_marked_as_typed():
    assert (ROOT / "gpt2" / "py.typed").exists()
    assert 'gpt2 = ["py.typed"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_stub_has_the_names_of_the_compiler():
    """Type checkers read it, and __init__.py takes from it where each name is found."""
    stub = ast.parse((ROOT / "gpt2" / "autodiff" / "__init__.pyi").read_text(encoding="utf-8"))
    (names,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(names)) == gpt2.autodiff.__all__
    assert all(hasattr(gpt2.autodiff, name) for name in gpt2.autodiff.__all__)


# ---- Reprs and errors ------------------------------------------------------------------------------------


def test_reprs():
    model = gpt2.GPT2(gpt2.GPT2Config.preset("tiny"))
    assert repr(model) == (
        "<GPT2: 120,576 parameters; 2 blocks, 2 heads, 64 channels, 256 tokens, context 64; "
        "float32, backward='manual'>"
    )
    one_of_each = gpt2.GPT2(gpt2.GPT2Config(vocab_size=16, block_size=8, n_layer=1, n_head=1, n_embd=4))
    assert "; 1 block, 1 head, 4 channels, 16 tokens, context 8;" in repr(one_of_each)
    table = model._repr_html_()
    assert "<td>qkv</td><td>matmul</td><td>qkvw 2 x 192 x 64, qkvb 2 x 192</td><td>24,960</td>" in table
    assert "<td>head</td><td>matmul</td><td>wte 256 x 64</td><td>shared</td>" in table
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
def test_dir_shows_public_names(module):
    public = sorted(name for name in module.__all__ if not name.startswith("__"))
    assert [name for name in dir(module) if not name.startswith("__")] == public
    assert all(getattr(module, name) is not None for name in module.__all__)


WRONG_TYPES = {
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


def test_failing_backward_gets_a_note_on_its_arguments():
    def backward(a, b, dout):
        return dout @ b.T, a.T @ dout

    with pytest.raises(ValueError) as error:
        ad.check_backward(np.matmul, backward, [(np.ones((2, 3)), np.ones((3, 4)))])
    assert error.value.__notes__ == ["check_backward: the backward is called with dout, *inputs"]


@pytest.mark.parametrize("call, message", WRONG_TYPES.items(), ids=WRONG_TYPES)
def test_wrong_types_are_refused(call, message):
    names = dict(vars(gpt2), GPT2=gpt2.GPT2, AdamW=gpt2.AdamW, save=gpt2.save, ad=ad, np=np)
    names["model"] = gpt2.GPT2(gpt2.GPT2Config.preset("tiny"))
    with pytest.raises((TypeError, ValueError)) as error:
        eval(call, names)
    assert message in str(error.value) and "\n" not in str(error.value)
