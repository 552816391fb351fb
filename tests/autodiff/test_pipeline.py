"""The compiler's stages: ad.stages shows the programs that run, GPT2_AD_DEBUG logs them; fixed programs."""

import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import pipeline, switches
from gpt2.autodiff.programs.derived import Derived
from gpt2.autodiff.record.record import record
from gpt2.autodiff.transforms.vjp import Vjp
from gpt2.commands.explain.parts import split

OPTIONS = {
    "default": {},
    "simplified after alone": {"before": False},
    "some passes off": {"off": {"cse", "algebra"}},
    "all passes off": {"off": set(switches.PASSES), "before": False},
}
if importlib.util.find_spec("numexpr"):
    OPTIONS["numexpr"] = {"elementwise": "numexpr"}
X, W = np.linspace(-1.0, 1.0, 12).reshape(4, 3), np.linspace(0.2, 0.9, 6).reshape(3, 2)


@ad.custom_vjp
def with_vjp(x):
    return x / (1.0 + np.abs(x) ** 3)


@with_vjp.defvjp
def with_vjp_rule(dout, out, x):
    return (7.0 * dout * np.exp(x) ** 2,)  # not its derivative: tests see which one is used


@ad.custom_jvp
def with_jvp(x):
    return np.sin(x) ** 3


@with_jvp.defjvp
def with_jvp_rule(primals, tangents):
    return with_jvp(primals[0]), 5.0 * tangents[0]


def array(x, w):
    hidden = np.tanh(x @ w)
    return hidden**3 / 2.0 + np.exp(hidden)


def number(x, w):
    return np.mean(array(x, w) ** 2)


def with_rules(x, w):
    return with_jvp(with_vjp(x @ w)) ** 3


def number_with_rules(x, w):
    return np.sum(with_rules(x, w))


def unnumbered(source):
    """The source without numbers of nodes, which differ between recordings."""
    return re.sub(r"_body_\d+", "_body", source)


def stages(f, *args, **kwargs):
    return dict(split(ad.stages(f, *args, **kwargs)))


@pytest.fixture(params=OPTIONS)
def options(request):
    with ad.options(**OPTIONS[request.param]) as chosen:
        yield chosen


DERIVED = {
    "grad": (lambda f: ad.grad(f, (0, 1)), (number, number_with_rules)),
    "value_and_grad": (ad.value_and_grad, (number, number_with_rules)),
    "hessian": (ad.hessian, (number,)),
    "jacobian": (ad.jacobian, (array, with_rules)),
    "compile": (ad.compile, (array, with_rules)),
}


@pytest.mark.parametrize("name, f", [(n, f) for n, (_, fs) in DERIVED.items() for f in fs])
def test_stages_of_a_derived_function_show_its_program(name, f, options):
    g = DERIVED[name][0](f)
    source = ad.source(g, X, W, emitted=True)
    _, program = g.__derived__.last
    shown = stages(g, X, W)
    assert unnumbered(shown["emitted"]) == unnumbered(source.rstrip())
    assert shown["simplified" if name == "compile" else "simplified again"] == str(program.graph)
    assert list(shown)[0] == "recorded" and list(shown)[-1] == "emitted"


@pytest.mark.parametrize("f", [array, number, with_rules, number_with_rules])
def test_stages_of_a_function_show_the_programs_of_vjp(f, options):
    derived = Derived(f, Vjp())
    derived.entry((X, W), {})
    _, pair = derived.last
    shown = stages(f, X, W)
    assert shown["forward, emitted"] == pair.forward.source.rstrip()
    assert shown["backward, emitted"] == pair.backward.source.rstrip() == ad.vjp(f, X, W)[1].source.rstrip()
    assert (shown["forward"], shown["backward"]) == (str(pair.forward.graph), str(pair.backward.graph))


@pytest.mark.parametrize("f", [array, with_rules])
def test_stages_of_fixed_programs(f, options):
    pair, fixed = ad.FixedPair(f, options), ad.Fixed(f, options)
    entry, _ = pair.entry((X, W), {})
    sources = entry.forward.source, entry.backward.program.source, entry.joint.program.source
    shown = stages(pair, X, W)
    titles = ("forward, emitted", "backward, emitted", "both in one, emitted")
    assert tuple(shown[title] for title in titles) == tuple(s.rstrip() for s in sources)
    assert (shown["forward"], shown["backward"]) == tuple(map(str, pair.graphs(X, W)))
    assert stages(fixed, X, W)["emitted"] == fixed.entry((X, W), {})[0].program.program.source.rstrip()


def test_option_before_simplifies_before_differentiating():
    with ad.options(math="fast"):
        shown = stages(ad.grad(number), X, W)
    assert "power" in shown["recorded"] and "power" not in shown["simplified"]
    with ad.options(before=False):
        for f in (ad.grad(number), ad.FixedPair(array, ad.Options(before=False))):
            shown = stages(f, X, W)
            assert "simplified" not in shown and "power" in shown["differentiated"]


def test_custom_rules_are_applied_after_the_first_simplification():
    with ad.options(math="fast"):  # strict math leaves a power of 3 to NumPy
        shown = stages(ad.grad(number_with_rules), X, W)
    assert "power" in shown["recorded"] and "power" not in shown["simplified"]
    assert "call(" in shown["simplified"] and "call(" not in shown["simplified again"]


def test_source_of_an_interpreted_call_is_that_of_the_next_program():
    def f(x, w):
        return np.sum(np.tanh(x @ w) ** 3 * np.random.rand(2))

    g = ad.grad(f)
    first = ad.source(g, X, W, emitted=True)
    assert g.__derived__.last[1] is None and first.rstrip() == stages(g, X, W)["emitted"]
    assert ad.source(g, X, W, emitted=True) == first and g.__derived__.last[1] is not None


def test_stages_of_functions_without_derivative():
    with pytest.raises(ad.AutodiffError, match="no floating-point argument"):
        ad.stages(lambda i: i * 2.0, np.arange(3))
    with pytest.raises(ad.AutodiffError, match="no floating-point result"):
        ad.stages(lambda x: x > 0, X)
    assert "emitted" in stages(ad.compile(lambda x: x > 0), X)


def test_forward_of_vjp_computes_nothing_twice():
    source = stages(lambda x, w: np.exp(np.tanh(x @ w)) * np.tanh(x @ w), X, W)["forward, emitted"]
    assert source.count("matmul(x, w") == 1 and source.count("np.exp") == 1 and "copyto" not in source


def test_custom_rule_applies_to_the_value_of_vjp_under_grad():
    slope = ad.grad(lambda x: np.sum(ad.vjp(with_vjp, x)[0]))(X)
    np.testing.assert_allclose(slope, 7.0 * np.exp(X) ** 2, rtol=1e-12)


@pytest.mark.parametrize("pure", [False, True])
def test_result_may_be_written_to_before_the_pullback(pure):
    """The backward of exp reads the result of the forward."""
    for x in (X, X + 1.0):  # the second call is compiled in either case
        out, pullback = ad.vjp(np.exp, x, pure=pure)
        out[...] = 0.0
        np.testing.assert_allclose(pullback(np.ones_like(x))[0], np.exp(x), rtol=1e-14)


def test_bodies_of_loops_are_compiled_with_the_current_options():
    def body(carry, x):
        return carry * x + np.sin(x) * np.cos(x) + np.sin(x), None

    recording = record(lambda xs: ad.scan(body, np.ones(()), xs)[0], (X[0],))
    (scan,) = (n for n in recording.graph.nodes if n.op == "scan")
    plain = pipeline.program_of(scan.attrs["body"])
    with ad.options(off={"cse"}):
        other = pipeline.program_of(scan.attrs["body"])
    assert other.source.count("np.sin") > plain.source.count("np.sin")
    assert pipeline.program_of(scan.attrs["body"]) is plain


# ---- Programs for fixed types ----------------------------------------------------------------------------


def test_numbers_are_static_in_fixed_programs():
    fixed = ad.Fixed(lambda x, factor, *, power=1.0: factor * x**power)
    np.testing.assert_allclose(fixed(X, 2.0), 2.0 * X, rtol=1e-15)
    np.testing.assert_allclose(fixed(X, 3.0, power=2.0), 3.0 * X**2, rtol=1e-15)
    pair = ad.FixedPair(lambda scale, x: scale * np.sin(x))
    _, saved = pair.forward(0.5, X)
    assert pair.backward(np.ones_like(X), saved)[0] is None
    np.testing.assert_allclose(pair.backward(np.ones_like(X), saved)[1], 0.5 * np.cos(X), rtol=1e-15)
    assert "x" in [n.name for n in pair.graphs(0.5, X)[0].inputs]


def test_equal_numbers_of_other_types_have_programs_of_their_own():
    """They promote otherwise."""
    whole, flags, short = np.arange(3), np.arange(3) > 0, np.ones(3, np.float32)
    fixed, pair = ad.Fixed(lambda x, c, *, d=1: x * c * d), ad.FixedPair(lambda x, c: x * c)
    for x, c, d in ((whole, 2, 1), (whole, 2.0, 1), (whole, 2, 1.0), (flags, 1, True), (flags, True, True)):
        assert fixed(x, c, d=d).dtype == (x * c * d).dtype
    for c in (2.0, np.float64(2.0), np.float32(2.0)):
        assert pair.forward(short, c)[0].dtype == (short * c).dtype


def test_arrays_in_another_order_have_programs_of_their_own():
    """Whether a reshape is a view, and so what a write through it changes, depends on it."""

    def f(x):
        y = x * 1.0
        y.reshape(-1)[0] = 5.0
        return y

    fixed = ad.Fixed(f)
    for x in (np.ones((2, 3)), np.asfortranarray(np.ones((2, 3))), np.ones((2, 6))[:, ::2]):
        np.testing.assert_array_equal(fixed(x), f(x))


@pytest.mark.parametrize("out, add, words", [
    (None, True, "f: add=True adds to buffers"),
    ((np.zeros(3),), False, "f: out has a buffer, or None, for each result in a tuple; got 1"),
    ((np.zeros(3, np.float32), None), False, r"shape \(3,\) and dtype float32, expected \(3,\) and float64"),
    ((None, np.zeros((2, 3))), True, r"shape \(2, 3\) and dtype float64, expected \(3,\) and float64"),
])  # fmt: skip
def test_buffers_unlike_the_results(out, add, words):
    def f(x):
        return x + 1.0, x + 2.0

    with pytest.raises(ad.AutodiffError, match=words):
        ad.Fixed(f)(np.ones(3), out=out, add=add)


def test_buffers_unlike_the_gradients():
    pair, x = ad.FixedPair(lambda x, w: x * w), np.ones(3)
    _, saved = pair.forward(x, x)
    one, long = (np.zeros(3),), (np.zeros(4), None)
    for out, words in ((one, "for each of 2 arguments; got 1"), (long, "like its result")):
        with pytest.raises(ad.AutodiffError, match=words):
            pair.backward(x, saved, out=out)
        with pytest.raises(ad.AutodiffError, match=words):
            pair.both(x, x, x, out=out)


@pytest.mark.parametrize("add", [False, True])
def test_buffers_of_some_results(add):
    fixed = ad.Fixed(lambda x: (x + 1.0, (x + 2.0, x + 3.0), x + 4.0))
    first, last = np.ones_like(X), np.ones_like(X)
    one, (two, three), four = fixed(X, out=(first, None, last), add=add)
    assert one is first and four is last
    for k, result in enumerate((one, two, three, four), start=1):
        np.testing.assert_array_equal(result, X + k + (result is first or result is last) * add)


def test_buffer_for_the_result_of_a_pair():
    pair, buffer = ad.FixedPair(lambda x: np.tanh(x) * x), np.empty_like(X)
    expected, saved = pair.forward(X)
    out, saved_again = pair.forward(X, out=buffer)
    assert out is buffer and not np.shares_memory(expected, buffer)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(pair.backward(X, saved_again)[0], pair.backward(X, saved)[0])


def test_errors_of_fixed_programs():
    with pytest.raises(ad.AutodiffError, match="hashed"):
        ad.Fixed(lambda xs: xs[0])([X])
    with pytest.raises(ad.AutodiffError, match=r"test_pipeline.py:\d+: .*makes text of a value"):
        ad.Fixed(lambda x: x * len(f"{x[0, 0]}"))(X)

    def writes(x):
        x[0] = 1.0
        return x

    with pytest.raises(ad.AutodiffError, match="writes to its arguments"):
        ad.Fixed(writes)(X.copy())


def test_fixed_program_checks_its_branches_at_each_call():
    """Also on results of arithmetic, which an optimised program could round otherwise."""

    def f(x):
        return x * 2.0 if np.sum(x * 0.1) > 1.0 else x * 3.0

    fixed = ad.Fixed(f)
    tenths = np.full(10, 1.0)
    for x in (tenths, tenths + 1.0, tenths - 1.0, np.nextafter(tenths, 2.0), tenths):
        np.testing.assert_array_equal(fixed(x), f(x))
    assert len(*fixed.entries.values()) == 2


def test_fixed_program_keeps_few_paths():
    fixed = ad.Fixed(lambda x, n: x * float(int(n[0])))
    for k in range(30):
        np.testing.assert_array_equal(fixed(X, np.array([k])), X * k)
    (paths,) = fixed.entries.values()
    assert len(paths) <= 12


# ---- GPT2_AD_DEBUG ---------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np
from gpt2 import autodiff as ad
ad.grad(lambda x: np.sum(np.tanh(x) * x))(np.ones(5))
g = ad.grad(lambda x: np.sum(x * np.random.rand()))
g(np.ones(5))
"""


def run_at(level):
    env = {**os.environ, "GPT2_AD_DEBUG": level}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert run.stdout == ""
    return run


@pytest.mark.slow
def test_debug_levels():
    assert run_at("").stderr == run_at("0").stderr == ""
    one, two, three = (run_at(str(k)).stderr for k in (1, 2, 3))
    lines = one.splitlines()
    titles = [line.split(": ")[1].split("  ")[0] for line in lines]
    compiled = ["recorded", "simplified", "differentiated", "simplified again", "emitted"]
    assert titles == [*compiled, "recorded"]  # the second function is interpreted at its first call
    assert all(line.startswith("autodiff f_grad: ") and " ms  " in line for line in lines)
    assert "new types of arguments" in lines[0] and "nodes" in lines[0]
    assert "regions, " in lines[4] and "bytes of arena" in lines[4]
    assert "random" in lines[5]
    assert "t1: f64[5] = tanh(x)" in two and "def f_grad(" not in two
    assert "t1: f64[5] = tanh(x)" in three and "def f_grad(" in three


def test_unknown_debug_level_is_an_error():
    run = run_at("loud")
    assert run.returncode and "GPT2_AD_DEBUG is 'loud', expected one of 0, 1, 2, 3" in run.stderr
