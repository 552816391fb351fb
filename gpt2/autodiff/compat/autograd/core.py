"""autograd.core: rules of primitives, and the vector spaces of values."""

from __future__ import annotations

import math
import threading
import types
import warnings
from builtins import type as class_of
from collections.abc import Callable
from functools import reduce
from itertools import count
from typing import Any

import numpy as np

from ...record import recorder
from ...record.dispatch import NO_ENTRY, TABLE, Entry, recorded_functions
from ...record.interception import plain
from ...record.ufuncs import op_of
from ...record.value import Recorded
from ...transforms.forward import jvp as forward
from ...transforms.vjp import vjp as reverse
from ...tree import flatten, tree_map, unflatten
from . import objects
from .tracer import *  # noqa: F403  autograd.core and autograd.extend have its names
from .tracer import Primitive, isbox, primitive, refusing, subval
from .wrap_util import roots, running

primitive_with_deprecation_warnings = primitive
primitive_vjps: dict = {}  # empty: rules of NumPy's functions cannot be removed
primitive_jvps: dict = {}

# ---- Inputs and cotangents -------------------------------------------------------------------------------


def floating(x: Any) -> Any:
    """x with its arrays of integers as float64; TypeError for Python's integers, as from autograd."""
    if class_of(x) is Recorded or isinstance(x, np.ndarray):
        return x.astype(np.float64) if x.dtype.kind in "biu" else x
    if isinstance(x, (bool, int, np.integer, np.bool_)):
        raise TypeError(
            f"derivatives are not taken with respect to {class_of(x).__name__} {x!r}: pass {float(x)}"
        )
    if class_of(x) in (list, tuple):
        return class_of(x)([floating(v) for v in x])
    if class_of(x) is dict:
        return {k: floating(v) for k, v in x.items()}
    if x is None or isinstance(x, str):
        raise TypeError(f"derivatives are not taken with respect to {class_of(x).__name__}: {x!r}")
    if objects.is_object(x) or objects.is_box(x):
        raise NotImplementedError(
            f"derivatives with respect to a {class_of(x).__name__}, a registered class: grad, value_and_grad "
            "and make_vjp have them, one at a time and of first order"
        )
    return x


def answer(g: Any, like: Any) -> Any:
    """g in the structure and shapes of a value, as autograd converts cotangents and tangents."""
    like_leaves, tree = flatten(like)
    leaves, other = flatten(_counted(g))
    if len(leaves) != len(like_leaves):
        raise TypeError(f"a value with {len(like_leaves)} arrays was given a derivative with {len(leaves)}")
    for k, (v, shape) in enumerate(zip(leaves, map(np.shape, like_leaves))):
        if np.shape(v) != shape:
            one = np.size(v) == 1 == math.prod(shape)
            leaves[k] = np.reshape(v, shape) if one else np.broadcast_to(v, shape) * 1.0
    return unflatten(tree, leaves)


def _counted(g: Any) -> Any:
    """Integers as floats, through containers."""
    if isinstance(g, (bool, int, np.integer)) and class_of(g) is not Recorded:
        return float(g)
    if class_of(g) in (list, tuple):
        return class_of(g)([_counted(v) for v in g])
    return {k: _counted(v) for k, v in g.items()} if class_of(g) is dict else g


def zeros_like(x: Any) -> Any:
    return tree_map(lambda leaf: np.zeros(np.shape(leaf), getattr(leaf, "dtype", float)), x)


# ---- Derivatives of functions of one argument ------------------------------------------------------------


def make_vjp(fun: Callable, x: Any) -> tuple[Callable, Any]:
    """(vjp, fun(x)): vjp(g) is the gradient of the inner product of g and the result."""
    if objects.is_object(x):
        of_object, ans = objects.make_vjp(fun, x)
        return lambda g: of_object(answer(g, ans)), ans
    x = floating(x)
    ans, pull = reverse(fun, x)
    moves = any(np.result_type(getattr(leaf, "dtype", leaf)).kind in "fc" for leaf in flatten(ans)[0])

    def vjp(g):
        return pull(answer(g, ans))[0] if moves else zeros_like(x)

    return vjp, ans


def make_jvp(fun: Callable, x: Any) -> Callable:
    """jvp(v) is (fun(x), its derivative in the direction v)."""
    fun = fun.bound() if hasattr(fun, "bound") else fun
    x = floating(x)

    def jvp(v):
        return forward(fun, (x,), (answer(v, x),))

    return jvp


# ---- Rules for functions of NumPy and SciPy ----------------------------------------------------------------
#
# defvjp(np.where, ...) makes np.where a primitive, which handles calls on recorded values from then on, in
# the whole process, as with autograd. Earlier recordings would have the old rule, so such rules must be set
# before the first derivative of the process.

# Programs call them as operators, which NumPy does not dispatch; nor does it dispatch methods such as x.sum()
_OPERATORS = frozenset(
    "add subtract multiply divide true_divide floor_divide remainder power negative positive absolute matmul "
    "square sqrt reciprocal equal not_equal less less_equal greater greater_equal".split()
)


def _takes_rule(fun: Any) -> bool:
    if hasattr(np.ndarray, getattr(fun, "__name__", "")):
        return False
    if isinstance(fun, np.ufunc):
        return fun.nout == 1 and fun.__name__ not in _OPERATORS and op_of(fun) is not None
    try:
        return fun in recorded_functions()
    except TypeError:  # not hashable
        return False


class _Taking:
    """Handles a function's calls on recorded values by its primitive, except calls within that primitive."""

    def __init__(self, fun: Callable):
        self.inside = threading.local()

        def computed(*args, **kwargs):
            before, self.inside.now = getattr(self.inside, "now", False), True
            try:
                return fun(*args, **kwargs)
            finally:
                self.inside.now = before

        computed.__name__ = fun.__name__
        self.primitive = Primitive(computed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        primitive = self.primitive
        if getattr(self.inside, "now", False) or primitive.vjp is None and primitive.jvp is None:
            return NotImplemented
        if not running():
            why = f"{primitive.__name__} has a rule of the program's own, which may change"
            recorder.current().unstable.append(why)
        return primitive(*args, **kwargs)


# ---- Rules -----------------------------------------------------------------------------------------------


def _own(fun: Any) -> Primitive:
    """The primitive that a rule is for, which NumPy's and SciPy's functions are too."""
    if isinstance(fun, Primitive):
        return fun
    of_numpy = plain(fun)
    if _takes_rule(of_numpy):
        if (rule := TABLE.get(of_numpy, NO_ENTRY).rule) is not None:
            return rule.primitive  # type: ignore[attr-defined]
        if recorder.Recorder.last:
            raise TypeError(
                f"{of_numpy.__name__} has a rule here, and derivatives were taken with it already: rules of "
                "NumPy's functions are set before the first derivative; or make a new name: "
                f"primitive({of_numpy.__name__})"
            )
        taking = TABLE.setdefault(of_numpy, Entry()).rule = _Taking(of_numpy)
        roots.append(taking.primitive)
        return taking.primitive
    home = (getattr(fun, "__module__", None) or "").partition(".")[0]
    if isinstance(fun, types.FunctionType) and home not in ("numpy", "scipy", "gpt2"):
        warnings.warn(f"{fun.__name__} is not a primitive, so a rule has no effect on it", stacklevel=4)
        return Primitive(fun)
    name = getattr(fun, "__name__", fun)
    raise TypeError(
        f"{name} is not a primitive, so it cannot be given a rule: functions behind operators, and functions "
        f"without a rule here, take none. Make a new name: my_{name} = primitive({name})"
    )


def defvjp_argnums(fun: Any, vjpmaker: Callable) -> None:
    """The rule of a primitive for all arguments: vjpmaker(argnums, ans, args, kwargs) -> g -> gradients."""
    _own(fun).vjp = vjpmaker


def defvjp_argnum(fun: Any, vjpmaker: Callable) -> None:
    """The same, one argument at a time: vjpmaker(argnum, ans, args, kwargs) -> g -> gradient."""

    def vjp_argnums(argnums, *args):
        vjps = [vjpmaker(argnum, *args) for argnum in argnums]
        return lambda g: [vjp(g) for vjp in vjps]

    defvjp_argnums(fun, vjp_argnums)


def _by_argnum(what: str, fun: Any, rules: tuple, argnums: Any) -> Callable:
    """A function from an argument's number to its rule."""
    by_number = dict(zip(count() if argnums is None else argnums, rules))
    for rule_given in by_number.values():
        if rule_given is not None and rule_given != "same" and not callable(rule_given):
            raise TypeError(f"def{what}: {rule_given!r} is no rule for {fun.__name__}")

    def rule(argnum):
        if argnum not in by_number:
            raise NotImplementedError(
                f"the primitive {fun.__name__} has no {what} for its argument {argnum}. def{what}("
                f"{fun.__name__}, ...) sets it; None says that the derivative is zero"
            )
        return by_number[argnum]

    return rule


def defvjp(fun: Any, *vjpmakers: Any, argnums: Any = None) -> None:
    """Rules of a primitive, one for each argument: vjpmaker(ans, *args, **kwargs) -> g -> gradient.

    None is a derivative of zero. argnums: which arguments they are for, in place of 0, 1, 2, ...
    """
    rule = _by_argnum("vjp", _own(fun), vjpmakers, argnums)

    def vjp_argnums(numbers, ans, args, kwargs):
        makers = [rule(n) for n in numbers]
        vjps = [None if maker is None else maker(ans, *args, **kwargs) for maker in makers]
        return lambda g: [None if vjp is None else vjp(g) for vjp in vjps]

    defvjp_argnums(fun, vjp_argnums)


def defjvp_argnums(fun: Any, jvpmaker: Callable) -> None:
    """The forward rule of a primitive: jvpmaker(argnums, tangents, ans, args, kwargs) -> tangent of ans.

    A primitive that has rules of both kinds uses those of defvjp in both modes.
    """
    _own(fun).jvp = jvpmaker


def defjvp_argnum(fun: Any, jvpmaker: Callable) -> None:
    """The same, one argument at a time: jvpmaker(argnum, tangent, ans, args, kwargs)."""

    def jvp_argnums(argnums, gs, ans, args, kwargs):
        return _sum([jvpmaker(argnum, g, ans, args, kwargs) for argnum, g in zip(argnums, gs)], ans)

    defjvp_argnums(fun, jvp_argnums)


def defjvp(fun: Any, *jvpfuns: Any, argnums: Any = None) -> None:
    """Forward rules of a primitive, one for each argument: jvpfun(g, ans, *args, **kwargs) -> tangent.

    "same" is for an argument in which the primitive is linear, None for a derivative of zero.
    """
    rule = _by_argnum("jvp", _own(fun), jvpfuns, argnums)

    def jvp_argnums(numbers, gs, ans, args, kwargs):
        tangents = []
        for n, g in zip(numbers, gs):
            f = rule(n)
            if f == "same":
                tangents.append(fun(*subval(args, n, g), **kwargs))
            elif f is not None:
                tangents.append(f(g, ans, *args, **kwargs))
        return _sum(tangents, ans)

    defjvp_argnums(fun, jvp_argnums)


def def_linear(fun: Any) -> None:
    """Declare a primitive linear in each of its arguments."""
    defjvp_argnum(fun, lambda argnum, g, ans, args, kwargs: fun(*subval(args, argnum, g), **kwargs))


def _sum(parts: list, like: Any) -> Any:
    return reduce(lambda a, b: vspace(like).add(a, b), parts) if parts else zeros_like(like)


# ---- Vector spaces ---------------------------------------------------------------------------------------


class VSpace:
    """The vector space of a value: an array, a number, or a tuple, list or dict of them."""

    def __init__(self, value: Any):
        leaves, self.tree = flatten(value)
        self.leaves = [(np.shape(x), np.result_type(x.dtype if isbox(x) else x)) for x in leaves]
        self.kinds = [isinstance(x, (float, complex)) and not isinstance(x, np.generic) for x in leaves]

    @classmethod
    def register(cls, value_type: Any, vspace_maker: Any = None) -> None:
        objects.enter(objects.SPACES, "autograd.extend.VSpace.register", value_type, vspace_maker or cls)

    def __eq__(self, other: Any) -> bool:
        if class_of(self) is not VSpace:
            return class_of(other) is class_of(self) and vars(self) == vars(other)
        return class_of(other) is VSpace and self.tree == other.tree and self.leaves == other.leaves

    def __hash__(self) -> int:
        return hash(tuple(self.leaves))

    def __repr__(self) -> str:
        return "VSpace(" + ", ".join(f"{dtype} {shape}" for shape, dtype in self.leaves) + ")"

    @property
    def _single(self) -> tuple:
        if not self.tree.is_leaf:
            raise AttributeError("a vector space of containers has no shape and dtype")
        return self.leaves[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._single[0]

    @property
    def dtype(self) -> np.dtype:
        return self._single[1]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def iscomplex(self) -> bool:
        return any(dtype.kind == "c" for _, dtype in self.leaves)

    @property
    def size(self) -> int:
        """The number of real numbers in a value."""
        return sum(int(np.prod(shape)) * (2 if dtype.kind == "c" else 1) for shape, dtype in self.leaves)

    def _each_leaf(self, make: Callable) -> Any:
        return unflatten(self.tree, [make(*leaf) for leaf in self.leaves])

    def zeros(self) -> Any:
        return self._each_leaf(np.zeros)

    def ones(self) -> Any:
        """Ones; 1+1j where it is complex."""
        return self._each_leaf(lambda shape, dtype: np.full(shape, 1 + 1j if dtype.kind == "c" else 1, dtype))

    def randn(self) -> Any:
        """Normal random numbers from NumPy's global generator."""

        def draw(shape, dtype):
            x = np.asarray(np.random.standard_normal(shape)).astype(dtype)
            return x + 1j * np.asarray(np.random.standard_normal(shape)) if dtype.kind == "c" else x

        return self._each_leaf(draw)

    def standard_basis(self) -> Any:
        """Each unit vector in turn; the imaginary ones too where it is complex."""
        for k, (shape, dtype) in enumerate(self.leaves):
            for index in np.ndindex(*shape):
                for unit in (1, 1j) if dtype.kind == "c" else (1,):
                    parts = [np.zeros(*leaf) for leaf in self.leaves]
                    parts[k][index] = unit
                    yield unflatten(self.tree, parts)

    def _map(self, f: Callable, *values: Any) -> Any:
        rows = [flatten(v)[0] for v in values]
        return unflatten(self.tree, [f(*row) for row in zip(*rows)])

    # Subclasses override the methods that begin with _

    def add(self, x: Any, y: Any) -> Any:
        return self._add(x, y)

    def mut_add(self, x: Any, y: Any) -> Any:
        return y if x is None else self._add(x, y)

    def scalar_mul(self, x: Any, a: Any) -> Any:
        return self._scalar_mul(x, a)

    def inner_prod(self, x: Any, y: Any) -> Any:
        return self._inner_prod(x, y)

    def covector(self, x: Any) -> Any:
        return self._covector(x)

    def _add(self, x: Any, y: Any) -> Any:
        return self._map(lambda a, b: a + b, x, y)

    def _scalar_mul(self, x: Any, a: Any) -> Any:
        return self._map(lambda v: v * a, x)

    def _inner_prod(self, x: Any, y: Any) -> Any:
        parts = self._map(lambda a, b: np.real(np.sum(np.conj(a) * b)), x, y)
        return sum(flatten(parts)[0])

    def _covector(self, x: Any) -> Any:
        return self._map(lambda v: np.conj(v) if np.iscomplexobj(v) else v, x)


def vspace(value: Any) -> VSpace:
    """The vector space of a value."""
    if class_of(value) in objects.SPACES:
        return objects.SPACES[class_of(value)](value)
    space = VSpace(value)
    if not space.leaves and not isinstance(value, (tuple, list, dict)):
        raise TypeError(f"there is no vector space of {class_of(value).__name__}: {value!r}")
    return space


class SparseObject:
    __init__ = refusing(
        "extend.SparseObject: gradients are arrays here. Return a full one; the compiler turns np.zeros(...) "
        "with a part written into it to a write in place"
    )
