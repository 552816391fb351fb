"""ad.tree: nested containers of arrays as trees, for optimisers and the like.

ad.tree.map(f, *trees)        the tree of f(leaf, ...), as of params and their gradients
ad.tree.leaves(x)             the arrays and numbers in it, in order
ad.tree.flatten(x)            (leaves, structure); ad.tree.unflatten(structure, leaves) is its inverse
ad.tree.ravel(x)              (one vector, its inverse)
ad.tree.register(cls)         instances of cls are trees; ad.tree.static(cls): they are settings

    >>> params = {"w": np.ones(2), "b": 0.0}
    >>> grads = ad.grad(lambda p: np.sum(p["w"] * 3.0) + p["b"])(params)
    >>> ad.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    {'w': array([0.7, 0.7]), 'b': -0.1}
"""

from .classes import ContainerKind, register, static  # noqa: F401
from .public import leaves, map, ravel
from .structure import (  # noqa: F401  the others are the compiler's
    LEAF,
    NONE,
    Leaf,
    Tree,
    attributes_of,
    flatten,
    is_container,
    is_dynamic,
    matched,
    numbered,
    tree_map,
    unflatten,
)

__all__ = ["flatten", "leaves", "map", "ravel", "register", "static", "unflatten"]
