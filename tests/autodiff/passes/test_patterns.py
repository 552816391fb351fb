"""Rules that are patterns: what matches, what is made of it, and for which numbers."""

import numpy as np
import pytest

from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, build, const, input_node
from gpt2.autodiff.ops.build import cast
from gpt2.autodiff.passes import FAMILIES, engine
from gpt2.autodiff.passes.engine import READS, Family, sweep_to_end
from gpt2.autodiff.passes.patterns import ALL, R


@pytest.fixture(autouse=True)
def tables_undone(monkeypatch):
    monkeypatch.setattr(engine, "READS", dict(READS))


def f(name="x", shape=(3,), dtype="float32"):
    return input_node(shape, dtype, name)


X, Y, Z = f("x"), f("y"), f("z")


def after(n, rule, math="fast"):
    """The node by which a rule replaces n; None if it does not."""
    family = Family("one rule")
    family.table(rule)
    inputs = [a for a in Graph((), [n]).nodes if a.op == "input"]
    graph = Graph(inputs, [n])
    out = sweep_to_end(graph, (family,), math=math).outputs[0]
    return None if out is n else out


def test_a_name_is_the_same_value_wherever_it_stands():
    rule = R("where(c, where(c, x, y), z)", "where(c, x, z)", bits=ALL)
    c, d = f("c", dtype="bool"), f("d", dtype="bool")
    assert after(apply("where", c, apply("where", c, X, Y), Z), rule).args == (c, X, Z)
    assert after(apply("where", c, apply("where", d, X, Y), Z), rule) is None
    assert after(X - X, R("x - x", "0")).op == "broadcast"
    assert after(X - Y, R("x - x", "0")) is None


def test_arguments_of_ops_that_commute_are_tried_in_both_orders():
    minus = R("x + -y", "x - y", bits=ALL)
    for n in (X + -Y, -Y + X):
        assert (after(n, minus).op, after(n, minus).args) == ("subtract", (X, Y))
    assert after(-X - Y, R("x - -y", "x + y")) is None


@pytest.mark.parametrize(
    "wanted, number, matches",
    [
        ("0", 0.0, True),
        ("0", -0.0, True),
        ("0.0", -0.0, False),
        ("-0.0", -0.0, True),
        ("-0.0", 0.0, False),
        ("2", 2.0, True),
        ("2", -2.0, False),
        ("-2", -2.0, True),
        ("C", 7.0, True),
    ],
)
def test_numbers(wanted, number, matches):
    rule = R(f"x + {wanted}", "x", bits=ALL)
    for c in (const(number, "float32"), build.full((3,), number, "float32")):
        assert after(apply("add", X, c), rule) is (X if matches else None)
    assert after(X + Y, rule) is None


def test_truth():
    for value, wanted in ((True, "True"), (2.0, "True"), (0.0, "False")):
        n = apply("where", const(value), X, Y)
        assert after(n, R(f"where({wanted}, x, y)", "x")) is X
        assert after(n, R(f"where({wanted == 'False'}, x, y)", "x")) is None


def test_a_number_is_negated_in_its_own_dtype():
    product = after(-X * 3.0, R("-x * C", "x * -C"))
    assert product.args[0] is X and product.args[1].value == -3.0 and product.dtype == "float32"


def test_a_value_gets_the_type_of_the_result():
    small = f("small", (1,), "int8")
    out = after(apply("add", small, build.full((4, 3), 0.0, "float64")), R("x + 0", "x"))
    assert (out.shape, out.dtype) == ((4, 3), "float64")
    assert after(apply("multiply", small, const(-1, "int64")), R("x * -1", "-cast(x)")).args[0].op == "cast"


def test_a_result_of_another_dtype_is_not_made():
    wide = apply("where", f("c", dtype="bool"), X, f("w", dtype="float64"))
    n = apply("where", wide.args[0], wide, Z)
    assert after(n, R("where(c, where(c, x, y), z)", "where(c, x, z)")) is None


def test_an_op_keeps_its_settings():
    out = after(cast(cast(X, "float64"), "int8"), R("cast(cast(x))", "cast(x)"))
    assert (out.op, out.args, out.dtype) == ("cast", (X,), "int8")
    out = after(
        build.reshape(build.reshape(f(shape=(6, 2)), (12,)), (4, 3)), R("reshape(reshape(x))", "reshape(x)")
    )
    assert (out.shape, out.args[0].shape) == ((4, 3), (6, 2))


def test_kinds():
    real = R("conjugate(x)", "x", bits="f", kinds="biuf")
    number, whole, other = f(), f(dtype="int64"), f(dtype="complex64")
    assert after(apply("conjugate", number), real, "strict") is number
    assert after(apply("conjugate", whole), real, "strict") is None
    assert after(apply("conjugate", whole), real) is whole
    assert after(apply("conjugate", other), real) is None
    part = R("real(x)", "x", bits="f", kinds="f")  # its result is a float: what it reads counts as well
    assert after(apply("real", other), part) is None


def test_a_further_condition():
    rule = R("positive(x)", "x", when=lambda n, values: values["x"] is X)
    assert after(apply("positive", X), rule) is X
    assert after(apply("positive", Y), rule) is None


def test_ops_inside_that_others_read():
    rule = R("-(x - y)", "y - x", single=True)
    difference = X - Y
    family = Family("one rule")
    family.table(rule)
    alone = sweep_to_end(Graph([X, Y], [-difference]), (family,), math="fast")
    assert alone.outputs[0].args == (Y, X)
    graph = Graph([X, Y], [-difference, difference])
    assert sweep_to_end(graph, (family,), math="fast") is graph


def test_invalid_patterns_are_refused():
    with pytest.raises(ValueError, match="a pattern of x"):
        R("x", "x")
    with pytest.raises(KeyError):
        R("x @ y", "x")


# ---- Every row of the tables -------------------------------------------------------------------------------

ROWS = {rule for family in FAMILIES.values() for rules in family.rules.values() for rule, *_ in rules}
ROWS = {rule.__name__: rule for rule in ROWS if isinstance(rule, R)}
# What a node's type decides, and no expression says
TYPED = {"reshape(reshape(x)) -> reshape(x)", "broadcast(broadcast(x)) -> broadcast(x)"}


@pytest.mark.parametrize("name", sorted(ROWS.keys() - TYPED))
def test_both_sides_of_a_row_are_equal(name):
    """As NumPy computes them, on numbers of either sign: random programs need not come to every row."""
    before, after = name.split(" -> ")
    rng = np.random.default_rng(0)
    values = {x: rng.choice([-1.0, 1.0], 9) * rng.uniform(0.3, 2.0, 9) for x in "xyzC"}
    if "logical" in before and "where" not in before:
        values["x"] = values["x"] > 0
    if "bitwise" in before:
        values["x"] = rng.integers(-9, 9, 9)
    names = {**vars(np), **values, "c": rng.random(9) < 0.5, "cast": np.copy}
    np.testing.assert_array_equal(
        np.broadcast_to(eval(after, names), 9), np.broadcast_to(eval(before, names), 9), err_msg=name
    )
