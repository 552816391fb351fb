"""Programs that are not networks, each differentiated by this compiler, JAX, PyTorch and HIPS autograd.

GradBench's twelve, and seven that people write: forces of the embedded-atom model, a chaotic system by Runge
and Kutta's method, a Kalman filter, a Gaussian process, a hidden Markov model, k-means, a small recurrent
network. All compute in float64.

    inputs.py      what each is given: NumPy arrays, drawn with a seed
    formulas.py    the mathematics, for any library with NumPy's names
    library.py     what formulas ask a library for besides: loops, and what each has under another name
    own.py, xla.py, pytorch.py, hips.py
                   PROGRAMS: name -> make(inputs) -> function without arguments that returns the derivatives

`python -m bench.studies programs` times them. Of `particle` and `saddle` it is one gradient of the outer
descent, not the whole search; of `ba` the entries of the Jacobian, without their places, which are known.
"""

NAMES = (
    "hello",
    "lse",
    "llsq",
    "det",
    "ode",
    "kmeans",
    "lstm",
    "gmm",
    "ba",
    "ht",
    "saddle",
    "particle",
    "eam",
    "rk4",
    "kalman",
    "gaussian-process",
    "hidden-markov",
    "k-means",
    "rnn",
)

CONTENDERS = {
    "own": "programs-own",
    "jax": "programs-jax",
    "torch": "programs-torch",
    "torch-compile": "programs-torch-compile",
    "autograd": "programs-autograd",
}
