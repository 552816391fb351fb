"""The unknowns of an equation: nested as the user has them, and as one vector, in which it is solved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph
from ..ops import input_node
from ..ops.build import cast, concatenate, reshape, take_slice
from ..ops.subgraph import inputs_like, splice
from ..programs.bodies import changes
from ..programs.wiring import rebuilt, result_kind
from ..record.value import value_of
from ..tree import Tree, flatten


@dataclass(frozen=True)
class Unknowns:
    """The structure of the unknowns."""

    tree: Tree
    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    @classmethod
    def like(cls, leaves: Sequence, tree: Tree) -> Unknowns:
        """Unknowns like these values."""
        values = list(map(value_of, leaves))
        arrays = list(map(np.asarray, values))
        return cls(
            tree,
            tuple(map(result_kind, values)),
            tuple(x.shape for x in arrays),
            tuple(x.dtype for x in arrays),
        )

    @property
    def dtype(self) -> np.dtype:
        """That of the vector."""
        return np.result_type(*self.dtypes)

    @property
    def parts(self) -> list[tuple[int, int, tuple[int, ...], np.dtype]]:
        """For each leaf where it starts and ends in the vector, its shape and dtype."""
        ends = np.cumsum([np.prod(s, dtype=int) for s in self.shapes]).tolist()
        return list(zip([0, *ends], ends, self.shapes, self.dtypes))

    def vector(self, leaves: Sequence) -> Any:
        """The vector of these leaves, which may be recorded values."""
        return np.concatenate([np.reshape(x, (-1,)) for x in leaves]).astype(self.dtype)

    def leaves(self, vector: Any) -> list:
        """The leaves in a vector, which may be a recorded value."""
        return [vector[i:k].reshape(shape).astype(dtype) for i, k, shape, dtype in self.parts]

    def nested(self, vector: Any) -> Any:
        """The unknowns as the user has them."""
        return rebuilt(self.tree, self.leaves(vector), self.kinds)

    def graph(self, graph: Graph) -> Graph:
        """The graph of (*leaves, *others) -> *leaves, as one of (vector, *others) -> vector."""
        ends = self.parts
        x, others = input_node((ends[-1][1],), self.dtype, "x"), inputs_like(graph.inputs[len(ends) :])
        leaves = [cast(reshape(take_slice(x, 0, i, k), shape), dtype) for i, k, shape, dtype in ends]
        results = splice(graph, [*leaves, *others])
        flat = [cast(reshape(r, (r.size,)), self.dtype) for r in results]
        return Graph([x, *others], [concatenate(flat, 0) if len(flat) > 1 else flat[0]], graph.name)


@dataclass(frozen=True)
class Nested:
    """The user's solver, on values in the structure of the unknowns, as one of vectors."""

    solver: Callable
    unknowns: Unknowns

    def __call__(self, function: Callable, first: np.ndarray) -> np.ndarray:
        def f(x: Any) -> Any:
            return self.unknowns.nested(function(self.vector(x)))

        return self.vector(self.solver(f, self.unknowns.nested(first)))

    def vector(self, x: Any) -> np.ndarray:
        values, tree = flatten(x, changes)
        if tree != self.unknowns.tree:
            name = getattr(self.solver, "__name__", "solver")
            raise AutodiffError(
                f"{name}: expected values with the structure {self.unknowns.tree}, got {tree}"
            )
        return self.unknowns.vector([np.reshape(v, s) for v, s in zip(values, self.unknowns.shapes)])
