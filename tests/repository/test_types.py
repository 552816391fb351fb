"""Public functions are annotated, and type checkers find mistakes of a user by these annotations."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from docs import house
from tests import ROOT

mypy = pytest.importorskip("mypy.api")


def public_functions():
    """(place, function) of every public function, method and constructor."""
    for path in sorted((ROOT / "gpt2").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for function in public_in(house.parsed(path).body):
            yield f"{name}:{function.lineno} {function.name}", function


def public_in(body):
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.FunctionDef) and (name == "__init__" or not name.startswith("_")):
            yield node
        elif isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from public_in(node.body)


def test_public_functions_are_annotated():
    missing = []
    for place, function in public_functions():
        if "/sheets/" in place or "/record/functions/" in place:
            continue  # exercises for students; stand-ins with the arguments of NumPy's functions
        if any(ast.unparse(d).startswith(("ours(", "unflatten_opt")) for d in function.decorator_list):
            continue  # stand-ins of SciPy and Autograd, which users see as a Callable
        a = function.args
        arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        bare = [x.arg for x in arguments if x and x.annotation is None and x.arg not in ("self", "cls")]
        if function.returns is None and function.name != "__init__":
            bare.append("its result")
        missing += [f"{place}: {', '.join(bare)}"] if bare else []
    assert not missing, "\n".join(missing)


ERRORS = {
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
PREAMBLE = """
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


@pytest.mark.slow
def test_mypy_finds_mistakes_of_a_user(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PREAMBLE + "\n".join(ERRORS) + "\n", encoding="utf-8")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    output, _, _ = mypy.run([*options, str(program)])
    lines = [line for line in output.splitlines() if "program.py" in line and "error" in line]
    for number, (mistake, message) in enumerate(ERRORS.items(), 1 + PREAMBLE.count("\n")):
        assert any(f"program.py:{number}:" in line and message in line for line in lines), (mistake, output)
    # nothing in other lines; a mistake may be reported twice
    assert len({line.split(":")[1] for line in lines}) == len(ERRORS), output


PROGRAM = """
import numpy as np
import numpy.typing as npt

from gpt2 import GPT2, AdamW, GPT2Config
from gpt2 import autodiff as ad


def energy(x: npt.NDArray[np.float64]) -> np.float64:
    total: np.float64 = np.sum(x * x)
    return total


model = GPT2(GPT2Config.preset("tiny"), backward="whole", seed=0)
optimizer = AdamW(model, lr=1e-3)
tokens = np.zeros((2, 8), int)
loss: float = model.loss_and_grads(tokens, tokens)
norm: float = optimizer.step()
slope = ad.grad(energy)
print(loss, norm, slope(np.ones(3)), ad.grad(lambda x: np.sum(x * x))(np.ones(3)), ad.source(slope))
"""


def test_program_of_a_user_runs(capsys):
    exec(PROGRAM, {})
    assert capsys.readouterr().out.count("[2. 2. 2.]") == 2


@pytest.fixture(scope="module")
def environment(request, tmp_path_factory):
    """(checkout, Python of a virtual environment with gpt2 installed from it and the NumPy of this one)."""
    checkout = tmp_path_factory.mktemp(request.param) / "checkout"
    shutil.copytree(ROOT / "gpt2", checkout / "gpt2", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    folder = checkout / ".venv"
    venv.create(folder, with_pip=False, symlinks=os.name == "posix")
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    build = "build_editable" if request.param == "editable" else "build_wheel"
    program = f"from setuptools.build_meta import {build}; {build}('dist')"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=checkout, capture_output=True)
    install = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps"]
    subprocess.run([*install, *map(str, (checkout / "dist").glob("*.whl"))], check=True)
    # A link: type checkers do not follow the .pth files of a folder that a .pth file names
    numpy = Path(np.__file__).parent
    (Path(paths["purelib"]) / "numpy").symlink_to(numpy, target_is_directory=True)
    return checkout, Path(paths["scripts"]) / "python"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX links")
@pytest.mark.parametrize(
    "environment, place",
    [("editable", "in the checkout"), ("editable", "elsewhere"), ("ordinary", "elsewhere")],
    indirect=["environment"],
)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_program_of_a_user_passes_strict_checkers(environment, tmp_path, checker, place):
    checkout, python = environment
    folder = checkout if place == "in the checkout" else tmp_path
    (folder / "program.py").write_text(PROGRAM)
    if checker == "mypy":
        options = ["--strict", "--python-executable", str(python), "--cache-dir", str(tmp_path / "cache")]
    else:
        pytest.importorskip("pyright")
        options = ["--pythonpath", str(python)]
    command = [sys.executable, "-m", checker, *options, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
