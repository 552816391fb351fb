"""numpy, numexpr and tuned compute the same: random programs, the layers, and failures."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2 import backward
from gpt2.autodiff.emit import numexpr, regions, tuned
from gpt2.autodiff.emit.numexpr import Fused
from gpt2.autodiff.emit.program import Program
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.run import remembered, threads
from gpt2.autodiff.switches import BACKENDS, Options
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config
from tests.support.random import graphs
from tests.support.random.graphs import BLOCKS, random_arrays, random_graph

# The same operations in the same order, but a C compiler may contract a product and a sum; chains are long
ROUNDING = {"float32": 1e-5, "float64": 1e-13}
SHAPES = [(6, 4, 5), (6, 20), (24, 5), (6, 4, 1), (6, 1), (5,), (20,), (1, 4, 5), (6, 4, 4)]


@pytest.fixture(autouse=True)
def nothing_chosen():
    remembered.forget()
    yield
    remembered.forget()


# Mostly elementwise ops, among sums, reshapes, transposes and slices
MAKERS = [*BLOCKS, graphs.arithmetic, graphs.quotient, graphs.function, graphs.function, graphs.power]
MAKERS.append(graphs.with_number)


def assert_close(got, want, dtype):
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=ROUNDING[dtype] * (1 + np.abs(want).max()))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUNDING)
def test_random_programs_agree(dtype, monkeypatch):
    monkeypatch.setattr(regions, "SMALL", 2)
    monkeypatch.setattr(regions, "BLOCK_BYTES", 200)
    monkeypatch.setattr(tuned, "TURNS", 1)
    fused = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 34, dtype, MAKERS, SHAPES, largest=500)
        arrays = random_arrays(rng, graph)
        want = evaluate_graph(graph, arrays)
        for elementwise in BACKENDS if seed % 4 == 0 else ("numexpr",):
            program = Program(graph, Options(elementwise=elementwise))
            for _ in range(2):  # again, in memory that the first call has used
                for got, w in zip(program(*arrays), want):
                    assert_close(got, np.asarray(w), dtype)
            if elementwise == "numexpr":
                fused += program.source.count("= Fused(")
    assert fused > 100  # else nothing was compared


# Those with chains of elementwise operations: a residual is one addition, a product adds its bias
CASES = {
    "layernorm": ((2, 70, 96), (96,), (96,)),
    "gelu": ((2, 70, 96),),
    "attention": ((2, 70, 96),),
    "crossentropy": ((2, 70, 200), None),
}


@pytest.mark.usefixtures("numexpr_package")
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", [backward.compiled, backward.auto])
@pytest.mark.parametrize("name", CASES)
def test_layers_agree(name, kind, dtype, monkeypatch):
    called, call = [], Fused.__call__

    def counted(self, *arrays, out):
        called.append(self.text)
        return call(self, *arrays, out=out)

    monkeypatch.setattr(Fused, "__call__", counted)
    monkeypatch.setattr(tuned, "MARGIN", 1e9)  # it takes numexpr wherever that can be taken
    rng = np.random.default_rng(0)
    args = [
        rng.integers(0, 200, (2, 70)) if s is None else rng.standard_normal(s).astype(dtype)
        for s in CASES[name]
    ]
    static = {"num_heads": 4} if name == "attention" else {}
    results, used = {}, {}
    for elementwise in BACKENDS:
        layer = kind(LAYERS[name], backward.options_for(elementwise))
        for _ in range(2):  # the first time "tuned" measures, and calls what it may not take
            called.clear()
            out, saved = layer.forward(*args, **static)
            dout = np.random.default_rng(1).standard_normal(out.shape).astype(dtype)
            gradients = layer.backward(dout, saved, **static)
        results[elementwise] = [np.array(x) for x in (out, *gradients) if x is not None]
        used[elementwise] = list(called)
    assert used["numpy"] == [] and used["numexpr"] == used["tuned"] != []  # else nothing would be compared
    for elementwise in ("numexpr", "tuned"):
        for got, want in zip(results[elementwise], results["numpy"], strict=True):
            assert_close(got, want, dtype)


@pytest.mark.usefixtures("numexpr_package")
@pytest.mark.parametrize("spec", ["manual", "auto", "whole"])
def test_models_agree(spec):
    config = GPT2Config(vocab_size=50, block_size=16, n_layer=2, n_head=2, n_embd=32)
    tokens = np.random.default_rng(0).integers(0, 50, (3, 16))
    grads = {}
    for elementwise in ("numpy", "numexpr"):
        model = GPT2(config, backward=spec, elementwise=elementwise)
        model.forward(tokens, np.roll(tokens, -1, axis=1))
        model.backward()
        grads[elementwise] = model.flat_grads
    assert_close(grads["numexpr"], grads["numpy"], "float32")


@pytest.mark.usefixtures("numexpr_package")
def test_float32_stays_to_the_last_temporary():
    """In float64 the small numbers would survive beside the large one."""
    x = np.linspace(0.0, 1.0, 3000, dtype=np.float32)
    out = np.full_like(x, np.nan)
    assert Fused("x + 1e8 - 1e8", x="float32")(x, out=out) is out
    np.testing.assert_array_equal(out, (x + np.float32(1e8)) - np.float32(1e8))
    assert np.all(out == 0)

    def f(x, y):
        return (x + 1e8 - 1e8) * y

    with ad.options(elementwise="numexpr"):
        g = ad.compile(f)
        got = g(x, x)
        assert "Fused(" in ad.source(g, emitted=True)
    assert got.dtype == np.float32 and np.all(got == 0)


@pytest.mark.usefixtures("numexpr_package")
def test_numbers_are_exact():
    """A quotient stays one, a minus belongs to its number, equal numbers may come in any order."""
    x = np.random.default_rng(0).standard_normal(3000)
    out = Fused("x / 3.0 - -0.1 * x + 3.0", x="float64")(x, out=np.empty_like(x))
    np.testing.assert_array_equal(out, x / 3.0 - -0.1 * x + 3.0)


@pytest.mark.usefixtures("numexpr_package")
def test_reads_and_writes_may_overlap():
    """numexpr does not check whether its arguments overlap its result, in pieces of 1024 elements."""
    for n in (7, 64, 130):
        x = np.random.default_rng(n).standard_normal((n, n))
        a, b = input_node(x.shape, x.dtype, "a"), input_node(x.shape, x.dtype, "b")
        turned = apply("transpose", a, perm=(1, 0))
        for value in (turned * b + 1.0, a * b + 1.0, turned * a + 1.0):
            program = Program(Graph([a, b], [value]), Options(elementwise="numexpr"))
            (want,) = evaluate_graph(Graph([a, b], [value]), [x, 2 * x])
            buffer, other = x.copy(), 2 * x
            (got,) = program(buffer, other, out=(buffer,))
            assert got is buffer
            np.testing.assert_allclose(got, want, rtol=1e-13)


def check_fused(graph, *arrays):
    """The program of a graph, in expressions of numexpr, and its results, which are those of the ops."""
    program = Program(graph, Options(elementwise="numexpr"))
    assert "Fused(" in program.source
    results = program(*arrays)
    np.testing.assert_allclose(results, evaluate_graph(graph, arrays), rtol=1e-12)
    return program, results


@pytest.mark.usefixtures("numexpr_package")
def test_results_larger_than_all_arguments():
    """Arguments broadcast to what is written, not only to one another."""
    x, y = input_node((400,), np.float64, "x"), input_node((1,), np.float64, "y")
    wide = apply("broadcast", x, shape=(60, 400))
    value = (wide * 2.0 + apply("broadcast", y, shape=(60, 400))) * 0.5 - 1.0
    array = np.linspace(0, 1, 400)
    _, (got,) = check_fused(Graph([x, y], [value]), array, np.array([3.0]))
    np.testing.assert_allclose(got, np.broadcast_to(array + 0.5, (60, 400)), rtol=1e-14)


@pytest.mark.usefixtures("numexpr_package")
def test_threads_inside_one_expression_at_once():
    expression = Fused("a * b + a / (b + 1.5) - b * b * 0.25 + a * a", a="float64", b="float64")
    rng = np.random.default_rng(0)
    jobs = [(rng.uniform(0, 1, 300_000), rng.uniform(0, 1, 300_000)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(lambda job: expression(*job, out=np.empty(300_000)), jobs))
            for (a, b), got in zip(jobs, results):
                np.testing.assert_allclose(got, a * b + a / (b + 1.5) - b * b * 0.25 + a * a, rtol=1e-13)


@pytest.mark.usefixtures("numexpr_package")
def test_blocks_on_two_threads():
    def f(x, y):
        return (x * y + x / (y * y + 1.0) - 0.5 * x) * (x - y)

    x, y = np.random.default_rng(0).standard_normal((2, 300, 4000))
    threads.set_threads(2)
    with ad.options(elementwise="numexpr"):
        g = ad.compile(f)
        for _ in range(3):
            np.testing.assert_allclose(g(x, y), f(x, y), rtol=0, atol=1e-12)
        assert "run_blocks" in ad.source(g, emitted=True) and "Fused(" in ad.source(g, emitted=True)


@pytest.mark.usefixtures("numexpr_package")
def test_what_stays_with_numpy():
    def f(x, n):
        y = np.maximum(x, 0.5) * 2.0 + np.trunc(x)  # numexpr turns these two into float64
        z = (x * 2.0 + 1.0) * x.astype(np.float64)  # two types in one expression
        return y, z, n * n + n  # integers

    x = np.linspace(-2, 2, 20_000, dtype=np.float32)
    with ad.options(elementwise="numexpr"):
        g = ad.compile(f)
        got = g(x, np.arange(20_000))
    for a, b in zip(got, f(x, np.arange(20_000))):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert "np.maximum" in ad.source(g, emitted=True) and "np.trunc" in ad.source(g, emitted=True)


def chain_source(elementwise):
    x, y = (input_node((200, 400), np.float32, name) for name in "xy")
    return Program(Graph([x, y], [(x * y + x) * (y - x)]), Options(elementwise=elementwise)).source


@pytest.mark.usefixtures("numexpr_package")
def test_tuned_keeps_the_faster_and_remembers_it(monkeypatch):
    times = [(2.0, 1.0), (1.0, 2.0)]  # of each measurement, and there is none after them
    monkeypatch.setattr(tuned, "measure", lambda graph, compile: times.pop(0))
    assert "Fused(" in chain_source("tuned")
    tuned.chosen.clear()
    assert "Fused(" not in chain_source("tuned") and not times
    assert "Fused(" not in chain_source("tuned")


@pytest.mark.usefixtures("numexpr_package")
def test_tuned_measures_what_it_says(monkeypatch):
    """Each region by itself, with both backends: numexpr made slow loses, NumPy made slow loses."""
    assert "Fused(" not in chain_source("numpy") and "Fused(" in chain_source("numexpr")
    call = Fused.__call__

    def slow(self, *arrays, out):
        for _ in range(50):
            call(self, *arrays, out=out)
        return out

    monkeypatch.setattr(Fused, "__call__", slow)
    assert "Fused(" not in chain_source("tuned")
    monkeypatch.undo()
    remembered.forget()
    monkeypatch.setattr(tuned, "MARGIN", 1e9)
    assert "Fused(" in chain_source("tuned")


def in_a_process(folder, code):
    """Standard output of code, run in a process that remembers its choices in the folder.

    It has compile(n, threads=1), which derives a layer's backward for n rows of 64 and says which backends
    its regions got; measured, how many were measured; and faster, which says whose times they are.
    """
    start = f"""
import numpy as np
from gpt2 import autodiff as ad, backward
from gpt2.autodiff.emit import tuned
from gpt2.autodiff.run import remembered, threads as pool
from gpt2.layers import LAYERS
remembered.remember({str(folder)!r})
measured, faster = [], "numexpr"

def measure(graph, compile):
    measured.append(graph)
    return (2.0, 1.0) if faster == "numexpr" else (1.0, 2.0)

tuned.measure = measure

def compile(n, threads=1):
    pool.set_threads(threads)
    layer = backward.auto(LAYERS["gelu"], backward.options_for("tuned"))
    out, saved = layer.forward(np.ones((n, 64), np.float32))
    layer.backward(out, saved)
    pool.set_threads(1)
    return sorted(set(tuned.chosen.by_key.values()))
"""
    env, command = {**os.environ, "PYTHONHASHSEED": "random"}, [sys.executable, "-c", start + code]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.usefixtures("numexpr_package")
def test_a_second_process_takes_what_the_first_one_chose(tmp_path):
    first = in_a_process(tmp_path, "print(compile(500), len(measured))")
    assert first.startswith("['numexpr'] ") and int(first.split()[-1]) > 0
    (kept,) = json.loads((tmp_path / "elementwise.json").read_text()).values()
    assert {value for value, *_ in kept.values()} == {"numexpr"}
    assert all(key.startswith("1 threads, ") for key in kept)
    assert any("500x64 float32" in key for key in kept)

    second = in_a_process(tmp_path, "faster = 'numpy'; print(compile(500), len(measured))")
    assert second == "['numexpr'] 0\n"
    # another shape and another number of threads are other regions
    more = "faster = 'numpy'; compile(600); print(len(measured)); compile(500, 2); print(len(measured))"
    other = in_a_process(tmp_path, more)
    shape, threads = map(int, other.split())
    assert 0 < shape < threads


@pytest.mark.slow
def test_a_damaged_file_of_choices_is_measured_again(tmp_path):
    in_a_process(tmp_path, "compile(500)")
    path = tmp_path / "elementwise.json"
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], whole.replace('numexpr"', 'numpie"'), "\0"):
        path.write_text(text)
        again = in_a_process(tmp_path, "faster = 'numpy'; print(compile(500), len(measured))")
        assert again.startswith("['numpy'] ") and int(again.split()[-1]) > 0
    assert "numpy" in [value for value, *_ in json.loads(path.read_text()).popitem()[1].values()]  # mended


def test_regions_that_differ_in_anything_have_keys_of_their_own():
    def key(f, shape=(200, 400), dtype=np.float32):
        x, y = (input_node(shape, dtype, name) for name in "xy")
        return tuned.key_of(Graph([x, y], f(x, y)))

    same = key(lambda x, y: [x * y + 2.0])
    others = [
        key(lambda x, y: [x * y + 2.5]),
        key(lambda x, y: [x * y - 2.0]),
        key(lambda x, y: [x * x + 2.0]),
        key(lambda x, y: [(xy := x * y) + 2.0, xy]),
        key(lambda x, y: [x * y + 2.0], (400, 200)),
        key(lambda x, y: [x * y + 2.0], dtype=np.float64),
        key(lambda x, y: [apply("sum", x * y, axes=(1,), keepdims=True)]),
        key(lambda x, y: [apply("sum", x * y, axes=(0,), keepdims=True)]),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert same == key(lambda a, b: [a * b + 2.0])


def test_numexpr_missing(monkeypatch):
    monkeypatch.setattr(numexpr, "load", numexpr.load.__wrapped__)  # forgets that it was found before
    monkeypatch.setitem(sys.modules, "numexpr", None)
    for elementwise in ("numexpr", "tuned"):
        with pytest.raises(UserError, match="^elementwise: the package numexpr is not installed") as error:
            backward.choose("auto", elementwise=elementwise)
        assert "\n" not in str(error.value)
    assert "Fused(" not in chain_source("numpy")


def test_choices_made_with_numexpr_are_no_trouble_without_it(tmp_path, monkeypatch):
    (tmp_path / "elementwise.json").write_text('{"a machine": {}}')
    monkeypatch.setattr(numexpr, "load", numexpr.load.__wrapped__)
    monkeypatch.setitem(sys.modules, "numexpr", None)
    ad.remember(tmp_path)


def test_unknown_backend():
    with pytest.raises(UserError, match="elementwise is 'fast', expected one of numpy, numexpr, tuned"):
        backward.choose("manual", elementwise="fast")


def test_numpy_backend_does_not_load_numexpr():
    code = (
        "import sys, numpy as np; from gpt2 import autodiff as ad; "
        "ad.grad(lambda x: (x * x + x).sum())(np.ones(20000)); assert 'numexpr' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.usefixtures("numexpr_package")
def test_expressions_have_no_more_inputs_than_numexpr_takes():
    """Numbers are inputs too: sixty-three of them were refused, when the program ran."""
    x = input_node((20_000,), np.float64, "x")
    value = x
    for k in range(80):
        value = value * (1.0 + k / 1000) + 0.25
    check_fused(Graph([x], [value]), np.linspace(-0.5, 0.5, 20_000))


@pytest.mark.usefixtures("numexpr_package")
def test_expressions_do_not_grow_without_bound():
    """A square spells its argument twice: forty of them in a row would spell it a million million times."""
    x = input_node((20_000,), np.float64, "x")
    value = x
    for _ in range(40):
        value = apply("square", value) + 0.1
    program, _ = check_fused(Graph([x], [value * 2.0]), np.linspace(-0.5, 0.5, 20_000))
    assert max(map(len, program.source.splitlines())) < 2 * numexpr.LONGEST
