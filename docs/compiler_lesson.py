"""The lesson on the compiler as cells of a notebook, made from its exercises: gpt2/commands/exercises/sheets.

`python -m docs.notebooks compiler_lesson` writes and runs examples/compiler_lesson.ipynb.
"""

import ast
import re
from pathlib import Path

from gpt2.commands.exercises.sheets import SETS, TO_WRITE, sheet, task_of, text_of

INTRODUCTION = """\
# Write a compiler for backwards in an hour

At its end you have a program that reads a function in NumPy and writes its backward in NumPy. It has five
steps, about twelve minutes each, and a check that fails until a step is done. Each step is shown empty, then
solved: write your own between the two. `python -m gpt2 exercises --set compiler` has the same steps as files,
with hints and grading.

You need to know what a derivative is, and Python's functions and dicts."""
CHECK = '''\
import numpy as np

from gpt2.commands.exercises.sheets import sheet, task_of


def check(step):
    """Say whether the function of a step is right, as the grader does."""
    try:
        print(f"{step}: {sheet(step).judge(globals()) or 'right'}")
    except NotImplementedError:
        print(f"{step}: {task_of(step)} is not written yet")'''
ALL_STEPS = """\
## All five at work

The backward of GELU, whose formula nobody has differentiated, and of a linear layer with tanh."""
GELU = """\
def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def linear(inp, weight, bias):
    return np.tanh(inp @ weight + bias)


source = backward_of(gelu, np.ones(3))
print(source, backward_of(linear, np.ones((2, 3)), np.ones((3, 4)), np.ones(4)), sep="\\n\\n")"""
RIGHT = """\
Is it right? Beside the derivative by gpt2's compiler:"""
COMPARE = """\
import matplotlib.pyplot as plt

from gpt2 import autodiff as ad

exec(source)
x = np.linspace(-4.0, 4.0, 101)
(slope,) = gelu_backward(np.ones(101), x)
print("largest difference:", np.max(np.abs(slope - ad.vjp(gelu, x)[1](np.ones(101)))))
plt.rcParams.update({"figure.dpi": 72, "figure.figsize": (7, 3)})
figure, axes = plt.subplots(layout="constrained")
axes.plot(x, gelu(x), label="gelu(x)")
axes.plot(x, slope, label="gelu_backward(1, x)")
axes.set(xlabel="x")
axes.legend();"""
PICTURE = "GELU bends from 0 into a straight line; its slope goes from 0 to 1, past both on the way"
END = """\
## What is missing

- Constants are not folded, and equal terms are computed twice. A step from graph to graph mends both:
  `simplify` in `examples/compiler.py`, which has all steps in 300 lines, with indices, views and
  writes, and derives the seven layers of GPT-2 as they stand.
- Every operation allocates its result. What each part of gpt2's compiler adds to these steps, and what that
  buys, is a table in [docs/compiler.md](../docs/compiler.md).
- Homework: a rule for `np.sin`; `np.sum` along an axis; the second derivative of GELU by deriving twice."""


def cells() -> list[tuple[str, str]]:
    """(kind, source) of every cell."""
    made = [("markdown", INTRODUCTION), ("code", CHECK)]
    for number, name in enumerate(SETS["compiler"], 1):
        tree = ast.parse(text_of(name, solved=True))
        title, _, about = ast.get_docstring(tree).partition("\n")
        source = Path(str(sheet(name).__file__)).read_text(encoding="utf-8").splitlines()
        parts = {
            node: "\n".join(source[node.lineno - 1 : node.end_lineno])
            for node in tree.body[1:]
            if not isinstance(node, ast.Import | ast.ImportFrom)
        }
        *given, solution = parts.values()
        until = solution.partition("\n")[0]
        empty = f"{until}\n    {TO_WRITE}"
        check = f'check("{name}")'
        heading = title.removesuffix(".").partition(": ")[2].capitalize()
        made += [
            ("markdown", f"## {number}. {heading}\n{about}"),
            ("code", "\n\n\n".join([*given, empty]) + f"\n\n\n{check}"),
            ("markdown", f"`{task_of(name)}`, solved:"),
            ("code", f"{solution}\n\n\n{check}"),
        ]
    end = [("markdown", ALL_STEPS), ("code", GELU), ("markdown", RIGHT), ("code", COMPARE), ("markdown", END)]
    return [(kind, re.sub(r"\n{4,}", "\n\n\n", text)) for kind, text in made + end]
