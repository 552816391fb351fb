"""Typical mistakes in the backwards of GPT-2's layers: check_backward names the line and cause of each."""

import functools
import inspect
import itertools
import linecache
import re
import sys
import textwrap

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.layers import LAYERS

B, T, C, NH, V, MAX_T = 2, 5, 12, 3, 17, 8
SHAPES = {
    "layernorm": ((B, T, C), (C,), (C,)),
    "matmul": ((B, T, C), (C, C), (C,)),  # square, so that a transposed weight still fits
    "gelu": ((B, T, C),),
    "residual": ((B, T, C), (B, T, C)),
    "attention": ((B, T, 3 * C),),
}


# ---- Correct backwards: textbook formulas -------------------------------------------------------


def layernorm(dout, saved):
    inp, weight, mean, rstd = saved
    norm = (inp - mean) * rstd
    dnorm = dout * weight
    shift = dnorm.mean(-1, keepdims=True)
    scale = (dnorm * norm).mean(-1, keepdims=True)
    dinp = (dnorm - shift - norm * scale) * rstd
    dweight = np.sum(dout * norm, axis=(0, 1))
    dbias = np.sum(dout, axis=(0, 1))
    return dinp, dweight, dbias


def matmul(dout, saved):
    inp, weight = saved[:2]
    dinp = dout @ weight
    dweight = np.einsum("bto,btc->oc", dout, inp)
    dbias = np.sum(dout, axis=(0, 1))
    return dinp, dweight, dbias


def gelu(dout, saved):
    (inp,) = saved
    u = np.sqrt(2 / np.pi) * (inp + 0.044715 * inp**3)
    t = np.tanh(u)
    du = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * inp**2)
    return (dout * (0.5 * (1 + t) + 0.5 * inp * (1 - t * t) * du),)


def residual(dout, saved):
    return dout, dout


def encoder(dout, saved):
    tokens, wte, wpe = saved
    dwte, dwpe = np.zeros_like(wte), np.zeros_like(wpe)
    np.add.at(dwte, tokens, dout)
    dwpe[: dout.shape[1]] = dout.sum(0)
    return None, dwte, dwpe


def crossentropy(dlosses, saved):
    logits, targets = saved[:2]
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs = probs / probs.sum(-1, keepdims=True)
    onehot = np.eye(logits.shape[-1])[targets]
    return (probs - onehot) * dlosses[..., None], None


def attention(dout, saved, *, num_heads):
    qkv = saved[0]
    b, t, c3 = qkv.shape
    hs = c3 // 3 // num_heads
    q, k, v = qkv.reshape(b, t, 3, num_heads, hs).transpose(2, 0, 3, 1, 4)
    scale = 1 / np.sqrt(hs)
    mask = np.triu(np.full((t, t), -1e30), 1)
    scores = q @ k.swapaxes(-1, -2) * scale + mask
    att = np.exp(scores - scores.max(-1, keepdims=True))
    att = att / att.sum(-1, keepdims=True)
    dy = dout.reshape(b, t, num_heads, hs).transpose(0, 2, 1, 3)
    dv = att.swapaxes(-1, -2) @ dy
    datt = dy @ v.swapaxes(-1, -2)
    dscores = att * (datt - np.sum(att * datt, -1, keepdims=True))
    dq = dscores @ k * scale
    dk = dscores.swapaxes(-1, -2) @ q * scale
    parts = np.stack([dq, dk, dv])
    return (parts.transpose(1, 3, 0, 2, 4).reshape(b, t, c3),)


# ---- The mistakes ----------------------------------------------------------------------------------------

# (layer, text in the correct backward, its wrong replacement, expected message)
# ruff: noqa: E501
MISTAKES = [
    ("layernorm", "dnorm - shift - norm", "dnorm - norm", "the path through mean .* is left out"),
    ("layernorm", " - norm * scale", "", "path through variance .* is left out"),
    ("layernorm", "- norm * scale", "+ norm * scale", "the term norm . scale has the wrong sign"),
    ("layernorm", "scale) * rstd", "scale)", "dnorm - shift - norm . scale lacks the factor rstd"),
    ("layernorm", "scale) * rstd", "scale) / rstd", "divides by rstd where it should multiply"),
    ("layernorm", "dnorm = dout * weight", "dnorm = dout", "dnorm lacks the factor weight"),
    ("layernorm", "(dnorm * norm).mean", "(dnorm * norm).sum", "scale is 12 times .* a sum over axis 2 of inp .* where the mean is meant"),
    ("layernorm", "shift = dnorm.mean", "shift = dnorm.sum", "shift is 12 times .* a sum over axis 2 of inp .* where the mean is meant"),
    ("layernorm", "np.sum(dout * norm,", "np.mean(dout * norm,", "is a mean where the sum is meant"),
    ("layernorm", "np.sum(dout, axis=(0, 1))", "dout", r"not summed over axes \(0, 1\)"),
    ("layernorm", "np.sum(dout * norm,", "np.sum(dout * inp,", r"in dout \* inp, norm is meant where inp stands"),
    ("layernorm", "dinp, dweight, dbias", "dinp, dbias, dweight", "gradient of input . .*wrong order"),
    ("layernorm", "norm = (inp - mean) * rstd", "norm = inp * rstd", "centred is meant where inp stands"),
    ("matmul", "dout @ weight", "dout @ weight.T", "weight and its transpose are taken for each other"),
    ("matmul", "bto,btc->oc", "bto,btc->co", "transposed"),
    ("matmul", "dbias = np.sum", "dbias = np.mean", "is a mean where the sum is meant"),
    ("matmul", "np.sum(dout, axis=(0, 1))", "np.sum(dout, axis=0)", r"not summed over axes \(0,\)"),
    ("matmul", "dout, inp)", "dout, inp) / dout.shape[0]", "the division by 2 is too much"),
    ("matmul", "dinp = dout @ weight", "dinp = -dout @ weight", "the sign is wrong"),
    ("matmul", "dinp = dout @ weight", "dinp = inp @ weight", "in inp @ weight, dout is meant where inp stands"),
    ("gelu", "0.5 * (1 + t) + ", "", r"the path through \(0.5 \* inp\).* is left out"),
    ("gelu", "(1 - t * t)", "(1 - t)", r"\(1 - t\).* lacks the factor 1 \+ t"),
    ("gelu", "* du)", ")", "the derivative of u .* is taken for 1"),
    ("gelu", "1 + 3 * 0.044715", "1 + 0.044715", r"inp\*\*2 lacks the factor 3"),
    ("gelu", "0.5 * inp * (1", "inp * (1", "lacks the factor 0.5"),
    ("gelu", "dout * (0.5", "(0.5", "output gradient is ignored"),
    ("residual", "return dout, dout", "return dout, 0 * dout", "zero everywhere"),
    ("residual", "return dout, dout", "return dout, 2 * dout", "the factor 2 is too much"),
    ("encoder", "np.add.at(dwte, tokens, dout)", "dwte[tokens] += dout", "names more than once.*np.add.at"),
    ("encoder", "dout.sum(0)", "dout.mean(0)", "is a mean where the sum is meant"),
    ("encoder", "dout.sum(0)", "dout[0]", "the first of axis 0 of dout is taken where the sum is meant"),
    ("crossentropy", "(probs - onehot)", "probs", "the path through at_target .* is left out"),
    ("crossentropy", " * dlosses[..., None]", "", "output gradient is ignored"),
    ("crossentropy", "probs - onehot", "onehot - probs", "the sign is wrong"),
    ("crossentropy", "dlosses[..., None], None", "dlosses[..., None] / dlosses.size, None", "the division by 10 is too much"),
    ("attention", " - np.sum(att * datt, -1, keepdims=True)", "", "the softmax's sum term is missing"),
    ("attention", "dscores @ k * scale", "dscores @ k", "dq lacks the factor 0.5"),
    ("attention", "att.swapaxes(-1, -2) @ dy", "att @ dy", "in att @ dy, att and its transpose are taken for each other"),
    ("attention", "dscores.swapaxes(-1, -2) @ q", "dscores @ q", "dscores and its transpose are taken for each other"),
    ("attention", "[dq, dk, dv]", "[dk, dq, dv]", r"np.stack\(\[dk, dq, dv\]\) are in the wrong order"),
    ("attention", "* scale + mask", "* scale", "the term .* is missing"),
    ("attention", "dout.reshape(b, t, num_heads, hs).transpose(0, 2, 1, 3)", "dout.reshape(b, num_heads, t, hs)",
     "reshaped where it has to be reshaped and its axes exchanged"),
    ("attention", "dk = dscores", "dk = 0.5 * dscores", "the factor 0.5 is too much"),
    ("attention", "dv = att", "dv = 2 * att", "the factor 2 is too much"),
    ("attention", "scale = 1 / np.sqrt(hs)", "scale = 1.0", "scale is 1, and should be 0.5"),
    ("attention", "np.sum(att * datt, -1", "np.sum(att * datt, -2", "the sum of .* is over axis 2 where axis 3 is meant"),
    ("attention", "att / att.sum(-1", "att / att.sum(-2", "the sum of att is over axis 2 where axis 3 is meant"),
    ("gelu", "dout * (0.5 * (1 + t) + 0.5 * inp * (1 - t * t) * du)", "dout", "the output gradient itself"),
    ("layernorm", "dinp = (dnorm - shift - norm * scale) * rstd", "dinp = dout", "the output gradient itself"),
    ("encoder", "dwpe[: dout.shape[1]] = dout.sum(0)", "dwpe[:1] = dout.sum(0)[:1]", "zero at indices 1, 2, 3, 4 of axis 0, and right elsewhere"),
    ("crossentropy", "probs.sum(-1", "probs.sum(1", "the sum of probs is over axis 1 where axis 2 is meant"),
    ("matmul", 'bto,btc->oc", dout, inp', 'bto,btc->oc", dout, dout', "inp is meant where dout stands"),
    ("matmul", "dinp = dout @ weight", "dinp = dout", "the output gradient itself"),
    ("gelu", "0.044715 * inp**2", "0.044715 * inp", "0.044715 . inp lacks the factor inp"),
    ("layernorm", "shift = dnorm.mean(-1", "shift = dnorm.mean(1", "the mean of dnorm is over axis 1 where axis 2 is meant"),
    ("layernorm", "(dnorm * norm).mean(-1", "(dnorm * norm).mean(1", "the mean of dnorm . norm is over axis 1 where axis 2 is meant"),
]  # fmt: skip


@functools.cache
def case(name):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, V, (B, T))
    ids[1, 2] = ids[0, 1]  # a repeated token
    if name == "encoder":
        return (ids, rng.standard_normal((V, C)), rng.standard_normal((MAX_T, C))), {}
    if name == "crossentropy":
        return (rng.standard_normal((B, T, V)), ids), {}
    inputs = tuple(rng.standard_normal(shape) for shape in SHAPES[name])
    return inputs, {"num_heads": NH} if name == "attention" else {}


def mismatch(name, backward):
    """check_backward's message, or None."""
    try:
        ad.check_backward(LAYERS[name].forward, backward, [case(name)])
    except ad.BackwardMismatch as error:
        return str(error)
    return None


numbers = itertools.count()


def edited(name, right="", wrong=""):
    """The backward above with `right` replaced by `wrong`, from a file of its own."""
    source = textwrap.dedent(inspect.getsource(globals()[name]))
    assert right in source, (name, right)
    source = source.replace(right, wrong, 1) if right else source
    file, space = f"<{next(numbers)}>", {"np": np}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), space)
    return space[name]


@pytest.mark.parametrize("name", list(LAYERS))
def test_correct_backward_passes(name):
    assert mismatch(name, edited(name)) is None


def test_all_layers_have_mistakes():
    assert len(MISTAKES) >= 56 and len({row[:3] for row in MISTAKES}) == len(MISTAKES)
    assert {name for name, *_ in MISTAKES} == set(LAYERS)


@pytest.mark.parametrize("row", MISTAKES, ids=[f"{k}-{row[0]}" for k, row in enumerate(MISTAKES)])
def test_line_and_cause_are_named(row):
    name, right, wrong, message = row
    before = np.geterr(), sys.gettrace()
    backward = edited(name, right, wrong)
    text = mismatch(name, backward)
    assert text is not None, "not detected"
    assert (np.geterr(), sys.gettrace()) == before
    assert re.search(f"likely cause: .*({message})", text), text
    source = inspect.getsource(globals()[name])
    line = source[: source.index(right)].count("\n") + 1
    where = re.findall(rf"\n      in {name} \(<\d+>:(\d+)\): ", text)
    assert len(where) == text.count(", gradient ") and set(where) == {str(line)}, text
