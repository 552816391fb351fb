"""A GradBench tool: GradBench's evaluations, answered with this compiler.

    python -m bench.gradbench            JSON lines on standard input and output

GradBench (github.com/gradbench/gradbench) runs one set of evaluations against many differentiation tools.
The evaluations are written from their published definitions; formulas that other libraries compute as well
are those of bench/programs.

    gradients.py  the evaluations that are a function and its gradient; the others are a file each
    protocol.py   messages, timings, failures
    function.py   a function of an evaluation: read, run, write
    descent.py    the gradient descent that `particle` and `saddle` prescribe

docs/gradbench.md has an example session.
"""

MODULES = ("ba", "det", "gmm", "hello", "ht", "kmeans", "llsq", "lse", "lstm", "ode", "particle", "saddle")
