"""Step 4 of a compiler: the chain rule, from the last node to the first.

    dL/dx  =  the sum over all nodes that use x of   dL/dnode * dnode/dx

Begin with the gradient of `out`, which is `dout`. When a node's turn comes, all nodes that use it have handed
it their share, so that its own gradient is complete; its rule says what it hands to its arguments.

Write `derive(out, dout, inputs)`: a list of the gradients of `inputs`. All are Arrays. What is computed here
is recorded as in a forward: `a + b` of two Arrays is a new node. RULES has the table of step 3, and
`shaped(share, arg)` gives a share the shape of its argument. An input that `out` does not depend on has the
gradient zero.
"""

import numpy as np

from gpt2.commands.exercises.sheets.order import Node, in_order
from gpt2.commands.exercises.sheets.record import Array, record
from gpt2.commands.exercises.sheets.rules import rules

RULES = rules()


def shaped(share, arg):
    return share if share.shape == arg.shape else record("fit", share, arg)


def derive(out, dout, inputs):
    grads = {out.node: dout}
    for node in reversed(in_order([out.node])):
        if node in grads and node.args:
            args = [Array(arg) for arg in node.args]
            for arg, share in zip(args, RULES[node.op](grads[node], Array(node), *args)):
                share = shaped(share, arg)
                grads[arg.node] = grads[arg.node] + share if arg.node in grads else share
    zero = Array(Node("constant", value=np.asarray(0.0)))
    return [grads[x.node] if x.node in grads else shaped(zero, x) for x in inputs]


HINTS = (
    "A dict from nodes to gradients, begun with out's; then a loop over reversed(in_order([out.node])).",
    "RULES[node.op](grads[node], Array(node), *args), where args = [Array(arg) for arg in node.args], gives "
    "the shares. A share is added to the gradient that its argument has already, or is its first one.",
)


def twice(x, y):
    a = np.exp(x)
    return a * (a + x)


CASES = (  # of x of shape (2, 3) and y of some shape
    ("np.exp(x)", lambda x, y: np.exp(x), (2, 3)),
    ("np.tanh(x * y)", lambda x, y: np.tanh(x * y), (2, 3)),
    ("x * x, where x is used twice", lambda x, y: x * x, (2, 3)),
    ("a * (a + x), where a = np.exp(x) is used twice", twice, (2, 3)),
    ("x + y, where y of shape (3,) is repeated", lambda x, y: x + y, (3,)),
    ("x / np.sum(x), where a sum is repeated", lambda x, y: x / np.sum(x), (2, 3)),
)


def judge(names):
    """What is wrong with the answer in a file of these names, or None, by gpt2.autodiff."""
    from gpt2 import autodiff as ad

    array, node = names.get("Array", Array), names.get("Node", Node)
    rng = np.random.default_rng(0)
    for text, f, shape in CASES:
        values = [rng.uniform(0.5, 2.0, (2, 3)), rng.uniform(0.5, 2.0, shape)]
        inputs = [array(node("input", value=value)) for value in values]
        out = f(*inputs)
        g = rng.standard_normal(out.shape)
        found = names["derive"](out, array(node("input", value=g)), inputs)
        if not isinstance(found, list | tuple) or len(found) != 2:
            return "derive(out, dout, [x, y]) is no list of two gradients"
        expected = ad.vjp(f, *values)[1](g)
        for name, share, right in zip("xy", found, expected):
            if not isinstance(share, array):
                return f"out = {text}: the gradient of {name} is a {type(share).__name__}, expected an Array"
            if share.shape != right.shape:
                return f"out = {text}: the gradient of {name} has shape {share.shape}, expected {right.shape}"
            if not np.allclose(share.node.value, right, rtol=1e-12, atol=1e-12):  # sums in another order
                (at, *_) = np.argwhere(share.node.value != right).tolist()
                wrong = f"{share.node.value[tuple(at)]:.6g} at {at}, should be {right[tuple(at)]:.6g}"
                return f"out = {text}: the gradient of {name} is {wrong}"
    return None
