"""Annotations: public functions have them, and a type checker that reads them finds mistakes of a user."""

import ast
from pathlib import Path

import pytest

mypy = pytest.importorskip("mypy.api", reason="mypy is missing: pip install mypy")

ROOT = Path(__file__).resolve().parents[1]


def public_functions():
    """(place, function) of every public function and method, constructors included."""
    for path in sorted((ROOT / "gpt2").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for function in public_in(ast.parse(path.read_text(encoding="utf-8")).body):
            yield f"{name}:{function.lineno} {function.name}", function


def public_in(body):
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.FunctionDef) and (name == "__init__" or not name.startswith("_")):
            yield node
        elif isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from public_in(node.body)


def test_public_functions_are_annotated():
    bare = []
    for place, function in public_functions():
        given = function.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        untold = [a.arg for a in arguments if a and a.annotation is None and a.arg not in ("self", "cls")]
        if untold or function.returns is None and function.name != "__init__":
            bare.append(f"{place}: {', '.join(untold) or 'what it returns'}")
    assert not bare, "\n".join(bare)


MISTAKES = {
    'AdamW(model, lr="big")': 'Argument "lr" to "AdamW" has incompatible type "str"; expected "float"',
    "AdamW(model, betas=0.9)": 'Argument "betas" to "AdamW" has incompatible type "float"',
    'GPT2Config(n_layer="4")': 'Argument "n_layer" to "GPT2Config" has incompatible type "str"',
    "GPT2(config, backward=True)": 'Argument "backward" to "GPT2" has incompatible type "bool"',
    'model.backward(scale="half")': 'Argument "scale" to "backward" of "GPT2" has incompatible type "str"',
    "model.backward().shape": '"None" has no attribute "shape"',
    'optimizer.step("fast")': 'Argument 1 to "step" of "AdamW" has incompatible type "str"',
    "optimizer.step().shape": '"float" has no attribute "shape"',
    "next(generate(model, [1])).strip()": '"int" has no attribute "strip"',
    "ad.grad(energy)(np.ones(3), 2.0).strip()": '"ndarray',
    'ad.grad(energy)(np.ones(3), "two")': 'Argument 2 has incompatible type "str"; expected "float"',
    "ad.value_and_grad(energy)(np.ones(3), 2.0)[0].strip()": '"float" has no attribute "strip"',
    "ad.compile(energy)(np.ones(3), 2.0).strip()": '"float" has no attribute "strip"',
    "model.forward(tokens).strip()": '"ndarray',
    "model.forward(tokens, tokens).shape": '"float" has no attribute "shape"',
}
START = """
import numpy as np
from gpt2 import GPT2, AdamW, GPT2Config, generate
from gpt2 import autodiff as ad

def energy(x: np.ndarray, weight: float) -> float:
    return weight * float(np.sum(x * x))

config = GPT2Config.preset("tiny")
model = GPT2(config)
tokens = np.zeros((1, 4), int)
optimizer = AdamW(model, lr=1e-3)
loss: float = model.forward(tokens, tokens)
"""


def test_a_checker_finds_the_mistakes_of_a_user(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(START + "\n".join(MISTAKES) + "\n", encoding="utf-8")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    found, _, _ = mypy.run([*options, str(program)])
    lines = [line for line in found.splitlines() if "program.py" in line and "error" in line]
    first = START.count("\n") + 1
    for k, (mistake, message) in enumerate(MISTAKES.items()):
        here = [line for line in lines if f"program.py:{first + k}:" in line]
        assert any(message in line for line in here), (mistake, found)
    # and nothing where there is no mistake; one may be told in two ways
    assert len({line.split(":")[1] for line in lines}) == len(MISTAKES), found
