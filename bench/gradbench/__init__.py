"""The GradBench protocol: its evaluations, run against this compiler.

    python -m bench.gradbench            JSON lines on standard input and output

GradBench (github.com/gradbench/gradbench) runs one set of evaluations against many differentiation tools.
Each file here is one of them: its objective, written in plain NumPy from the published definition, and what
gpt2.autodiff makes of it.

    protocol.py   messages, timings, failures
    function.py   an evaluation: read, run, write
    descent.py    the gradient descent that `particle` and `saddle` prescribe

docs/gradbench.md has a session.
"""

MODULES = ("ba", "det", "gmm", "hello", "ht", "kmeans", "llsq", "lse", "lstm", "ode", "particle", "saddle")
