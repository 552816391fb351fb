"""ad.Origins: which lines of a forward each line of its backwards comes from, and what each stage changed."""

import inspect
import sys

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.show.changes import BEFORE, GONE, KEPT, NEW
from gpt2.autodiff.show.origins import same, same_but_for_a_number, same_but_for_the_forward
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at

SIZES = Sizes(B=2, T=5, C=12, NH=3, V=17, OC=7, max_t=8)


def origins_of(name):
    case = at(SIZES)[name]
    return ad.Origins(LAYERS[name].forward, case.inputs(), case.static)


def text_of(function):
    """Line number -> text of the line, without its comment."""
    lines, first = inspect.getsourcelines(function)
    return {k: line.partition("#")[0].strip() for k, line in enumerate(lines, first)}


def by_hand(name):
    """First word of each line of the manual backward -> first words of the forward's lines it comes from."""
    forward, backward = text_of(LAYERS[name].forward), text_of(LAYERS[name].backward)
    origins = origins_of(name).by_hand(LAYERS[name].backward)
    return {
        backward[k].partition(" ")[0]: [forward[line].partition(" ")[0] for line in sorted(lines)]
        for k, lines in sorted(origins.items())
        if lines
    }


def test_origins_of_manual_backwards():
    """In layernorm's, one line can stand for several of the chain rule."""
    assert by_hand("layernorm") == {
        "norm": ["centred", "out"],
        "dnorm": ["out"],
        "shift": ["mean", "centred"],
        "scale": ["rstd", "out"],
        "dinp": ["mean", "centred", "variance", "out"],
        "dweight": ["out"],
        "dbias": ["out"],
    }
    assert by_hand("matmul")["dbias"] == ["out"] and by_hand("residual") == {"return": ["return"]}
    attention = by_hand("attention")
    assert attention["att"] == ["scores", "exps", "logsumexp[:,"]
    assert attention["dscores"][-1] == "exps" and attention["row_sums"] == ["total", "y[:,"]


@pytest.mark.parametrize("name", LAYERS)
def test_every_forward_line_is_an_origin_in_both_backwards(name):
    """Except for the largest element of a row: it cancels, so its gradient is zero."""
    origins, forward = origins_of(name), text_of(LAYERS[name].forward)
    computing = {line for n in origins.recorded.graph.nodes if n.args for line in origins.of(n)}
    assert computing
    expected = {line for line in computing if not forward[line].startswith(("largest", "logsumexp"))}
    hand = frozenset().union(*origins.by_hand(LAYERS[name].backward).values())
    derived = frozenset().union(*(lines for _, lines in origins.derived(name)[1].lines))
    assert expected <= hand and expected <= derived
    assert hand | derived <= computing


@pytest.mark.parametrize("name", ["attention", "crossentropy"])
def test_line_with_zero_gradient_is_no_origin_in_the_backward(name):
    origins, forward = origins_of(name), text_of(LAYERS[name].forward)
    (largest,) = [k for k, text in forward.items() if text.startswith("largest =")]
    halves = origins.derived(name)
    assert any(largest in lines for _, lines in halves[0].lines)
    assert not any(largest in lines for _, lines in halves[1].lines)


@pytest.mark.parametrize("name", LAYERS)
def test_derived_text_is_the_readable_source_and_runs(name):
    origins = origins_of(name)
    names = {}
    for half in origins.derived(name):
        text = "\n".join(line for line, _ in half.lines)
        names |= half.constants
        exec(text, names)
    assert ad.readable_source(origins.stages["backward"], f"{name}_backward") == text
    out, *kept = names[f"{name}_forward"](*origins.arrays)
    grads = names[f"{name}_backward"](*kept, origins.cotangents[0])
    expected = LAYERS[name].backward(origins.cotangents[0], origins.saved, **origins.static)
    for g, w in zip(grads, [w for w in expected if w is not None], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12)


def test_origin_of_a_called_function_is_the_line_of_the_call():
    def inner(x):
        return np.tanh(x)

    def forward(x):
        a = inner(x)
        b = inner(2.0 * a)
        return a * b, ()

    first = forward.__code__.co_firstlineno
    _, backward = ad.Origins(forward, (np.ones(3),), {}).derived("f")
    origins = {lines for _, lines in backward.lines}
    assert {frozenset((first + 1,)), frozenset((first + 2,))} <= origins  # the two calls are told apart
    assert frozenset().union(*origins) == {first + 1, first + 2, first + 3}


def test_comparisons_of_samples():
    rng = np.random.default_rng(0)
    a, b, f = rng.standard_normal((3, 4, 5))
    assert same((a, b), (a.T, b.reshape(2, 10))) and not same((a, b), (b, a))
    assert not same((a, b), (a + 1e-6, b))
    assert same_but_for_a_number((a, b), (-3.0 * a, -3.0 * b))
    assert not same_but_for_a_number((a, b), (3.0 * a, 2.0 * b))
    assert same_but_for_the_forward((a, b), (f * a, f * b))
    assert not same_but_for_the_forward((a, b), (f * a, a * b))
    masked = np.where(np.tri(4, 5, dtype=bool), a, -1e30)
    assert not same((masked, masked), (masked + (masked > -1.0), masked))


def test_changes_between_stages():
    """Lines marked gone or new are those that differ other than in the numbers of values."""
    stages = {stage.title: stage.lines for stage in origins_of("gelu").changes()}
    assert [*stages] == [*BEFORE]
    texts = {title: str(graph) for title, graph in origins_of("gelu").stages.items() if title in BEFORE}
    for title, lines in stages.items():
        assert "\n".join(line.text for line in lines if line.mark != GONE) == texts[title]
    assert {line.mark for line in stages["recorded"]} == {KEPT}
    derived = [line for line in stages["differentiated"] if line.mark == NEW]
    assert derived[-1].text.startswith("  dinp") and all(line.origins for line in derived)
    again = stages["simplified again"]
    assert any(line.mark == NEW and "square(" in line.text for line in again)
    kept = [line.text for line in again if line.mark == KEPT]
    assert any("subtract(1.0" in text for text in kept)  # only renumbered
    assert not any(line.mark == GONE for title in ("forward", "backward") for line in stages[title])


def test_trace_function_is_restored():
    """Such as that of a debugger."""
    before = sys.gettrace()
    origins_of("residual").by_hand(LAYERS["residual"].backward)
    assert sys.gettrace() is before
