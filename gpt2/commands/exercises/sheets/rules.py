"""Step 3 of a compiler: a rule for each operation.

If out = exp(x), and g = dL/dout is the gradient of the loss, then dL/dx = g * exp(x), which is g * out. A
rule says so for one operation, in operations again, so that derivatives can be derived again.

Write `rules()`: a dict from the names add, subtract, multiply, divide, negative, exp, log, tanh, sqrt, matmul
and sum (of all entries) to functions of (g, out, *args) that return a tuple, the gradient of each argument.
All are Arrays of step 2, of any shapes that belong together; matmul's have two axes.

A rule need not mind shapes: where x of shape (3,) was added to y of shape (2, 3), the gradient of x may have
shape (2, 3), and step 4 sums it. Likewise sum's may have g's shape, and step 4 repeats it.
"""

import numpy as np

from gpt2.commands.exercises.sheets.order import Node
from gpt2.commands.exercises.sheets.record import Array, fit


def rules():
    return {
        "add": lambda g, out, a, b: (g, g),
        "subtract": lambda g, out, a, b: (g, -g),
        "multiply": lambda g, out, a, b: (g * b, g * a),
        "divide": lambda g, out, a, b: (g / b, -g * out / b),
        "negative": lambda g, out, x: (-g,),
        "exp": lambda g, out, x: (g * out,),
        "log": lambda g, out, x: (g / x,),
        "tanh": lambda g, out, x: (g * (1.0 - out * out),),
        "sqrt": lambda g, out, x: (0.5 * g / out,),
        "matmul": lambda g, out, a, b: (g @ np.matrix_transpose(b), np.matrix_transpose(a) @ g),
        "sum": lambda g, out, x: (g,),
    }


HINTS = (
    "The slopes: exp has out, log 1/x, tanh 1 - out*out, sqrt 0.5/out; a/b has 1/b and -out/b.",
    "matmul by shapes: (n, k) @ (k, m) has g of shape (n, m), so a's gradient is g @ np.matrix_transpose(b).",
)
ARGUMENTS = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "matmul": 2}


def judge(names):
    """What is wrong with the answer in a file of these names, or None, by gpt2.autodiff."""
    from gpt2 import autodiff as ad

    array, node = names.get("Array", Array), names.get("Node", Node)
    table, rng = names["rules"](), np.random.default_rng(0)
    if not isinstance(table, dict):
        return f"rules() is a {type(table).__name__}, expected a dict"
    for op in rules():
        if op not in table:
            return f"there is no rule for {op}"
        shapes = [(2, 3), (3, 4)] if op == "matmul" else [(2, 3)] * ARGUMENTS.get(op, 1)
        args = [rng.uniform(0.5, 2.0, shape) for shape in shapes]
        call = getattr(np, op)
        out = np.asarray(call(*args))
        g = rng.standard_normal(out.shape)
        result = table[op](*(array(node("input", value=value)) for value in (g, out, *args)))
        if not isinstance(result, tuple) or len(result) != len(args):
            return f"the rule of {op} returns no tuple of {len(args)}, a gradient of each argument"
        for i, (share, expected) in enumerate(zip(result, ad.vjp(call, *args)[1](g))):
            which = f"the rule of {op}: the gradient of argument {i}"
            if not isinstance(share, array):
                return f"{which} is a {type(share).__name__}, expected an Array"
            if share.shape not in (expected.shape, out.shape):
                return f"{which} has shape {share.shape}, expected {expected.shape}"
            found = fit(share.node.value, expected)
            if not np.allclose(found, expected, rtol=1e-12, atol=1e-12):  # sums in another order
                at = tuple(map(int, np.unravel_index(np.argmax(np.abs(found - expected)), expected.shape)))
                return f"{which} is {found[at]:.6g} at {list(at)}, should be {expected[at]:.6g}"
    return None
