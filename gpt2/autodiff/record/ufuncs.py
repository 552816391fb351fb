"""Records NumPy's universal functions and Python's operators: calls, with all options, and methods."""

from __future__ import annotations

import functools
import operator
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..atoms import SCALARS
from ..doors import beside
from ..errors import AutodiffError, DtypeError, located, of_another_library, unsupported
from ..graph import Node
from ..ops import OPS, apply, build, table
from . import source_lines
from .dispatch import NO_ENTRY, TABLE, Entry, bind, full_name, handled, handles, is_of_scipy, since, typed
from .local.arrays import all_unwrapped, is_local, unwrapped, written_to
from .memory import writes
from .recorder import Recorder, innermost, label, lost_write, scalar_const, weak_dtype
from .ufunc_methods import call_method
from .unwatched import call_unwatched
from .value import OPERANDS, PROTOCOLS, Recorded, as_node, copied, in_array, node_in, value_of

if TYPE_CHECKING:
    from .source_lines import Site

# NumPy has several names for some ufuncs; they are the same object
for _ufunc in vars(np).values():
    if isinstance(_ufunc, np.ufunc) and _ufunc.__name__ in OPS:
        TABLE[_ufunc] = Entry(op=_ufunc.__name__)
# NumPy computes x**n of an array, for n a Python number, by these ufuncs: the results are the same bits.
POWERS = {2: "square", 0.5: "sqrt", 1: "positive", -1: "reciprocal"}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence, kwargs: dict) -> Any:
    """Run a ufunc, or one of its methods, on inputs of which some are recorded."""
    if kwargs.get("out") is not None:
        kwargs = {**kwargs, "out": written_to(kwargs["out"])}
    if method == "at":
        inputs = (written_to(inputs[0]), *inputs[1:])
    if not OPERANDS.issuperset(map(type, inputs)):
        inputs = all_unwrapped(inputs)
    if method != "__call__":
        return call_method(ufunc, method, inputs, kwargs)
    rule = TABLE.get(ufunc, NO_ENTRY).rule
    if rule is not None and (result := rule(*inputs, **kwargs)) is not NotImplemented:
        return result
    if not kwargs and ufunc.nout == 1:
        return operate(ufunc, ufunc, *inputs)
    kwargs = dict(kwargs)
    outs = kwargs.pop("out", None)
    where = unwrapped(kwargs.pop("where", True))
    if outs is None and where is True and not kwargs:
        return _two_results(ufunc, inputs)
    return _general(ufunc, inputs, outs, where, kwargs)


# plain calls
def operate(ufunc: np.ufunc, function: Callable, *inputs: Any) -> Any:
    """One call of a ufunc with one result; `function` computes it: the ufunc, or Python's operator."""
    if not OPERANDS.issuperset(map(type, inputs)):
        inputs = all_unwrapped(inputs)
        if not all(type(x) in OPERANDS or _leaves_operation(x) for x in inputs):
            return NotImplemented
        try:
            inputs = tuple(map(in_array, inputs))
        except ValueError as error:  # lists of several lengths
            raise located(error, full_name(ufunc), source_lines.here()) from None
    compute = functools.partial(_computed, ufunc, function)
    return bind(ufunc, inputs, {}, compute, functools.partial(_node, ufunc, function is not ufunc, inputs))


def _node(
    ufunc: np.ufunc, is_operator: bool, inputs: Sequence, rec: Recorder, values: list, value: Any, site: Site
) -> Node:
    builder = TABLE.get(ufunc, NO_ENTRY).nodes
    if any(v is None for v in values):  # x == None: False, whatever the numbers are
        return table.const(value)
    if builder is not None:
        return builder(*operands(rec, inputs, values))
    if ufunc is np.power and not is_operator and not np.shape(value):
        a, b = operands(rec, inputs, values)  # NumPy uses the loop for arrays, unlike a ** b
        return build.reshape(apply("power", build.reshape(a, (1,)), b), ())
    name, args = op_and_operands(rec, ufunc, inputs, values, is_operator)
    dtype = value.dtype if hasattr(value, "dtype") else np.dtype(type(value))
    return Node(name, tuple(args), {}, getattr(value, "shape", ()), dtype)


def _computed(ufunc, function, values, options, site):
    try:
        value = function(*values)
        return ufunc(*values).item() if type(value) is complex and complex not in map(type, values) else value
    except ArithmeticError:
        # Python numbers follow NumPy's rules while they are recorded, as they will in the program: 1.0 / 0.0
        # is inf, (-1.0) ** 0.5 is nan. Not where the user's function may catch the error
        if source_lines.error_is_caught():
            raise
        return ufunc(*values).item()
    except (ValueError, TypeError, IndexError) as error:
        raise _explained(error, ufunc, values, site) from error


def _leaves_operation(x) -> bool:
    """Whether the other operand leaves the operation to the recorded one."""
    if isinstance(x, (np.generic, list, tuple)) or isinstance(x, (np.ndarray, int, float, complex)):
        return True
    return hasattr(x, "__array__") or hasattr(x, "__array_interface__") or x is None


def _has_precedence(x: Any, other: Any, method: str) -> bool:
    """Whether Python tries x first in `other <operator> x`: its class derives from other's."""
    if is_local(x):
        return False
    kind = type(other.value)
    if isinstance(x, np.generic):
        derived = issubclass(kind, np.generic) or kind in SCALARS and isinstance(x, kind)
        return derived and getattr(type(x), method) is not getattr(x.dtype.type, method)
    return kind in SCALARS and isinstance(x, kind) and getattr(type(x), method) is not getattr(kind, method)


def _explained(error: Exception, ufunc, values, site) -> Exception:
    """NumPy's error with the user's line, or a clearer one."""
    if isinstance(error, AutodiffError):
        return error
    kinds = [getattr(v, "dtype", np.dtype(int)) for v in values]
    foreign = next((v for v, kind in zip(values, kinds) if not isinstance(kind, np.dtype)), None)
    if foreign is not None:
        return of_another_library(foreign, site.loc)
    if any(kind.kind == "O" for kind in kinds):
        return DtypeError(
            f"{full_name(ufunc)} of a recorded value and an array of dtype object; only arrays of numbers "
            "and bools can be recorded. Convert it, for example with a.astype(float)",
            site.loc,
        )
    shapes = ", ".join(
        f"{np.shape(v)} {v.dtype}" if isinstance(v, (np.ndarray, np.generic)) else repr(v) for v in values
    )
    return located(error, f"{full_name(ufunc)} of {shapes}", site.loc)


def op_and_operands(
    rec: Recorder, ufunc: np.ufunc, inputs: Sequence, values: Sequence, is_operator: bool = False
) -> tuple[str, list[Node]]:
    name = op_of(ufunc)
    if name is None:
        raise unsupported(full_name(ufunc), source_lines.here())
    args = operands(rec, inputs, values, name)
    if name == "power" and is_operator and type(inputs[1]) in (int, float) and args[0].shape:
        return _short_power(as_node(rec, inputs[0]), inputs[1]) or (name, args)
    return name, args


def _short_power(x: Node, n: float) -> tuple[str, list[Node]] | None:
    """The op by which NumPy computes x**n, and its argument, if it is another than power."""
    short = POWERS.get(n)
    if short is None or short != "square" and x.dtype.kind not in "fc":
        return None
    if type(n) is int:
        return short, [x]
    if x.dtype.kind == "c" and n != 0.5 and n != 1:  # where 2.0 and -1.0 are complex exponents
        return None
    return short, [build.cast(x, np.result_type(x.dtype, n))]  # of integers to the power 2.0 as floats


def op_of(ufunc: np.ufunc) -> str | None:
    """The op of a ufunc of NumPy's or SciPy's, or of a row that was added later."""
    if ufunc not in TABLE and is_of_scipy(ufunc):
        for function, op in beside("scipy.rules.special").OP_OF.items():
            TABLE[function] = Entry(op=op)
    return TABLE.get(ufunc, NO_ENTRY).op or (ufunc.__name__ if ufunc.__name__ in OPS else None)


def operands(rec: Recorder, inputs: Sequence, values: Sequence, name: str = "") -> list[Node]:
    """Arguments of an elementwise op, cast so that constants may be written as Python numbers (NEP 50)."""
    if len(inputs) == 2 and name not in _OWN_KINDS:  # the frequent case of an array and a Python number
        for i, (x, c) in enumerate((inputs, inputs[::-1])):
            if type(x) is Recorded is not type(c) in SCALARS and x._rec is rec and not x.weak:
                node = x.node
                number = scalar_const(c, node.dtype)
                return [number, node] if i else [node, number]
    arrays = sum(isinstance(v, (np.ndarray, np.generic)) for v in values)
    if arrays < len(values) or len(values) > 1 and any(map(_is_numpy_scalar, inputs)):
        return _mixed_operands(rec, inputs, values, name)
    return [x.node if type(x) is Recorded and x._rec is rec else as_node(rec, x) for x in inputs]


_OWN_KINDS = ("ldexp", "float_power")  # in which a Python number does not take the dtype of the array


def _mixed_operands(rec, inputs, values, name) -> list[Node]:
    strong = [v.dtype for v in values if isinstance(v, (np.ndarray, np.generic))]
    common = np.result_type(*strong) if strong else None
    others = common if common is not None else np.result_type(*map(type, values))
    if name == "float_power":
        others = np.result_type(others, np.float64)
    nodes = []
    for x, v in zip(inputs, values):
        if type(v) not in SCALARS:
            nodes.append(as_node(rec, x))
        elif type(x) is not Recorded:
            nodes.append(table.const(x) if name == "ldexp" else as_node(rec, x, np.dtype(others)))
        else:  # a Python number of the user's, an input of the graph
            node = node_in(rec, x)
            nodes.append(node if common is None else build.cast(node, weak_dtype(common, type(v))))
    return nodes if name == "ldexp" else _beside_numpy_scalars(nodes, inputs)


def _beside_numpy_scalars(nodes: list[Node], inputs) -> list[Node]:
    """Casts for np.float64(2) * float32 array, which is float64, as 2.0 * float32 array is not."""
    constants = [n for n, x in zip(nodes, inputs) if _is_numpy_scalar(x)]
    rest = [n.dtype for n in nodes if n.op != "const"]
    if constants and rest:
        full = np.result_type(*(n.dtype for n in nodes))
        if np.result_type(*rest, *(type(c.value)(0) for c in constants)) != full:
            return [n if n.op == "const" else build.cast(n, full) for n in nodes]
    return nodes


def _is_numpy_scalar(x) -> bool:
    return type(x) is not Recorded and isinstance(x, np.generic)


def _two_results(ufunc, inputs):
    if ufunc.nout == 1:
        return operate(ufunc, ufunc, *inputs)
    if ufunc is np.divmod:
        quotient = operate(np.floor_divide, np.floor_divide, *inputs)
        return quotient, operate(np.remainder, np.remainder, *inputs)
    if ufunc not in (np.modf, np.frexp):
        raise unsupported(full_name(ufunc), source_lines.here())
    (x,) = inputs
    dtype = ufunc.resolve_dtypes((x.dtype, None, None))[1]
    x = x if x.dtype == dtype else x.astype(dtype)
    if ufunc is np.modf:  # both parts have the sign of x, and the fraction of an infinity is 0
        finite = np.where(np.isinf(x), np.copysign(x.dtype.type(0), x), x)
        return np.fmod(finite, x.dtype.type(1)), operate(np.trunc, np.trunc, x)
    exponent = handled(lambda v: np.frexp(v)[1], (x,), {}, lambda x: apply("frexp_exponent", x))
    return np.ldexp(x, -exponent), exponent


# operators
def in_place(ufunc: np.ufunc, function: Callable, x: Recorded, other: Any) -> Any:
    """x += other: writes into arrays; a number becomes a new one, as in Python."""
    if not isinstance(x._value, np.ndarray):
        return operate(ufunc, function, x, other)
    if type(other) in OPERANDS:
        return _called(ufunc, (x, other), x, True, {}, True)
    return _general(ufunc, (x, other), (x,), True, {}, True) if _leaves_operation(other) else NotImplemented


# out=, where=, dtype=
def _general(ufunc, inputs, outs, where, kwargs, is_operator=False):
    inputs = tuple(map(in_array, all_unwrapped(inputs)))
    if outs is not None and type(outs[0]) is not Recorded:
        raise lost_write(outs[0], f"{full_name(ufunc)}(..., out=)")
    if ufunc.nout != 1:
        if where is not True or kwargs:
            raise unsupported(f"{full_name(ufunc)}(where=, dtype=)", source_lines.here(), "is not recorded")
        if writes.overlapping([None if o is None else value_of(o) for o in outs]):
            raise source_lines.error_here(
                f"{full_name(ufunc)}: two arrays of out= share memory, and which of them is written last is "
                "not said. Pass arrays that lie apart"
            )
        return tuple(r if o is None else copied(o, r) for r, o in zip(_two_results(ufunc, inputs), outs))
    if any(kwargs.get(k) is not None for k in ("signature", "sig", "axes", "axis", "keepdims")):
        raise unsupported(f"{full_name(ufunc)}(signature=, axes=)", source_lines.here(), "is not recorded")
    return _called(ufunc, inputs, outs and outs[0], where, kwargs, is_operator)


def _called(
    ufunc: np.ufunc, inputs: Sequence, out: Recorded | None, where: Any, kwargs: dict, is_operator: bool
) -> Recorded:
    """The result of a ufunc with one result, written into `out` if there is one."""
    known = OPERANDS.issuperset(map(type, (*inputs, where)))
    call = call_unwatched if known else operator.call
    dtype = kwargs.get("dtype")
    rec, site, values, mask, node = call(_node_of_call, ufunc, inputs, out, where, dtype, is_operator)
    try:
        if out is not None:
            options = kwargs if mask is True else {**kwargs, "where": mask}
            writes.write(out, node, lambda array: ufunc(*values, out=array, **options))
            return out
        value = ufunc(*values, **kwargs)
    except (ValueError, TypeError, IndexError) as error:
        raise _explained(error, ufunc, values, site) from error
    if mask is not True:  # what NumPy leaves undefined is 0
        value = np.where(mask, value, np.zeros((), value.dtype))
    return Recorded(rec, typed(node, value, site, ufunc), value)


def _node_of_call(ufunc, inputs, out, where, dtype, is_operator) -> tuple[Recorder, Site, list, Any, Node]:
    """(recorder, site, concrete values, concrete mask, node of the result or of the new content of out)."""
    rec = innermost([x for x in (*inputs, where, out) if type(x) is Recorded])
    site, values, mask = source_lines.site(), [value_of(x) for x in inputs], value_of(where)
    rec.check_computed()
    try:
        node = _typed_node(rec, ufunc, inputs, values, dtype, is_operator)
        node = node if out is None else _fitted(ufunc, rec, node, out, site)
    except (ValueError, TypeError, IndexError) as error:
        raise _explained(error, ufunc, values, site) from error
    if mask is not True:
        chosen = as_node(rec, where if type(where) is Recorded else np.asarray(mask))
        chosen = chosen if out is None else build.broadcast(chosen, out.shape)
        node = build.where(chosen, node, 0 if out is None else out.node)
    if out is not None:
        label(node, site)
    return rec, site, values, mask, node


def _fitted(ufunc, rec, node, target, site) -> Node:
    """The node in the dtype and shape of the array that it is written into."""
    if rec is not target._rec:
        raise AutodiffError(
            f"{full_name(ufunc)}(..., out=) of a value of {rec.name} writes into an array of "
            f"{target._rec.name}, which encloses it",
            site.loc,
        )
    if node.shape != target.shape and np.broadcast_shapes(node.shape, target.shape) != target.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {target.shape} doesn't match the broadcast "
            f"shape {np.broadcast_shapes(node.shape, target.shape)}"
        )
    return build.broadcast(build.cast(node, target.dtype), target.shape)


def _typed_node(rec, ufunc, inputs, values, dtype, is_operator) -> Node:
    """The node of a call, with its inputs cast to the loop's types where the caller chose a dtype."""
    builder = TABLE.get(ufunc, NO_ENTRY).nodes
    if builder is not None:  # its loops have one type
        nodes = operands(rec, inputs, values)
        return builder(*(nodes if dtype is None else [build.cast(n, dtype) for n in nodes]))
    name, nodes = op_and_operands(rec, ufunc, inputs, values, is_operator)
    if dtype is None:
        return apply(name, *nodes)
    signature = (None,) * ufunc.nin + (np.dtype(dtype),)
    types = ufunc.resolve_dtypes((*(n.dtype for n in nodes), None), signature=signature, casting="unsafe")
    return build.cast(apply(name, *(build.cast(n, d) for n, d in zip(nodes, types))), types[-1])


# ufuncs that are compositions of ops
@handles(np.matmul)
def matmul(a: Node, b: Node) -> Node:
    """numpy.matmul of nodes: vectors become matrices and back."""
    dtype = np.result_type(a.dtype, b.dtype)
    a, b = build.cast(a, dtype), build.cast(b, dtype)
    if a.ndim > 1 and b.ndim > 1:
        return apply("matmul", a, b)
    rows = a if a.ndim > 1 else build.reshape(a, (1, a.shape[0]))
    columns = b if b.ndim > 1 else build.reshape(b, (b.shape[0], 1))
    out = apply("matmul", rows, columns)
    rows = out.shape[-2:-1] if a.ndim > 1 else ()
    shape = (*out.shape[: out.ndim - 2], *rows, *(out.shape[-1:] if b.ndim > 1 else ()))
    return build.reshape(out, shape)


@handles(np._core.umath.clip)  # what np.clip and the method call
def _clip(x, low, high):
    dtype = np.result_type(x.dtype, low.dtype, high.dtype)
    least = apply("maximum", build.cast(x, dtype), build.cast(low, dtype))
    return apply("minimum", least, build.cast(high, dtype))


@handles(*since("vecdot"))
def vecdot(a: Node, b: Node) -> Node:
    a = build.conjugate(a) if a.dtype.kind == "c" else a
    return build.sum_(apply("multiply", a, b), -1)


@handles(*since("matvec"))
def _matvec(a, b):
    out = matmul(a, build.reshape(b, (*b.shape, 1)))
    return build.reshape(out, out.shape[:-1])


@handles(*since("vecmat"))
def _vecmat(a, b):
    a = build.conjugate(a) if a.dtype.kind == "c" else a
    out = matmul(build.reshape(a, (*a.shape[:-1], 1, a.shape[-1])), b)
    return build.reshape(out, (*out.shape[:-2], out.shape[-1]))


# operators, by Python's name and that of the ufunc
BINARY = """
    add=add sub=subtract mul=multiply truediv=divide floordiv=floor_divide mod=remainder pow=power
    matmul=matmul lshift=left_shift rshift=right_shift and=bitwise_and or=bitwise_or xor=bitwise_xor
"""
COMPARISONS = "lt=less le=less_equal gt=greater ge=greater_equal eq=equal ne=not_equal"
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
UNARY = "neg=negative pos=positive abs=absolute invert=invert"


def _named(table: str) -> Iterator[tuple[str, np.ufunc, Callable]]:
    for pair in table.split():
        name, ufunc = pair.split("=")
        yield name, getattr(np, ufunc), getattr(operator, f"__{name}__")


def _add_operators() -> None:
    def binary(ufunc, op, mirrored, compute=operate):
        def method(self, other):
            if type(other) not in OPERANDS and _has_precedence(other, self, mirrored):
                return NotImplemented
            return compute(ufunc, op, self, other)

        return method

    for name, ufunc, op in _named(BINARY):
        setattr(Recorded, f"__{name}__", binary(ufunc, op, f"__r{name}__"))
        setattr(Recorded, f"__i{name}__", binary(ufunc, op, f"__r{name}__", in_place))
        reflected = functools.partial(operate, ufunc, op)
        setattr(Recorded, f"__r{name}__", lambda self, other, *, do=reflected: do(other, self))
    for name, ufunc, op in _named(COMPARISONS):
        setattr(Recorded, f"__{name}__", binary(ufunc, op, f"__{MIRRORED.get(name, name)}__"))
    for name, ufunc, op in _named(UNARY):
        setattr(Recorded, f"__{name}__", lambda self, ufunc=ufunc, op=op: operate(ufunc, op, self))
    Recorded.__divmod__ = lambda self, other: (self // other, self % other)
    Recorded.__rdivmod__ = lambda self, other: (other // self, other % self)


_add_operators()
PROTOCOLS["ufunc"] = call_ufunc
