"""Step 1 of a compiler: a program is a graph.

    gelu = x * (1 + tanh(x))        x ----------------> multiply -> out
                                    x -> tanh -> add -> multiply

A node is an input, a constant, or an operation on other nodes. Two stages go through all nodes: one derives,
from the last to the first; one writes the program, from the first to the last. Both need an order in which
the arguments of a node stand before it.

Write `in_order(outputs)`: a list of the nodes `outputs` and of all from which they are computed, each once,
arguments first.
"""


class Node:
    """An operation, such as "exp", on the nodes args; without args an "input" or a "constant"."""

    def __init__(self, op, *args, value=None, name=""):
        self.op, self.args, self.value, self.name = op, args, value, name


def in_order(outputs):
    order = {}  # keeps the order in which nodes were added

    def visit(node):
        if node not in order:
            for arg in node.args:
                visit(arg)
            order[node] = None

    for output in outputs:
        visit(output)
    return list(order)


HINTS = (
    "A function that visits a node first visits its arguments, and then adds the node to the list.",
    "A node that many others use is visited once: return at once if it is in the list already. "
    "A dict keeps the order of its keys and finds one at once.",
)


def judge(names):
    """What is wrong with the answer in a file of these names, or None."""
    in_order = names["in_order"]

    class Counted(Node):
        @property
        def args(self):
            self.seen += 1
            if self.seen > 20:
                raise RecursionError("the arguments of one node are asked for again and again")
            return self.given

        @args.setter
        def args(self, args):
            self.given, self.seen = args, 0

    x, y = Counted("input", name="x"), Counted("input", name="y")
    a = Counted("exp", x)
    b = Counted("multiply", a, a)
    out, other = Counted("add", b, a), Counted("negative", b)
    Counted("log", y)  # nothing that is asked for depends on it
    found = list(in_order([out, other]))
    expected = {x: "x", a: "a = exp(x)", b: "b = a * a", out: "out = b + a", other: "other = -b"}
    listed = [expected.get(node, "a node that they do not need") for node in found]
    begin = f"in_order([out, other]) is [{', '.join(listed)}]"
    for node, name in expected.items():
        if found.count(node) != 1:
            return f"{begin}: {name} stands there {found.count(node)} times, expected once"
        if any(found.index(arg) > found.index(node) for arg in node.given):
            return f"{begin}: {name} stands before its argument"
    if len(found) > len(expected):
        return f"{begin}: it has what none of them is computed from"
    deep = x
    for _ in range(40):
        deep = Counted("add", deep, deep)
    if len(list(in_order([deep]))) != 41:
        return "of 40 times x = x + x, in_order returns another number of nodes than 41"
    return None
