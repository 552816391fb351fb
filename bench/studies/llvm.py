"""Study: GPT-2's layers in C++ with manual and Enzyme-derived backwards, beside this project's two.

The package enzyme-ad bundles clang, LLVM and Enzyme. It compiles and differentiates C++ (gpt2.cpp) inside of
jitted JAX functions.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from bench.harness.engine import check_results
from bench.harness.sizes import SIZES, Size, batches
from bench.studies.layers import layer_players, model_players
from bench.studies.measure import interleave, threads
from bench.studies.study import Result, Study
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2Config

SOURCE = Path(__file__).with_name("gpt2.cpp")
LAYER_SHARE = 0.3  # of the study's time; most of the rest is Enzyme's compilation
# llm.c's flags for clang, without -march=native, which `cpu_flags` replaces
FLAGS = ("-O2", "-ffast-math")
RESTRICTED = {"restrict": "__restrict__", "no restrict": ""}


def run(options):
    result = Result()
    enzyme = result.peer("enzyme_ad.jax")
    if enzyme is None:
        result.note("Enzyme is not installed, so there is no comparison.")
        return result
    import jax

    jax.config.update("jax_platforms", "cpu")
    sizes = Sizes(B=2, T=8, C=24, OC=96, NH=3, V=97, max_t=8) if options.quick else SIZES_SHOWN
    with threads(1):
        layers(result, sizes, options.seconds * LAYER_SHARE)
        model(result, options)
    return result


# The layers of GPT-2 124M; matmul is the product from C to 4C.
SIZES_SHOWN = Sizes(B=4, T=64, C=768, OC=3072, NH=12, V=50257, max_t=64)


def cpu_flags():
    """Flags for this processor's x86-64 level."""
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
    """One layer's functions in gpt2.cpp.

    inputs, saved, out   numbers of floats: of the arguments, of values kept for the manual backward, of the
    result
    sizes                last arguments of both functions
    reads                what the manual backward reads besides dout
    """

    name: str
    inputs: dict
    out: int
    sizes: tuple
    reads: str
    saved: dict = field(default_factory=dict)

    @property
    def differentiable(self):
        return [x for x in self.inputs if x not in ("tokens", "targets")]

    @property
    def forward(self):
        return self._call("forward", "out", *self.saved, *self.inputs)

    @property
    def backward(self):
        return self._call("backward", *(f"d{x}" for x in self.differentiable), "dout", *self.reads.split())

    def _call(self, way, *arguments):
        return f"{self.name}_{way}({', '.join([*arguments, *map(str, self.sizes)])});"


def kernels(s):
    """Layer -> Kernel at these sizes."""
    n, b, t, c, o, h, v = s.B * s.T, s.B, s.T, s.C, s.OC, s.NH, s.V
    linear, norm = {"inp": n * c, "weight": o * c, "bias": o}, {"inp": n * c, "weight": c, "bias": c}
    rows = (
        Kernel("encoder", {"tokens": n, "wte": v * c, "wpe": t * c}, n * c, (b, t, c), "tokens"),
        Kernel("layernorm", norm, n * c, (n, c), "inp weight mean rstd", {"mean": n, "rstd": n}),
        Kernel("matmul", linear, n * o, (n, c, o), "inp weight"),
        Kernel("attention", {"qkv": 3 * n * c}, n * c, (b, t, c, h), "qkv att", {"att": n * h * t}),
        Kernel("gelu", {"inp": n * o}, n * o, (n * o,), "inp"),
        Kernel("residual", {"a": n * c, "b": n * c}, n * c, (n * c,), ""),
        Kernel(
            "crossentropy", {"logits": n * v, "targets": n}, n, (n, v), "logits logsum targets", {"logsum": n}
        ),
    )
    return {kernel.name: kernel for kernel in rows}


def entry(name, outputs, inputs, body):
    """A C++ template for enzyme-ad to call: takes pointers to its tensor arguments and runs the body."""
    arguments = [f"T_{x}& t_{x}" for x in outputs] + [f"const T_{x}& t_{x}" for x in inputs]
    types = ", ".join(f"typename T_{x}" for x in (*outputs, *inputs))
    pointers = [f"float *RESTRICT {x} = (float *)&t_{x};" for x in outputs]
    pointers += [f"const float *RESTRICT {x} = (const float *)&t_{x};" for x in inputs]
    return f"template <{types}> void {name}({', '.join(arguments)}) {{ {' '.join(pointers)} {body} }}\n"


def compiled(restrict, name, outputs, inputs, body):
    """A C++ function callable inside of jax.jit, f(*arrays) -> list of arrays. outputs: name -> size."""
    import jax
    from enzyme_ad.jax import cpp_call

    source = SOURCE.read_text(encoding="utf-8") + entry(name, outputs, inputs, body)
    shapes = [jax.core.ShapedArray((size,), np.float32) for size in outputs.values()]
    flags = (*FLAGS, *cpu_flags(), f"-DRESTRICT={restrict}")
    return lambda *arrays: cpp_call(*arrays, out_shapes=shapes, source=source, fn=name, argv=flags)


def zero(names):
    return " ".join(f"for (long i = 0; i < {size}; i++) {name}[i] = 0.0f;" for name, size in names.items())


def by_hand(kernel, restrict):
    """gradient(dout, *inputs) -> (out, *gradients), with the manual backward."""
    import jax

    gradients = {f"d{x}": kernel.inputs[x] for x in kernel.differentiable}
    forward = compiled(
        restrict, "forward", {"out": kernel.out, **kernel.saved}, kernel.inputs, kernel.forward
    )
    back = compiled(
        restrict,
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


def by_enzyme(kernel, restrict):
    """gradient(dout, *inputs) -> (out, *gradients), with the backward derived by Enzyme."""
    import jax

    allocs = " ".join(f"float *{name} = room({size});" for name, size in kernel.saved.items())
    frees = " ".join(f"__builtin_free({name});" for name in kernel.saved)
    forward = compiled(
        restrict, "primal", {"out": kernel.out}, kernel.inputs, allocs + kernel.forward + frees
    )
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


def on_device(gradient, arrays):
    """A function that computes the gradient of these arrays, which lie where JAX has its own."""
    import jax

    arrays = [jax.device_put(np.ravel(x).astype(np.float32)) for x in arrays]
    return lambda: jax.block_until_ready(gradient(*arrays))


# ---- Layers ------------------------------------------------------------------------------------------------


def layers(result, sizes, seconds):
    """Table of forward and backward of every layer, in C++ and here, by hand and derived."""
    table = result.table(
        f"Layers, forward and backward, B={sizes.B}, T={sizes.T}, one thread",
        "layer | C++, by hand [s] | C++, Enzyme [s] | Enzyme / by hand [x] | the same without restrict [x]",
        "here, by hand [s] | here, derived [s] | derived / by hand [x]",
    )
    ratios = {"Enzyme / by hand, C++": [], "derived / by hand, here": []}
    for name in LAYERS:
        times = layer_times(name, sizes, seconds / len(LAYERS))
        enzyme = [times[key, "Enzyme"].over(times[key, "hand"]) for key in RESTRICTED]
        ours = times["here", "derived"].over(times["here", "manual"])
        cpp = times["restrict", "hand"], times["restrict", "Enzyme"], *enzyme
        table.add(name, *cpp, times["here", "manual"], times["here", "derived"], ours)
        for values, ratio in zip(ratios.values(), (enzyme[0], ours)):
            values.append(ratio.median)
    parts = ", ".join(f"{geometric_mean(values):.2f} ({title})" for title, values in ratios.items())
    result.note(f"Geometric means over the layers: {parts}.")


def layer_times(name, sizes, seconds):
    """Sample for each of (restrict | no restrict, hand | Enzyme) and ("here", manual | derived).

    Gradients are compared first.
    """
    case = at(sizes)[name]
    case = replace(case, shapes=((sizes.B, sizes.T, sizes.OC),)) if name == "gelu" else case
    ours = layer_players(case, LAYERS[name])
    written = ours["written"]
    calls = {("here", kind): ours[kind].both for kind in ("manual", "derived")}
    for key, restrict in RESTRICTED.items():
        for kind, make in (("hand", by_hand), ("Enzyme", by_enzyme)):
            gradient = make(kernels(sizes)[name], restrict)
            call = on_device(gradient, (written.dout, *written.inputs))
            check_results(f"{name}, {key}, {kind}", call(), written.results())
            calls[key, kind] = call
    return interleave(calls, seconds)


# ---- The stacked model -------------------------------------------------------------------------------------


def model(result, options):
    """Table of the loss with all gradients: C++ by hand and by Enzyme, and this project's three backwards."""
    tiny = Size("2x24", GPT2Config(vocab_size=97, block_size=8, n_layer=2, n_head=3, n_embd=24), 2, 8)
    size = tiny if options.quick else replace(SIZES["4x128-B12T64"], B=4, name="4x128-B4T64")
    players = model_players(size)
    tokens, targets = next(batches(size))
    first = players["manual"]
    expected = np.array([first.loss_and_grads(tokens, targets)]), first.flat_grads
    calls, bases = {}, {}  # by title; the title of the one by hand
    for key, restrict in RESTRICTED.items():
        for kind, gradient in model_gradients(size, restrict).items():
            title = f"C++, {key}, {kind}"
            calls[title] = on_device(gradient, (first.flat_params, tokens, targets))
            check_results(title, calls[title](), expected)
            bases[title] = f"C++, {key}, hand"
    for spec, player in players.items():
        calls[f"here, {spec}"] = partial(player.loss_and_grads, tokens, targets)
        bases[f"here, {spec}"] = "here, manual"
    times = interleave(calls, options.seconds * LAYER_SHARE / 2)
    table = result.table(
        f"The stacked model, {size.name}, loss and all gradients, one thread",
        "backward | time [s] | relative to by hand [x]",
    )
    for title, base in bases.items():
        table.add(title, times[title], times[title].over(times[base]))


def model_gradients(size, restrict):
    """hand, Enzyme -> jitted gradient(params, tokens, targets) -> (loss (1,), gradient of params)."""
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
    loss = compiled(restrict, "loss", {"out": 1}, inputs, forward + free)
    hand = compiled(restrict, "gradient", {"out": 1, "dw": count}, inputs, forward + back + free)

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
    "turns, in one process. All run on one thread: Enzyme in that package crashes on OpenMP's loops. matmul "
    "has the form that was fastest under Enzyme: without its eight rows at once it takes half as long again, "
    "and neither -O3 nor more checks of overlap at run time change much. Results and gradients are compared "
    "with the layers as written first. Compiled with "
    f"{' '.join(FLAGS)} for the level of vector instructions that the processor has.",
    run,
    seconds=180,
)
