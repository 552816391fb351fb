"""Study: GPT-2's layers in C++, their backward by hand and derived by Enzyme, beside this project's two.

The package enzyme-ad bundles clang, LLVM and Enzyme: it compiles and differentiates C++ source (gpt2.cpp)
inside a jitted JAX function.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bench.harness.engine import LayerRun, check_results
from bench.harness.ratios import geometric_mean
from bench.harness.sizes import SIZES, Size, batches
from bench.studies.layers import compare, model_players
from bench.studies.measure import interleave, threads
from bench.studies.study import Result, Series, Study
from gpt2 import backward
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2Config

SOURCE = Path(__file__).with_name("gpt2.cpp")
LAYER_SHARE = 0.3  # of the study's time; most of the rest goes into compiling by Enzyme
# llm.c's compiler flags for clang; -march=native becomes the oldest processor with the same vector units.
FLAGS = ("-O2", "-ffast-math")
RESTRICTED = {"restrict": "__restrict__", "no restrict": ""}


def run(options):
    result = Result()
    enzyme = result.peer("enzyme_ad.jax")
    if enzyme is None:
        result.note("Enzyme is not installed: there is nothing to compare with.")
        return result
    import jax

    jax.config.update("jax_platforms", "cpu")
    sizes = Sizes(B=2, T=8, C=24, OC=96, NH=3, V=97, max_t=8) if options.quick else SIZES_SHOWN
    layers(result, sizes, options.seconds * LAYER_SHARE)
    model(result, options)
    if options.threads > 1:
        layers_on_two(result, sizes, options.seconds * LAYER_SHARE)
        model_on_two(result, options)
    return result


# The layers of GPT-2 124M; matmul is the product from C to 4C.
SIZES_SHOWN = Sizes(B=4, T=64, C=768, OC=3072, NH=12, V=50257, max_t=64)


def cpu_flags():
    """The instruction set to compile for: LLVM's name of the level that this processor has."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return ()
    if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags:
        return ("-target-cpu", "x86-64-v4")
    return ("-target-cpu", "x86-64-v3") if {"avx2", "fma", "bmi2"} <= flags else ()


# ---- A layer in C++ ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One layer's calls into gpt2.cpp, as C++ source.

    inputs, saved, out   number of floats, by name: arguments, values kept for the manual backward, the result
    differentiable       the inputs that have a gradient
    forward, backward    the bodies; gradients are named d + input, the output's gradient dout
    """

    inputs: dict
    out: int
    forward: str
    backward: str
    differentiable: tuple
    saved: dict


def kernels(s):
    """Layer -> Kernel at these sizes."""
    N = s.B * s.T
    n, b, t, c, o, h, v = N, s.B, s.T, s.C, s.OC, s.NH, s.V
    return {
        "encoder": Kernel(
            {"tokens": n, "wte": v * c, "wpe": t * c},
            n * c,
            f"encoder_forward(out, tokens, wte, wpe, {b}, {t}, {c});",
            f"encoder_backward(dwte, dwpe, dout, tokens, {b}, {t}, {c});",
            ("wte", "wpe"),
            {},
        ),
        "layernorm": Kernel(
            {"inp": n * c, "weight": c, "bias": c},
            n * c,
            f"layernorm_forward(out, mean, rstd, inp, weight, bias, {n}, {c});",
            f"layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, {n}, {c});",
            ("inp", "weight", "bias"),
            {"mean": n, "rstd": n},
        ),
        "matmul": Kernel(
            {"inp": n * c, "weight": o * c, "bias": o},
            n * o,
            f"matmul_forward(out, inp, weight, bias, {n}, {c}, {o});",
            f"matmul_backward(dinp, dweight, dbias, dout, inp, weight, {n}, {c}, {o});",
            ("inp", "weight", "bias"),
            {},
        ),
        "attention": Kernel(
            {"qkv": 3 * n * c},
            n * c,
            f"attention_forward(out, att, qkv, {b}, {t}, {c}, {h});",
            f"attention_backward(dqkv, dout, qkv, att, {b}, {t}, {c}, {h});",
            ("qkv",),
            {"att": n * h * t},
        ),
        "gelu": Kernel(
            {"inp": n * o},
            n * o,
            f"gelu_forward(out, inp, {n * o});",
            f"gelu_backward(dinp, dout, inp, {n * o});",
            ("inp",),
            {},
        ),
        "residual": Kernel(
            {"a": n * c, "b": n * c},
            n * c,
            f"residual_forward(out, a, b, {n * c});",
            f"residual_backward(da, db, dout, {n * c});",
            ("a", "b"),
            {},
        ),
        "crossentropy": Kernel(
            {"logits": n * v, "targets": n},
            n,
            f"crossentropy_forward(out, logsum, logits, targets, {n}, {v});",
            f"crossentropy_backward(dlogits, dout, logits, logsum, targets, {n}, {v});",
            ("logits",),
            {"logsum": n},
        ),
    }


def entry(name, outputs, inputs, body):
    """A C++ template that enzyme-ad can call: it turns references to tensors into pointers."""
    arguments = [f"T_{x}& t_{x}" for x in outputs] + [f"const T_{x}& t_{x}" for x in inputs]
    types = ", ".join(f"typename T_{x}" for x in (*outputs, *inputs))
    pointers = [f"float *RESTRICT {x} = (float *)&t_{x};" for x in outputs]
    pointers += [f"const float *RESTRICT {x} = (const float *)&t_{x};" for x in inputs]
    return f"template <{types}> void {name}({', '.join(arguments)}) {{ {' '.join(pointers)} {body} }}\n"


class Compiled:
    """C++ functions callable from JAX. outputs: name -> size."""

    def __init__(self, restrict):
        self.flags = (*FLAGS, *cpu_flags(), f"-DRESTRICT={restrict}")

    @cached_property
    def text(self):
        return SOURCE.read_text(encoding="utf-8")

    def function(self, name, outputs, inputs, body):
        """f(*arrays) -> list of arrays, to be called inside jax.jit."""
        import jax
        from enzyme_ad.jax import cpp_call

        source = self.text + entry(name, outputs, inputs, body)
        shapes = [jax.core.ShapedArray((size,), np.float32) for size in outputs.values()]

        def call(*arrays):
            return cpp_call(*arrays, out_shapes=shapes, source=source, fn=name, argv=self.flags)

        return call


def zero(names):
    return " ".join(f"for (long i = 0; i < {size}; i++) {name}[i] = 0.0f;" for name, size in names.items())


def by_hand(kernel, compiled):
    """gradient(dout, *inputs) -> (out, *gradients), forward and backward both written by hand."""
    import jax

    gradients = {f"d{x}": kernel.inputs[x] for x in kernel.differentiable}
    forward = compiled.function("forward", {"out": kernel.out, **kernel.saved}, kernel.inputs, kernel.forward)
    back = compiled.function(
        "backward",
        gradients,
        {"dout": kernel.out, **kernel.saved, **kernel.inputs},
        zero(gradients) + kernel.backward,
    )

    @jax.jit
    def gradient(dout, *inputs):
        out, *saved = forward(*inputs)
        return (out, *back(dout, *saved, *inputs))

    return gradient


def by_enzyme(kernel, compiled):
    """The same, with the backward derived by Enzyme."""
    import jax

    allocs = " ".join(f"float *{name} = room({size});" for name, size in kernel.saved.items())
    frees = " ".join(f"__builtin_free({name});" for name in kernel.saved)
    forward = compiled.function("primal", {"out": kernel.out}, kernel.inputs, allocs + kernel.forward + frees)
    places = [i for i, name in enumerate(kernel.inputs) if name in kernel.differentiable]

    @jax.jit
    def gradient(dout, *inputs):
        def of_floats(*chosen):
            arrays = list(inputs)
            for i, x in zip(places, chosen):
                arrays[i] = x
            return forward(*arrays)[0]

        out, back = jax.vjp(of_floats, *(inputs[i] for i in places))
        return (out, *back(dout))

    return gradient


def layers(result, sizes, seconds):
    """Every layer's forward plus backward, in C++ and here, by hand and derived."""
    table = result.table(
        f"Layers, forward and backward, B={sizes.B}, T={sizes.T}, one thread",
        "layer | C++, by hand [s] | C++, Enzyme [s] | Enzyme / by hand [x] | the same without "
        "restrict [x] | here, by hand [s] | here, derived [s] | derived / by hand [x]",
    )
    ratios = {"Enzyme / by hand, C++": [], "derived / by hand, here": []}
    with threads(1):
        for name, kernel in kernels(sizes).items():
            times = layer_times(name, kernel, sizes, seconds / len(LAYERS))
            enzyme = {key: times[key, "Enzyme"].over(times[key, "hand"]) for key in RESTRICTED}
            ours = times["here", "derived"].over(times["here", "hand"])
            table.add(
                name,
                times["restrict", "hand"],
                times["restrict", "Enzyme"],
                enzyme["restrict"],
                enzyme["no restrict"],
                times["here", "hand"],
                times["here", "derived"],
                ours,
            )
            for values, ratio in zip(ratios.values(), (enzyme["restrict"], ours)):
                values.append(ratio)
    result.plot(
        "Derived / by hand, forward and backward: 1 is a backward by hand",
        "layer",
        "ratio of times",
        [Series(title, range(len(LAYERS)), values) for title, values in ratios.items()],
        log_y=True,
        ticks=list(kernels(sizes)),
    )
    means = {title: geometric_mean([r.median for r in values]) for title, values in ratios.items()}
    result.note(
        "Geometric means over the layers: "
        + ", ".join(f"{mean:.2f} ({title})" for title, mean in means.items())
        + "."
    )


def layer_times(name, kernel, sizes, seconds):
    """(restrict | no restrict | here, hand | Enzyme | derived) -> Sample; gradients are compared first."""
    import jax

    ours = layer_players(name, sizes)
    arrays = [jax.device_put(x) for x in floats(ours["written"])]
    calls = {}
    for key, restrict in RESTRICTED.items():
        compiled = Compiled(restrict)
        for who, make in (("hand", by_hand), ("Enzyme", by_enzyme)):
            gradient = make(kernel, compiled)
            check_results(f"{name}, {key}, {who}", gradient(*arrays), ours["written"].results())
            calls[key, who] = lambda gradient=gradient: jax.block_until_ready(gradient(*arrays))
    for who in ("hand", "derived"):
        calls["here", who] = ours[who].both
    return interleave(calls, seconds)


def layer_players(name, sizes):
    """written, hand, derived -> this project's layer, after a first call that compares gradients."""
    case = at(sizes)[name]
    case = replace(case, shapes=((sizes.B, sizes.T, sizes.OC),)) if name == "gelu" else case
    players = {
        "written": LayerRun(case, LAYERS[name]),
        "hand": LayerRun(case, backward.compiled(LAYERS[name])),
        "derived": LayerRun(case, backward.auto(LAYERS[name])),
    }
    for player in players.values():
        player.both()
    compare(players)
    return players


def floats(player):
    """The output's gradient and the inputs, as flat float32 arrays for C++."""
    return [np.ravel(x).astype(np.float32) for x in (player.dout, *player.inputs)]


# ---- Two threads -------------------------------------------------------------------------------------------


class Halves:
    """Two threads for C++ functions: each computes half of the sequences; shared results are summed."""

    def __enter__(self):
        self.pool = ThreadPoolExecutor(2)
        return self

    def __exit__(self, *error):
        self.pool.shutdown()

    def call(self, gradient, arrays, cut, cut_results, mean=False):
        """A function that computes `gradient` of both halves in parallel and combines their results.

        cut, cut_results   whether each argument, and each result, is split between the halves. Other results
                           are summed over the halves, or averaged
        """
        import jax

        parts = [np.split(np.ravel(x), 2) if is_cut else (x, x) for x, is_cut in zip(arrays, cut)]
        halves = [[jax.device_put(np.asarray(x, np.float32)) for x in half] for half in zip(*parts)]

        def one(half):
            return jax.block_until_ready(gradient(*half))

        sizes = [x.size for x in one(halves[0])]
        sums = [None if is_cut else np.empty(n, np.float32) for n, is_cut in zip(sizes, cut_results)]

        def add(which, by_half):
            for total, a, b in zip(sums, *by_half):
                if total is not None:
                    ours = slice(which * len(total) // 2, (which + 1) * len(total) // 2)
                    np.add(np.ravel(a)[ours], np.ravel(b)[ours], out=total[ours])
                    if mean:
                        total[ours] *= 0.5

        def call():
            by_half = list(self.pool.map(one, halves))
            list(self.pool.map(add, (0, 1), (by_half, by_half)))
            return [Cut(pair) if total is None else total for total, pair in zip(sums, zip(*by_half))]

        return call


class Cut(tuple):
    """A result in two halves, joined only for comparison."""

    def __array__(self, dtype=None, copy=None):
        return np.concatenate(self)


def layers_on_two(result, sizes, seconds):
    """Every layer on two threads: in C++ half of the sequences each, here as the engine splits them."""
    half = replace(sizes, B=sizes.B // 2)
    table = result.table(
        f"Layers, forward and backward, B={sizes.B}, T={sizes.T}, two threads",
        "layer | C++, by hand [s] | C++, Enzyme [s] | Enzyme / by hand [x] | here, by hand [s] | "
        "here, derived [s] | derived / by hand [x]",
    )
    compiled = Compiled(RESTRICTED["restrict"])
    for name, whole in kernels(sizes).items():
        kernel = kernels(half)[name]
        cut = [True, *(whole.inputs[x] != kernel.inputs[x] for x in kernel.inputs)]
        cut_results = [True, *(whole.inputs[x] != kernel.inputs[x] for x in kernel.differentiable)]
        with threads(2), Halves() as halves:
            ours = layer_players(name, sizes)
            calls = {("here", who): ours[who].both for who in ("hand", "derived")}
            for who, make in (("hand", by_hand), ("Enzyme", by_enzyme)):
                call = halves.call(make(kernel, compiled), floats(ours["written"]), cut, cut_results)
                check_results(f"{name} on two threads, {who}", call(), ours["written"].results())
                calls["C++", who] = call
            times = interleave(calls, seconds / len(LAYERS))
        table.add(
            name,
            times["C++", "hand"],
            times["C++", "Enzyme"],
            times["C++", "Enzyme"].over(times["C++", "hand"]),
            times["here", "hand"],
            times["here", "derived"],
            times["here", "derived"].over(times["here", "hand"]),
        )


# ---- The stacked model -------------------------------------------------------------------------------------


def model_size(options):
    tiny = Size("2x24", GPT2Config(vocab_size=97, block_size=8, n_layer=2, n_head=3, n_embd=24), 2, 8)
    return tiny if options.quick else replace(SIZES["4x128-B12T64"], B=4, name="4x128-B4T64")


class Model:
    """This project's model in its three ways, and what it computes of one batch, to compare with."""

    def __init__(self, options):
        self.size = model_size(options)
        self.players = model_players(self.size)
        tokens, targets = next(batches(self.size))
        first = self.players["manual"]
        self.wanted = (np.array([first.loss_and_grads(tokens, targets)]), first.flat_grads)
        self.arrays = [np.ravel(x).astype(np.float32) for x in (first.flat_params, tokens, targets)]
        self.calls = {
            spec: lambda player=player: player.loss_and_grads(tokens, targets)
            for spec, player in self.players.items()
        }

    def compare(self, result, count, cpp, seconds):
        """A table of the functions in C++ (title -> function, title of the one by hand) beside ours."""
        rows = {f"C++, {title}": (call, f"C++, {base}") for title, (call, base) in cpp.items()}
        rows |= {f"here, {spec}": (call, "here, manual") for spec, call in self.calls.items()}
        with threads(count):
            times = interleave({title: call for title, (call, _) in rows.items()}, seconds)
        threads_text = "one thread" if count == 1 else "two threads"
        table = result.table(
            f"The stacked model, {self.size.name}, loss and all gradients, {threads_text}",
            "backward | time [s] | relative to by hand [x]",
        )
        for title, (_, base) in rows.items():
            table.add(title, times[title], times[title].over(times[base]))


def model(result, options):
    """The loss and all its gradients: one C++ function by hand and by Enzyme, and this project's three."""
    import jax

    ours = Model(options)
    arrays = [jax.device_put(x) for x in ours.arrays]
    cpp = {}
    for key, restrict in RESTRICTED.items():
        for who, gradient in model_gradients(ours.size, Compiled(restrict)).items():
            check_results(f"model, {key}, {who}", gradient(*arrays), ours.wanted)

            def call(gradient=gradient):
                return jax.block_until_ready(gradient(*arrays))

            cpp[f"{key}, {who}"] = call, f"{key}, hand"
    ours.compare(result, 1, cpp, options.seconds * LAYER_SHARE / 2)


def model_on_two(result, options):
    """The same with two threads, which have half of the sequences each."""
    ours = Model(options)
    half = replace(ours.size, B=ours.size.B // 2)
    with Halves() as halves:
        cpp = {}
        for who, gradient in model_gradients(half, Compiled(RESTRICTED["restrict"])).items():
            call = halves.call(gradient, ours.arrays, (False, True, True), (False, False), mean=True)
            check_results(f"model on two threads, {who}", call(), ours.wanted)
            cpp[who] = call, "hand"
        ours.compare(result, 2, cpp, options.seconds * LAYER_SHARE / 2)


def model_gradients(size, compiled):
    """hand, Enzyme -> gradient(params, tokens, targets) -> (loss (1,), gradient of params), jitted."""
    import jax

    c = size.config
    B, T, V, L, C, NH = size.B, size.T, c.vocab_size, c.n_layer, c.n_embd, c.n_head
    N, count = B * T, c.num_parameters
    need, at_ = f"activations_size({N}, {T}, {V}, {L}, {C}, {NH})", f"{N}, {V}, {L}, {C}"
    shape = f"{B}, {T}, {V}, {L}, {C}, {NH}"
    inputs = {"w": count, "tokens": N, "targets": N}
    forward = f"float *m = room({need}); Activations s = activations_at(m, {at_});"
    forward += f"out[0] = model_forward(s, w, tokens, targets, {shape});"
    back = zero({"dw": count}) + f"float *z = zeros({need}); Activations d = activations_at(z, {at_});"
    back += f"model_backward(dw, s, d, w, tokens, targets, {shape}); __builtin_free(z);"
    free = "__builtin_free(m);"
    loss = compiled.function("loss", {"out": 1}, inputs, forward + free)
    hand = compiled.function("gradient", {"out": 1, "dw": count}, inputs, forward + back + free)

    def derived(w, tokens, targets):
        value, gradient = jax.value_and_grad(lambda w: loss(w, tokens, targets)[0][0])(w)
        return value, gradient

    return {"hand": jax.jit(hand), "Enzyme": jax.jit(derived)}


STUDY = Study(
    "enzyme",
    "What do derived backwards cost in LLVM, where Enzyme derives them from loops in C++, and what here? The "
    "paper 'Performance of Enzyme AD in Real World High-Complexity Deep Learning Models' asked the first.",
    "GPT-2's layers as loops in C++ in the manner of llm.c, written for this study (bench/studies/gpt2.cpp), "
    "each with a backward by hand and with the one that Enzyme derives (pip install enzyme-ad), beside the "
    "same two of this project, which hands products to BLAS. Times are of forward and backward together, in "
    "turns, in one process. On two threads the C++ has each compute half of the sequences and adds up the "
    "gradients of what they share: Enzyme as that package carries it crashes on OpenMP's loops. Of matmul "
    "that form is taken which was fastest under Enzyme: without its eight rows at once it takes half as long "
    "again, and neither -O3 nor more checks of overlap at run time change much. "
    "Results and gradients are compared with the layers as written first. Compiled with "
    f"{' '.join(FLAGS)} for the level of vector instructions that the processor has.",
    run,
    seconds=360,
)
