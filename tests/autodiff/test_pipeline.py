"""The one row of stages: what ad.stages shows is what runs, and GPT2_AD_DEBUG says it."""

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
from gpt2.autodiff.transforms.vjp import Vjp
from gpt2.commands.explain.parts import split
from tests.support.rooms import first_call

OPTIONS = {
    "default": {},
    "after alone": {"before": False},
    "some passes off": {"off": {"cse", "algebra"}},
    "all off": {"off": set(switches.PASSES), "before": False},
}
if importlib.util.find_spec("numexpr"):
    OPTIONS["numexpr"] = {"elementwise": "numexpr"}
X, W = np.linspace(-1.0, 1.0, 12).reshape(4, 3), np.linspace(0.2, 0.9, 6).reshape(3, 2)


@ad.custom_vjp
def softer(x):
    return x / (1.0 + np.abs(x) ** 3)


@softer.defvjp
def softer_vjp(dout, out, x):
    return (7.0 * dout * np.exp(x) ** 2,)


@ad.custom_jvp
def steep(x):
    return np.sin(x) ** 3


@steep.defjvp
def steep_jvp(primals, tangents):
    return steep(primals[0]), 5.0 * tangents[0]


def array(x, w):
    hidden = np.tanh(x @ w)
    return hidden**3 / 2.0 + np.exp(hidden)


def number(x, w):
    return np.mean(array(x, w) ** 2)


def with_rules(x, w):
    return steep(softer(x @ w)) ** 3


def number_with_rules(x, w):
    return np.sum(with_rules(x, w))


def unnumbered(source):
    """The source without the number of the node whose body is called, which is another in each recording."""
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
def test_stages_of_a_derived_function_are_those_of_its_program(name, f, options):
    g = DERIVED[name][0](f)
    source = ad.source(g, X, W, emitted=True)
    _, program = g.__derived__.last
    found = stages(g, X, W)
    assert unnumbered(found["emitted"]) == unnumbered(source.rstrip())
    assert found["simplified" if name == "compile" else "simplified again"] == str(program.graph)
    assert list(found)[0] == "recorded" and list(found)[-1] == "emitted"


@pytest.mark.parametrize("f", [array, number, with_rules, number_with_rules])
def test_stages_of_a_function_are_those_of_vjp(f, options):
    state = Derived(f, Vjp())
    state.entry((X, W), {})
    _, pair = state.last
    found = stages(f, X, W)
    assert found["forward, emitted"] == pair.forward.source.rstrip()
    assert found["backward, emitted"] == pair.backward.source.rstrip() == ad.vjp(f, X, W)[1].source.rstrip()
    assert (found["forward"], found["backward"]) == (str(pair.forward.graph), str(pair.backward.graph))


@pytest.mark.parametrize("f", [array, with_rules])
def test_stages_of_an_engines_programs(f, options):
    pair, fixed = ad.FixedPair(f, options), ad.Fixed(f, options)
    entry, _ = pair.entry((X, W), {})
    sources = entry.forward.source, entry.backward.program.source, entry.joint.program.source
    found = stages(pair, X, W)
    titles = ("forward, emitted", "backward, emitted", "both in one, emitted")
    assert tuple(found[title] for title in titles) == tuple(s.rstrip() for s in sources)
    assert (found["forward"], found["backward"]) == tuple(map(str, pair.graphs(X, W)))
    assert stages(fixed, X, W)["emitted"] == fixed.entry((X, W), {})[0].program.program.source.rstrip()


def test_the_simplified_stage_is_left_out_where_options_say_so():
    """What is differentiated is the simplified graph, or the recorded one: rules see the difference."""
    with ad.options(math="fast"):
        with_it = stages(ad.grad(number), X, W)
    with ad.options(before=False):
        without = stages(ad.grad(number), X, W)
        pair = stages(ad.FixedPair(array, ad.Options(before=False)), X, W)
    assert "power" in with_it["recorded"] and "power" not in with_it["simplified"]
    assert "simplified" not in without and "power" in without["differentiated"]
    assert "simplified" not in pair and "power" in pair["differentiated"]


def test_a_function_with_a_rule_is_simplified_before_its_rule_is_used():
    with ad.options(math="fast"):  # strict math leaves a power of 3 to NumPy
        found = stages(ad.grad(number_with_rules), X, W)
    assert "power" in found["recorded"] and "power" not in found["simplified"]
    assert "call(" in found["simplified"] and "call(" not in found["simplified again"]


def test_source_of_what_was_not_worth_compiling_is_that_of_the_next_program():
    def f(x, w):
        return np.sum(np.tanh(x @ w) ** 3 * np.random.rand(2))

    g = ad.grad(f)
    first = ad.source(g, X, W, emitted=True)
    assert g.__derived__.last[1] is None and first.rstrip() == stages(g, X, W)["emitted"]
    assert ad.source(g, X, W, emitted=True) == first and g.__derived__.last[1] is not None


def test_stages_of_what_has_no_derivative():
    with pytest.raises(ad.AutodiffError, match="no floating-point argument"):
        ad.stages(lambda i: i * 2.0, np.arange(3))
    with pytest.raises(ad.AutodiffError, match="no floating-point result"):
        ad.stages(lambda x: x > 0, X)
    assert "emitted" in stages(ad.compile(lambda x: x > 0), X)


def test_the_forward_of_vjp_computes_nothing_twice():
    source = stages(lambda x, w: np.exp(np.tanh(x @ w)) * np.tanh(x @ w), X, W)["forward, emitted"]
    assert source.count("matmul(x, w") == 1 and source.count("np.exp") == 1 and "copyto" not in source


def test_a_rule_holds_in_a_vjp_inside_of_a_gradient():
    """The value of ad.vjp is differentiated by the rule, and not by what the function computes."""

    def through(x):
        out, _ = ad.vjp(softer, x)
        return np.sum(out)

    np.testing.assert_allclose(ad.grad(through)(X), 7.0 * np.exp(X) ** 2, rtol=1e-12)


@pytest.mark.parametrize("pure", [False, True])
def test_a_result_may_be_written_to_before_the_pullback(pure):
    """The backward of exp reads its result, which is the caller's."""
    out, pullback = ad.vjp(np.exp, X, pure=pure)
    expected = np.exp(X)
    out[...] = 0.0
    np.testing.assert_array_equal(pullback(np.ones_like(X))[0], expected)
    out, pullback = ad.vjp(np.exp, X + 1.0, pure=pure)  # now compiled, if it was not
    out[...] = 0.0
    np.testing.assert_allclose(pullback(np.ones_like(X))[0], np.exp(X + 1.0), rtol=1e-14)


def test_bodies_are_compiled_under_the_options_of_the_thread():
    def body(carry, x):
        return carry * x + np.sin(x) * np.cos(x) + np.sin(x), None

    def loop(xs):
        return ad.scan(body, np.ones(()), xs)[0]

    (scan,) = (n for n in pipeline_graph(loop, X[0]).nodes if n.op == "scan")
    plain = pipeline.program_of(scan.attrs["body"])
    with ad.options(off={"cse"}):
        other = pipeline.program_of(scan.attrs["body"])
    assert other.source.count("np.sin") > plain.source.count("np.sin")
    assert pipeline.program_of(scan.attrs["body"]) is plain


def pipeline_graph(f, *args):
    """What f records."""
    from gpt2.autodiff.record.record import record

    return record(f, args).graph


# --- programs for fixed types ---------------------------------------------------------------------------


def test_numbers_are_part_of_a_fixed_program():
    fixed = ad.Fixed(lambda x, factor, *, power=1.0: factor * x**power)
    np.testing.assert_allclose(fixed(X, 2.0), 2.0 * X, rtol=1e-15)
    np.testing.assert_allclose(fixed(X, 3.0, power=2.0), 3.0 * X**2, rtol=1e-15)
    pair = ad.FixedPair(lambda scale, x: scale * np.sin(x))
    _, saved = pair.forward(0.5, X)
    assert pair.backward(np.ones_like(X), saved)[0] is None
    np.testing.assert_allclose(pair.backward(np.ones_like(X), saved)[1], 0.5 * np.cos(X), rtol=1e-15)
    assert "x" in [n.name for n in pair.graphs(0.5, X)[0].inputs]


@pytest.mark.parametrize("add", [False, True])
def test_buffers_are_those_of_their_results(add):
    """Also beside a result that is a tuple, whose arrays have none."""
    fixed = ad.Fixed(lambda x: (x + 1.0, (x + 2.0, x + 3.0), x + 4.0))
    first, last = np.ones_like(X), np.ones_like(X)
    one, (two, three), four = fixed(X, out=(first, None, last), add=add)
    assert one is first and four is last
    for k, found in enumerate((one, two, three, four), start=1):
        np.testing.assert_array_equal(found, X + k + (found is first or found is last) * add)


def test_the_result_of_a_pair_may_lie_in_a_buffer():
    pair, buffer = ad.FixedPair(lambda x: np.tanh(x) * x), np.empty_like(X)
    wanted, saved = pair.forward(X)
    out, again = pair.forward(X, out=buffer)
    assert out is buffer and not np.shares_memory(wanted, buffer)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(pair.backward(X, again)[0], pair.backward(X, saved)[0])


def test_what_a_fixed_program_refuses():
    with pytest.raises(ad.AutodiffError, match="hashed"):
        ad.Fixed(lambda xs: xs[0])([X])
    with pytest.raises(ad.AutodiffError, match=r"test_pipeline.py:\d+: .*makes text of a value"):
        ad.Fixed(lambda x: x * len(f"{x[0, 0]}"))(X)

    def writes(x):
        x[0] = 1.0
        return x

    with pytest.raises(ad.AutodiffError, match="writes to its arguments"):
        ad.Fixed(writes)(X.copy())


def test_a_fixed_program_looks_again_at_what_it_looked_at():
    """Also at results of arithmetic, which an optimised program could round otherwise."""

    def f(x):
        return x * 2.0 if np.sum(x * 0.1) > 1.0 else x * 3.0

    fixed = ad.Fixed(f)
    tenths = np.full(10, 1.0)
    for x in (tenths, tenths + 1.0, tenths - 1.0, np.nextafter(tenths, 2.0), tenths):
        np.testing.assert_array_equal(fixed(x), f(x))
    assert len(*fixed.entries.values()) == 2


def test_no_more_than_a_few_ways_through_a_function_are_kept():
    fixed = ad.Fixed(lambda x, n: x * float(int(n[0])))
    for k in range(30):
        np.testing.assert_array_equal(fixed(X, np.array([k])), X * k)
    (ways,) = fixed.entries.values()
    assert len(ways) <= 12


# --- GPT2_AD_DEBUG, and the walk of a first call --------------------------------------------------------

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
def test_debug_levels_say_more_and_more():
    assert run_at("").stderr == run_at("0").stderr == ""
    one, two, three = (run_at(str(k)).stderr for k in (1, 2, 3))
    lines = one.splitlines()
    titles = [line.split(": ")[1].split("  ")[0] for line in lines]
    row = ["recorded", "simplified", "differentiated", "simplified again", "emitted"]
    assert titles == [*row, "recorded"]  # the second is interpreted: it may not come again
    assert all(line.startswith("autodiff f_grad: ") and " ms  " in line for line in lines)
    assert "new types of arguments" in lines[0] and "nodes" in lines[0]
    assert "regions, " in lines[4] and "bytes of arena" in lines[4]
    assert "random" in lines[5]
    assert "t1: f64[5] = tanh(x)" in two and "def f_grad(" not in two
    assert "t1: f64[5] = tanh(x)" in three and "def f_grad(" in three


def test_a_debug_level_that_does_not_exist():
    run = run_at("loud")
    assert run.returncode and "GPT2_AD_DEBUG is 'loud', expected one of 0, 1, 2, 3" in run.stderr


def test_a_first_call_enters_few_rooms():
    rooms = first_call()
    assert {"programs", "transforms", "record", "derive", "passes", "emit", "pipeline"} <= set(rooms)
    assert len(rooms) <= 18, rooms  # single files among them
