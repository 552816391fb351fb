"""ad.explain: the page of ten functions that a user might write, as HTML and in a browser."""

import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.commands.test_explain import Reader
from tests.support.browser import Browser, program

X = np.random.default_rng(0).standard_normal((5, 4))


def softplus(x):
    """Smooth ramp.

    softplus(x) = log(1 + exp(x))
    """
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0.0)


def rmsnorm(x, weight):
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    return x * scale * weight


def rmsnorm_by_hand(dout, x, weight):
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    norm = x * scale
    dnorm = dout * weight
    dx = scale * (dnorm - norm * np.mean(dnorm * norm, axis=-1, keepdims=True))
    return dx, np.sum(dout * norm, axis=0)


def mlp(params, x, targets):
    hidden = np.tanh(x @ params["w1"] + params["b1"])
    out = hidden @ params["w2"]
    return np.mean((out - targets) ** 2)


def filled(x):
    out = np.zeros(len(x) + 1)
    for i in range(len(x)):
        out[i + 1] = out[i] * 0.5 + np.sin(x[i])
    out *= 2.0
    return out


def newton(a):
    x = a
    while abs(x * x - a) > 1e-12:
        x = 0.5 * (x + a / x)
    return x


def softmax(s):
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    p = p / np.sum(p, axis=-1, keepdims=True)
    return p, (p,)


def softmax_wrong(dout, saved):
    (p,) = saved
    return (p * dout,)


def decay(x, rate, *, steps=3):
    for _ in range(steps):
        x = x - rate * x**3
    return x, {"last": x[-1]}


class Model:
    def __init__(self):
        self.w = np.full(4, 0.5)

    def energy(self, x):
        z = x * self.w
        return np.sum(z * np.exp(-z))


def scanned(x):
    def step(carry, row):
        carry = np.tanh(carry + row)
        return carry, carry

    return ad.scan(step, np.zeros(4), x)[1]


PARAMS = {"w1": X[:4, :3], "b1": np.zeros(3), "w2": np.ones((3, 2))}
# name -> a call of ad.explain, and lines that belong together: of the forward, of the derived backward
CALLS = {
    "softplus": (lambda: ad.explain(softplus, X), "return", "dx ="),
    "rmsnorm": (lambda: ad.explain(rmsnorm, X, X[0], backward=rmsnorm_by_hand), "scale =", "dscale ="),
    "mlp": (lambda: ad.explain(mlp, PARAMS, X, X[:, :2]), "out =", "dparams_w2 ="),
    "filled": (lambda: ad.explain(filled, X[0]), "out[i + 1] =", "dx"),
    "newton": (lambda: ad.explain(newton, 2.0), "x = 0.5", "da ="),
    "softmax": (lambda: ad.explain(softmax, X, backward=softmax_wrong), "p = p /", "dp_2 ="),
    "decay": (lambda: ad.explain(decay, X[0], 0.1, steps=2), "x = x -", "drate ="),
    "energy": (lambda: ad.explain(Model().energy, X.astype(np.float32)), "return", "dz ="),
    "lambda": (lambda: ad.explain(lambda x: np.sum(np.linalg.inv(np.eye(4) + np.outer(x, x))), X[0]), "", ""),
    "scanned": (lambda: ad.explain(scanned, X), "return ad.scan", ""),
}


@pytest.mark.parametrize("name", ["rmsnorm", "newton", "softmax", "energy"])
def test_page_is_complete(name, tmp_path):
    explained = CALLS[name][0]()
    reader = Reader(explained.html)
    assert reader.fetched == [] and explained.html.count('<div class="stage">') == 8
    derived = next(b for b in map("\n".join, reader.blocks) if f"def {name}_backward(" in b)
    names = {}
    exec(derived, names)
    assert callable(names[f"{name}_forward"]) and derived.strip() in str(explained)
    assert ("ONE DOES NOT HOLD" in explained.html) == (name == "softmax")
    explained.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explained.html
    assert explained._repr_html_().startswith("<iframe ") and "<script>" not in explained._repr_html_()


def test_wrong_backward_is_named_on_the_page():
    html = CALLS["softmax"][0]().html
    assert re.search(r"in softmax_wrong \(test_explain.py:\d+\): return \(p \* dout,\)", html)
    assert "sum term is missing" in html


@pytest.mark.parametrize("call, message", [
    (lambda: ad.explain(3, X), "explain: f is 3, expected a function"),
    (lambda: ad.explain(softplus), "explain: softplus is called without a float"),
    (lambda: ad.explain(softplus, 3), "explain: softplus is called without a float"),
    (lambda: ad.explain(lambda x: x.sort(), X), ""),
])  # fmt: skip
def test_wrong_calls_are_one_line(call, message):
    with pytest.raises((TypeError, ad.AutodiffError)) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_ten_functions_in_a_browser(tmp_path):
    """At 390 and 1280 pixels, light and dark: nothing is fetched or raised, nothing scrolls sideways, and the
    lines of the derived backward that belong to one of the function light up."""
    program()  # skips if there is no browser
    lit = "[...document.querySelectorAll('[data-panel=derived] .st.lit')].map((x) => x.textContent.trim())"
    of_forward = "[...document.querySelectorAll('[data-panel=forward] .st')]"
    with Browser() as browser:
        for name, (call, forward, backward) in CALLS.items():
            file = tmp_path / f"{name}.html"
            call().save(file)
            for width, dark in ((1280, False), (390, True)):
                browser.open(file, width, 844, dark)
                methods = [event.get("method") for event in browser.events]
                assert methods.count("Network.requestWillBeSent") == 1, name
                assert "Runtime.exceptionThrown" not in methods, name
                browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true })")
                assert browser.run("document.documentElement.scrollWidth <= innerWidth"), name
                assert browser.run(f"{of_forward}.length") >= 1, name
                if backward:
                    starts = f"(x) => x.textContent.trim().startsWith({forward!r})"
                    browser.run(f"{of_forward}.filter({starts})[0].id = 'marked'")
                    browser.point("#marked")
                    texts = browser.run(lit)
                    assert any(text.startswith(backward) for text in texts), (name, texts)
