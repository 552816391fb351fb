"""Step 5 of a compiler: write the program.

Each node becomes a line of NumPy, so that

    def square(x):                          def square_backward(dout, x):
        return x * x                            t1 = np.multiply(dout, x)
                                                t2 = np.add(t1, t1)
                                                return (t2,)

`backward_of` puts the five steps together: it records a function, derives it, and has the result written.

Write `emit(name, parameters, outputs)`: the text of a function of these parameters that returns a tuple of
the outputs, which are nodes. An input is its name; a constant is a number, `repr(node.value.item())`; any
other node is computed once, on a line of its own, by `call_of(op)`, such as np.exp, of its arguments.
"""

import numpy as np

from gpt2.commands.exercises.sheets.derive import derive
from gpt2.commands.exercises.sheets.order import Node, in_order
from gpt2.commands.exercises.sheets.record import Array, fit


def call_of(op):
    return op if op == "fit" else f"np.{op}"


def backward_of(f, *values):
    """The text of f_backward(dout, *inputs), which returns the gradient of each of f's arguments."""
    parameters = f.__code__.co_varnames[: f.__code__.co_argcount]
    inputs = [Array(Node("input", value=np.asarray(v), name=p)) for p, v in zip(parameters, values)]
    out = f(*inputs)
    dout = Array(Node("input", value=np.ones(out.shape), name="dout"))
    grads = derive(out, dout, inputs)
    return emit(f"{f.__name__}_backward", ["dout", *parameters], [grad.node for grad in grads])


def emit(name, parameters, outputs):
    lines, names = [f"def {name}({', '.join(parameters)}):"], {}
    for node in in_order(outputs):
        if node.op == "input":
            names[node] = node.name
        elif node.op == "constant":
            names[node] = repr(node.value.item())
        else:
            names[node] = f"t{len(lines)}"
            arguments = ", ".join(names[arg] for arg in node.args)
            lines.append(f"    {names[node]} = {call_of(node.op)}({arguments})")
    lines.append(f"    return ({', '.join(names[output] for output in outputs)},)")
    return "\n".join(lines)


HINTS = (
    "Go through in_order(outputs) with a dict from nodes to the text by which later lines name them.",
    "For exp of x the line is `    t1 = np.exp(x)`, and names[node] = 't1'. Then `    return (t1,)`.",
)


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def linear(inp, weight, bias):
    return np.tanh(inp @ weight + bias)


def mean_square(x):
    return np.sum(x * x) / 6.0


def judge(names):
    """What is wrong with the answer in a file of these names, or None. The programs it writes are run."""
    from gpt2 import autodiff as ad

    rng = np.random.default_rng(0)
    for f, shapes in ((mean_square, [(2, 3)]), (gelu, [(2, 3)]), (linear, [(2, 3), (3, 4), (4,)])):
        recorded, values = ([rng.standard_normal(shape) for shape in shapes] for _ in range(2))
        source = names["backward_of"](f, *recorded)
        if not isinstance(source, str):
            return f"emit returns a {type(source).__name__}, expected the text of a function"
        begin = f"what it writes for {f.__name__}_backward"
        namespace = {"np": np, "fit": fit}
        try:
            exec(source, namespace)
            out = f(*values)
            g = rng.standard_normal(np.shape(out))
            found = namespace[f"{f.__name__}_backward"](g, *values)
        except Exception as error:
            return f"{begin} cannot be run: {type(error).__name__}: {error}\n{source}"
        if not isinstance(found, tuple) or len(found) != len(values):
            return f"{begin} returns no tuple of {len(values)}\n{source}"
        for i, (share, right) in enumerate(zip(found, ad.vjp(f, *values)[1](g))):
            if not np.allclose(share, right, rtol=1e-12, atol=1e-12):  # sums in another order
                wrong = f"a wrong gradient {i}, for other arguments than the recorded ones"
                return f"{begin} has {wrong}\n{source}"
        if f is gelu and source.count("np.tanh") != 1:
            return f"{begin} computes tanh {source.count('np.tanh')} times, which is one node\n{source}"
    return None
