"""Study: what each room of the compiler adds to the 300 lines of examples/compiler.py."""

import importlib
import re
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from bench.harness.sizes import cases
from bench.studies.markdown import cell_text
from bench.studies.measure import Sample, interleave, threads
from bench.studies.optimise_first import Gradient, Subject
from bench.studies.programs import programs
from bench.studies.study import Result, Study
from bench.studies.textbook import PROGRAMS as TEXTBOOK
from examples import compiler
from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.passes.alike import flat
from gpt2.autodiff.pipeline import Pipeline
from gpt2.backward import options_for
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config

SIZES = dict(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128)  # nanoGPT's recipe for a CPU
RNG = np.random.default_rng(0)


@cache
def whole(quick):
    """The loss of a GPT-2, and its arguments."""
    model = GPT2(GPT2Config(**{**SIZES, "n_layer": 1 if quick else 4}), "whole")
    tokens = np.random.default_rng(0).integers(0, 65, (2, 2 if quick else 12, 64))
    return model._whole_loss, (*model.params.values(), *tokens)


# ---- What is measured without each room, and with it: (title, without, with). Functions are timed ----------


def record(options):
    """Programs of bench/studies that the small compiler differentiates; the others are errors there."""
    subjects = [(f, args, wrt[0]) for f, args, wrt in programs(quick=True).values()]
    subjects += [(row[0], row[2], 0) for row in TEXTBOOK.values()]
    return f"programs that work, of {len(subjects)}", sum(map(works, *zip(*subjects))), len(subjects)


def works(f, args, wrt):
    """Whether the small compiler's gradient of f is that of the large one."""
    names = [f"x{k}" for k in range(len(args))]
    exec(f"def forward({', '.join(names)}): return f({', '.join(names)}), ()", scope := {"f": f})
    expected = ad.grad(f, wrt)(*args)
    try:
        backward, _ = compiler.backward_of(scope["forward"], *args)
        return bool(np.allclose(backward(np.float64(1.0), *args)[wrt], expected))
    except Exception:
        return False


def ops(options):
    return "ops with a derivative", len(compiler.RULES) - 2, with_rule()  # less inputs and constants


def derive(options):
    x, w = RNG.normal(size=3), RNG.normal(size=(100 if options.quick else 1000, 3))
    f = lambda x: np.tanh(w @ x)  # noqa: E731
    _, pullback = ad.vjp(f, x)
    rows = list(np.eye(len(w)))
    calls = lambda: [pullback(row) for row in rows], partial(ad.jacfwd(f), x)
    return f"Jacobian of {len(w)} results by 3 arguments, backwards and forwards", *calls


def passes(options):
    subjects = []
    for f, args, wrt in programs(options.quick).values():
        subjects.append(Subject(f, args))
        subjects[-1].wrt = list(wrt)
    off = False, False, frozenset(ad.Options.PASSES)
    without, with_ = ([Gradient(s, *flags) for s in subjects] for flags in (off, (True, True)))
    calls = (lambda: [g() for g in without]), (lambda: [g() for g in with_])
    return "gradients of five programs of bench/studies", *calls


def keep(options):
    """Without it a backward computes its forward again, as the small compiler's does."""
    loss, arrays = whole(options.quick)
    pairs = [ad.FixedPair(loss, options_for("numpy"), **price) for price in ({"rate": 1e6}, {})]

    def step(pair):
        return pair.backward(np.ones((), np.float32), pair.forward(*arrays)[1])

    return "GPT-2, forward then backward", *(partial(step, pair) for pair in pairs)


def emit(options):
    """Without it NumPy's functions are called one after another."""
    program = Gradient(Subject(*whole(options.quick)), True, True)
    one_by_one = partial(evaluate_graph, flat(program.graph), program.arrays)
    return "gradient of GPT-2", one_by_one, program


def run_(options):
    program = Gradient(Subject(*whole(options.quick)), True, True)

    def on_two():
        ad.set_threads(2)
        program()
        ad.set_threads(1)

    return "gradient of GPT-2, one thread and two", program, on_two


def programs_(options):
    args = RNG.normal(size=(16, 32)), RNG.normal(size=32), RNG.normal(size=32)

    def gradient():
        def loss(x, w, b):
            return np.sum(LAYERS["layernorm"].forward(x, w, b)[0] ** 2)

        loss.__code__ = loss.__code__.replace()  # another code object, so that no program is known
        return ad.grad(loss, (0, 1, 2))

    calls = lambda: gradient()(*args), partial(gradient(), *args)
    return "gradient of layernorm, compiled and found", *calls


def reuse(options):
    scale, x = np.ones(8), np.ones(8)
    f = lambda x: np.sum(np.tanh(x) * scale)  # noqa: E731
    calls = [partial(ad.grad(f, pure=pure), x) for pure in (True, False)]
    return "a call that trusts the recording, and one that checks it", *calls


def transforms(options):
    x, w = RNG.normal(size=(256, 8)), RNG.normal(size=(8, 8))
    g = ad.grad(lambda x, w: np.sum(np.tanh(w @ x)))
    batched = ad.vmap(g, in_axes=(0, None))
    return "256 gradients, in a loop and by vmap", lambda: [g(row, w) for row in x], lambda: batched(x, w)


def loops(options):
    n, x = 20 if options.quick else 2000, RNG.normal(size=8)

    def step(v):
        return np.tanh(v) + 0.01 * v * v

    def written_out(v):
        for _ in range(n):
            v = step(v)
        return np.sum(v)

    def scanned(v):
        return np.sum(ad.scan(lambda v, _: (step(v), None), v, length=n)[0])

    times = interleave({f.__name__: partial(ad.grad(f), x) for f in (written_out, scanned)}, 0.1, rounds=1)
    return f"first call of a loop of {n} steps", *(Sample([sample.first]) for sample in times.values())


def implicit(options):
    """Every step of a bisection is a choice, through which no derivative goes."""

    def bisected(a):
        low, high = 0.0, 2.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if middle * middle > a else (middle, high)
        return 0.0 * a + low

    def solved(a):
        return ad.root(lambda x, a: x * x - a, 1.0, a)

    slopes = (f"{ad.grad(f)(2.0):.4f}" for f in (bisected, solved))
    return "slope of a square root at 2, through a bisection and by its equation", *slopes


def custom(options):
    """The rule for a function that cannot be recorded."""
    plain = np.vectorize(lambda v: float(v) ** 2, otypes=[float])
    ruled = ad.custom_vjp(plain)
    ruled.defvjp(lambda x: (plain(x), x), lambda x, dout: (2.0 * x * dout,))
    found = []
    for f in (plain, ruled):
        try:
            found.append(str(ad.grad(lambda x, f=f: np.sum(f(x)))(np.ones(2)).tolist()))
        except ad.AutodiffError:
            found.append("an error")
    return "gradient of a function that cannot be recorded", *found


def tree(options):
    grads = ad.grad(lambda p: np.sum(p["w"] * p["b"][0]))({"w": np.ones(2), "b": [np.ones(2)]})
    return "arguments that are dicts, lists, classes", "none", "any" if len(grads["b"]) == 1 else "none"


def show(options):
    loss, arrays = whole(options.quick)
    texts = ad.source(ad.grad(loss), *arrays, emitted=True), ad.source(ad.grad(loss), *arrays)
    return "lines of GPT-2's gradient, emitted and to be read", *(text.count("\n") for text in texts)


def check(options):
    layer = LAYERS["layernorm"]
    wrong = lambda dout, saved: layer.backward(1.5 * dout, saved)  # noqa: E731
    try:
        ad.check_backward(layer.forward, wrong, [(np.eye(4), np.ones(4), np.zeros(4))])
    except AssertionError as error:
        (cause, *_) = re.findall("likely cause: (.*)", str(error))
        return "a backward with a wrong factor", "", cause
    raise AssertionError("the mistake was not found")


def sparse(options):
    n = 50 if options.quick else 500
    band = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 1
    f = lambda x: x * np.roll(x, 1) * (np.arange(n) > 0)  # noqa: E731
    calls = partial(ad.jacobian(f), np.ones(n)), partial(ad.sparse_jacobian(f, band), np.ones(n))
    return f"banded Jacobian of {n} by {n}", *calls


def scipy(options):
    before = with_rule()
    for name in ("special", "stats", "linalg"):
        importlib.import_module(f"gpt2.autodiff.scipy.{name}")
    return "ops with a derivative", before, with_rule()


def random(options):
    """Without it a function that draws is recorded at each call, or draws the same numbers for ever."""
    x = np.ones(8)

    def gradient():
        def loss(x, rng):
            return np.sum(np.tanh(x + rng.normal(size=8)))

        loss.__code__ = loss.__code__.replace()  # another code object, so that no program is known
        return ad.grad(loss)

    rng = np.random.default_rng(0)
    calls = (lambda: gradient()(x, rng)), partial(gradient(), x, rng)
    return "gradient of a loss that draws, recorded again and found", *calls


def enzyme(options):
    """Into the caller's buffer, as training adds up the gradients of several batches."""
    x, dx = np.ones(1 << 16), np.zeros(1 << 16)
    f = lambda x: np.sum(np.tanh(x))  # noqa: E731
    g = ad.grad(f)

    def added():
        np.add(dx, g(x), out=dx)

    calls = added, lambda: ad.autodiff(f, ad.Duplicated(x, dx))
    return "a gradient of 65,536 numbers added to others", *calls


def interop(options):
    """A function of PyTorch's within one of NumPy's."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None, None, None
    found = []
    for f in (lambda x: torch.sin(torch.as_tensor(x)).numpy(), ad.from_torch(torch.sin)):
        try:
            found.append(f"{ad.grad(lambda x, f=f: np.sum(f(x)))(np.zeros(1))[0]:.1f}")
        except Exception:
            found.append("an error")
    return "slope of PyTorch's sine at 0", *found


def compat(options):
    """Names of autograd's, of which HIPS autograd's users import some."""
    modules = "numpy", "numpy.linalg", "numpy.fft", "extend", "differential_operators", "test_util", "tracer"
    imported = [importlib.import_module(f"gpt2.autodiff.compat.autograd.{name}") for name in modules]
    names = [name for module in imported for name in dir(module) if name[0] != "_"]
    return "names that programs for HIPS autograd may import", 0, len(names)


def with_rule():
    """The number of ops that have a derivative."""
    return sum(bool(op.partials or op.transpose or op.jvp) for op in OPS.values())


# Room -> what it does that the small compiler does not, and what is measured
ROOMS = {
    "transforms": ("vmap, jvp, hvp, Hessians; out=; errors that name the argument", transforms),
    "loops": ("loops recorded once: scan, while_loop, parallel_map", loops),
    "implicit": ("derivatives of solutions by their equation", implicit),
    "custom": ("your own rules; parts that are computed again", custom),
    "programs": ("finds the program for a call by its types", programs_),
    "reuse": ("notices that something that a function read has changed", reuse),
    "record": ("NumPy as people write it: any write, branches, numbers, Python's own functions", record),
    "derive": ("forward mode, derivatives of derivatives", derive),
    "passes": ("some hundred rules, each with how exactly it keeps bits", passes),
    "keep": ("chooses by a minimum cut what a forward hands on", keep),
    "emit": ("blocks that stay in cache, one arena, `out=` everywhere", emit),
    "run": ("threads, split products, memory used again", run_),
    "ops": ("each op with types and derivatives of any order", ops),
    "tree": ("containers as arguments and results", tree),
    "show": ("text to read, drawings, stages, the page of `ad.explain`", show),
    "check": ("compares derivatives, and names the mistake", check),
    "sparse": ("columns that never meet share a pass", sparse),
    "scipy": ("SciPy's functions with derivatives", scipy),
    "random": ("random draws as inputs, and derivatives by their parameters", random),
    "enzyme": ("Enzyme's way to call a gradient", enzyme),
    "interop": ("PyTorch's and JAX's functions, and functions for them", interop),
    "compat": ("the names of HIPS autograd", compat),
}


def layers(options):
    """Layer -> time of the small compiler's gradient by the large one's; both run the forward again."""
    ratios = {}
    for name, case in cases(2 if options.quick else 12, 64, C=128, NH=4, V=65).items():
        forward, inputs = LAYERS[case.layer].forward, case.inputs(np.float32)
        small, _ = compiler.backward_of(forward, *inputs, **case.static)
        subject = Subject(lambda *xs, f=forward, **kw: f(*xs, **kw)[0], inputs, case.static)
        large = Gradient(subject, True, True)
        graph = large.graph
        large.program = Pipeline("gradient").program(Graph(graph.inputs, graph.outputs[1:], graph.name))
        calls = {"small": partial(small, large.arrays[-1], *inputs), "large": large}
        times = interleave(calls, options.seconds / 16)
        ratios[name] = times["small"].over(times["large"]).median
    return {name: ratio for name, ratio in ratios.items() if name != "residual"}  # its gradient is dout


def lines_of(room):
    """Lines of a room's files, in hundreds."""
    home = Path(ad.__file__).parent
    files = [*(home / room).rglob("*.py")] or [home / f"{room}.py"]
    return round(sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files), -2)


def run(options):
    result = Result()
    table = result.table(
        "What each room adds",
        "room | lines | what the small compiler does not do | measured | without | with | without / with [x]",
    )
    with threads(1):
        for room, (words, measure) in ROOMS.items():
            title, without, with_ = measure(options)
            if callable(without):
                times = interleave({"without": without, "with": with_}, options.seconds / 16)
                without, with_ = times.values()
            ratio = without.over(with_).median if isinstance(without, Sample) else None
            unit = "s" if ratio else ""
            cells = (cell_text(getattr(x, "median", x), unit) for x in (without, with_))
            table.add(room, lines_of(room), words, title, *cells, ratio)
        ratios = layers(options)
    result.note(
        f"A layer's gradient by the small compiler takes {geometric_mean(ratios.values()):.2f} times as long "
        f"as by the large one, on one thread: {min(ratios.values()):.2f} ({min(ratios, key=ratios.get)}) to "
        f"{max(ratios.values()):.2f} ({max(ratios, key=ratios.get)})."
    )
    return result


STUDY = Study(
    "rooms",
    "What does each room of the compiler add to the 300 lines of examples/compiler.py?",
    "Each room is switched off where it can be, or replaced by what the small compiler does: all on one "
    "thread, taking turns. GPT-2 is that of 4 blocks of 128 channels, on 12 sequences of 64 letters; the "
    "layers have the same sizes.",
    run,
    seconds=40,
)
