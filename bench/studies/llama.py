"""Study: layers of examples/llama.py, with a manual backward, written here, and the derived one."""

from statistics import geometric_mean

import numpy as np

from bench.studies.layers import layer_times, time_table
from bench.studies.measure import threads
from bench.studies.study import Result, Study
from examples import llama
from gpt2.errors import counted
from gpt2.layers import Layer
from gpt2.layers.cases import Case

EPS, THETA = 1e-6, 10000.0


def rmsnorm_forward(x, weight):
    return llama.rmsnorm(x, weight, EPS), (x, weight)


def rmsnorm_backward(dout, saved):
    """For each row, with norm = x * rrms and dnorm = dout * weight:
    dx = (dnorm - norm * mean(dnorm * norm)) * rrms.
    """
    x, weight = saved
    rrms = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)
    norm = x * rrms
    dnorm = dout * weight
    dx = (dnorm - norm * np.mean(dnorm * norm, axis=-1, keepdims=True)) * rrms
    return dx, np.sum((dout * norm).reshape(-1, x.shape[-1]), axis=0)


def rotary_forward(x):
    return llama.rotated(x, 0, THETA), ()


def rotary_backward(dout, saved):
    """The transpose of a rotation is the rotation by the negative angle."""
    T, half = dout.shape[-2], dout.shape[-1] // 2
    angles = np.arange(T)[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angles).astype(dout.dtype), np.sin(angles).astype(dout.dtype)
    da, db = dout[..., :half], dout[..., half:]
    return (np.concatenate([da * cos + db * sin, db * cos - da * sin], axis=-1),)


def swiglu_forward(x, gate_proj, up_proj, down_proj):
    weights = {"mlp.gate_proj": gate_proj, "mlp.up_proj": up_proj, "mlp.down_proj": down_proj}
    return llama.swiglu(x, weights.get), (x, gate_proj, up_proj, down_proj)


def swiglu_backward(dout, saved):
    """With s = 1 / (1 + exp(-gate)): silu(gate) = gate * s, and its derivative s * (1 + gate * (1 - s))."""
    x, gate_proj, up_proj, down_proj = saved
    C = gate_proj.shape[1]
    rows, drows = x.reshape(-1, C), dout.reshape(-1, C)
    gate, up = rows @ gate_proj.T, rows @ up_proj.T
    s = 0.5 * (1.0 + np.tanh(0.5 * gate))
    silu = gate * s
    dhidden = drows @ down_proj  # (N, F)
    dup = dhidden * silu
    dgate = dhidden * up * (s * (1.0 + gate * (1.0 - s)))
    dx = (dgate @ gate_proj + dup @ up_proj).reshape(x.shape)
    return dx, dgate.T @ rows, dup.T @ rows, drows.T @ (silu * up)


LAYERS = {
    "rmsnorm": Layer("rmsnorm", rmsnorm_forward, rmsnorm_backward),
    "rotary": Layer("rotary", rotary_forward, rotary_backward),
    "swiglu": Layer("swiglu", swiglu_forward, swiglu_backward),
}


def study_cases(B, T, C, F, NH):
    shapes = {
        "rmsnorm": ((B, T, C), (C,)),
        "rotary": ((B, NH, T, C // NH),),
        "swiglu": ((B, T, C), (F, C), (F, C), (C, F)),
    }
    return {name: Case(name, name, shape) for name, shape in shapes.items()}


def run(options):
    result = Result()
    B, T, C, F, NH = (2, 8, 12, 32, 3) if options.quick else (4, 256, 512, 1376, 8)
    counts = sorted({1, options.threads})
    seconds = 0.6 * options.seconds / len(LAYERS) / len(counts)
    for n in counts:
        with threads(n):
            times = {
                name: layer_times(case, LAYERS[name], seconds, n == 1)
                for name, case in study_cases(B, T, C, F, NH).items()
            }
        time_table(result, times, (B, T), n)
        ratios = {name: t["derived", "both"].over(t["manual", "both"]).median for name, t in times.items()}
        parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        result.note(
            f"Forward and backward, derived / manual, {counted(n, 'thread')}: {parts}; geometric mean "
            f"{geometric_mean(list(ratios.values())):.2f}."
        )
    return result


STUDY = Study(
    "llama",
    "Does the derived backward keep up with one by hand in layers that the compiler was not developed with? "
    "examples/llama.py has no backward; here its RMSNorm, rotary positions and SwiGLU get one by hand.",
    "512 channels, 1376 hidden ones, 8 heads, in float32, as `python -m bench.llama` trains them. Variants "
    "and turns are those of `layers`: both backwards are compiled, the derived one from the example's "
    "forward, and gradients are compared first.",
    run,
    seconds=40,
)
