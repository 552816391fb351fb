"""Tracebacks show the user's frames, and on request those of the compiler too."""

import os
import subprocess
import sys
import traceback

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import tracebacks

OUTSIDE = np.empty(2)


def helper(x, how):
    return how(x)


def write_outside(x):
    OUTSIDE[:] = x * x


def write_to_frozen(x):
    np.broadcast_to(x, (3, 2))[0] = x


def set_in_try(x):
    try:
        np.zeros(2)[0] = x
    except KeyError:
        pass


# what a function does -> the kind of error, and the function that the traceback ends in
MISTAKES = {
    "shapes": (lambda x: x @ np.ones((5, 2)), ValueError, "<lambda>"),
    "key": (lambda x: {"a": x}["b"], KeyError, "<lambda>"),
    "no rule": (lambda x: np.busday_count(x, x), ad.AutodiffError, "<lambda>"),
    "write": (write_outside, ValueError, "write_outside"),
    "write to a view": (write_to_frozen, ValueError, "write_to_frozen"),
    "a sequence set": (set_in_try, ValueError, "set_in_try"),
    "float": (lambda x: float(x[0]) * x, TypeError, "<lambda>"),
    "math": (lambda x: __import__("math").sin(x[0]), TypeError, "<lambda>"),
    "attribute": (lambda x: x.detach(), AttributeError, "<lambda>"),
    "numpy's Python": (lambda x: np.linalg.norm(x, axis=5), ValueError, "<lambda>"),
}
WAYS = {
    "grad": lambda f, x: ad.grad(f)(x),
    "compile": lambda f, x: ad.compile(f)(x),
    "vjp": lambda f, x: ad.vjp(f, x),
    "jvp": lambda f, x: ad.jvp(f, (x,), (x,)),
    "scan": lambda f, x: ad.scan(lambda c, y: (f(c), None), x, np.ones(3)),
    "in grad": lambda f, x: ad.grad(lambda y: np.sum(ad.grad(f)(y)))(x),
}


def frames_of(way, how):
    with pytest.raises(Exception) as caught:
        WAYS[way](lambda x: helper(x, how), np.ones(2))
    return caught.value, traceback.extract_tb(caught.value.__traceback__)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_only_users_frames_are_shown(way, mistake):
    how, kind, last = MISTAKES[mistake]
    error, frames = frames_of(way, how)
    assert isinstance(error, kind)
    mine = [f.name for f in frames if f.filename == __file__]
    assert "helper" in mine and mine[-1] == last, (error, frames)
    assert tracebacks._OWN not in "".join(traceback.format_exception(error))
    if getattr(error, "loc", None):
        assert (frames[-1].filename, frames[-1].lineno) == error.loc[:2] or "numpy" in frames[-1].filename


@pytest.mark.parametrize("call", [lambda: ad.grad(helper)(1.0), lambda: ad.grad(np.sin)("x")])
def test_wrong_calls_end_at_the_call(call):
    with pytest.raises((TypeError, ad.AutodiffError)) as caught:
        call()
    assert tracebacks._OWN not in "".join(traceback.format_exception(caught.value))


def test_full_tracebacks_on_request():
    with ad.full_tracebacks():
        _, frames = frames_of("grad", MISTAKES["shapes"][0])
    assert len([f for f in frames if f.filename.startswith(tracebacks._OWN)]) > 5
    assert len(frames_of("grad", MISTAKES["shapes"][0])[1]) < 6


def test_errors_of_the_compiler_itself_are_shown_in_full(monkeypatch):
    monkeypatch.setattr("gpt2.autodiff.pipeline.Pipeline.simplified", None)
    with pytest.raises(TypeError) as caught:
        ad.grad(lambda x: np.sum(x * 3.25))(np.ones(2))
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 4


def test_as_printed(tmp_path):
    """What a user sees: two entries, without those of the compiler; or all, by the environment."""
    program = tmp_path / "mine.py"
    program.write_text(
        "import numpy as np\nfrom gpt2 import autodiff as ad\n"
        "def f(x):\n    return np.sum(x @ np.ones((5, 2)))\nad.grad(f)(np.ones(3))\n"
    )

    def printed(**env):
        return subprocess.run(
            [sys.executable, program], capture_output=True, text=True, env={**os.environ, **env}
        ).stderr

    text = printed()
    assert text.count("  File ") == 2 and "direct cause" not in text and "ad.grad(f)(np.ones(3))" in text
    assert printed(GPT2_AD_FULL_TRACEBACKS="1").count("  File ") > 10
