"""Programs that are not neural networks, differentiated by this compiler, JAX, PyTorch and HIPS autograd.

GradBench's twelve and seven more: forces of the embedded-atom model, a chaotic system by the Runge-Kutta
method, a Kalman filter, a Gaussian process, a hidden Markov model, k-means, a small recurrent network. All
compute in float64. own.py, xla.py, pytorch.py and hips.py have

    program(name, variant, inputs) -> function without arguments that returns the derivatives

`particle` and `saddle` stand for one gradient of the outer descent instead of the whole search, `ba` for the
values of the sparse Jacobian without their indices.
"""

from bench.harness.contenders import KEEP_MEMORY, Contender
from bench.programs.formulas import GRADIENTS

NAMES = (*GRADIENTS, "kmeans", "ba", "ht")
TORCH = "bench.programs.pytorch"
CONTENDERS = {
    "own": Contender("derived", "bench.programs.own", "", "numpy", KEEP_MEMORY),
    "jax": Contender("JAX, jit", "bench.programs.xla", "", "jax", KEEP_MEMORY),
    "torch": Contender("PyTorch, eager", TORCH, "eager", "torch", KEEP_MEMORY),
    "torch-compile": Contender("PyTorch, compiled", TORCH, "compile", "torch", KEEP_MEMORY),
    "autograd": Contender("HIPS autograd", "bench.programs.hips", "", "autograd", KEEP_MEMORY),
}
