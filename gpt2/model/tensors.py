"""Memory of a model's tensors: views of one flat buffer, or separate arrays for each block.

The tensors of all blocks are one array, (L, ...), if they are allocated together. If some are trained and
others not, or if they lie in a file one by one, they are a Stack, with that shape and one array per block.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

Shapes = Sequence[tuple[str, tuple[int, ...]]]


class Stack:
    """Arrays of one shape and dtype as one array with an additional first axis.

    stack[l] is an array, stack[...] = value sets all of them; np.asarray(stack) copies them into one array.
    """

    def __init__(self, slices: Sequence[np.ndarray]):
        self.slices = list(slices)
        if len({(a.shape, a.dtype) for a in self.slices}) != 1:
            raise ValueError(f"Stack: arrays of different kinds, {[(a.shape, a.dtype) for a in slices]}")
        self.dtype = self.slices[0].dtype
        self.shape = (len(self.slices), *self.slices[0].shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.slices)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.slices)

    def __getitem__(self, l: Any) -> np.ndarray:
        return self.slices[l]

    def __setitem__(self, l: Any, value: Any) -> None:
        if l is not ...:
            self.slices[l][...] = value
            return
        for target, part in zip(self.slices, value, strict=True):
            target[...] = part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("Stack: separate arrays cannot become one without a copy")
        return np.stack(self.slices).astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"<Stack of {len(self.slices)} arrays: {self.dtype} {self.shape}>"


class Named(dict):
    """Tensors by name. Assigning to a name copies into the tensor, whose memory others share."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self:
            raise KeyError(f"there is no tensor {name!r}; there are {', '.join(self)}")
        tensor = self[name]
        if value is tensor:  # as in params[name] *= 2.0
            return
        if np.shape(value) != tensor.shape:
            raise ValueError(
                f"{name}: the array assigned has shape {np.shape(value)}, expected {tensor.shape}"
            )
        try:
            tensor[...] = value
        except ValueError as error:
            raise ValueError(f"{name}: is read-only: it is frozen and mapped from a file") from error

    def update(self, *args: Any, **tensors: Any) -> None:
        for name, value in dict(*args, **tensors).items():
            self[name] = value

    def __ior__(self, tensors: Any) -> Self:  # type: ignore[misc]  # dict's `|` gives a plain dict
        self.update(tensors)
        return self

    def __reduce__(self) -> tuple:
        return Named, (dict(self),)  # also for copy.copy; items are not assigned one by one

    def _stays(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a model's tensors cannot be replaced; to change their values: params[name] = array")

    setdefault = pop = popitem = clear = __delitem__ = _stays


Tensors = dict[str, np.ndarray]  # llm.c's names -> parameters, or their gradients; a Stack among them


def slices_of(tensor: Any) -> list[np.ndarray]:
    """The arrays of a tensor: those of a Stack, or itself."""
    return tensor.slices if isinstance(tensor, Stack) else [tensor]


def ranges_of(shapes: Shapes) -> dict[str, tuple[int, int]]:
    """The range of each tensor in a flat buffer: name -> (start, stop), in order without gaps."""
    ranges, start = {}, 0
    for name, shape in shapes:
        ranges[name] = (start, start + math.prod(shape))
        start += math.prod(shape)
    return ranges


def views(flat: np.ndarray, shapes: Shapes) -> Tensors:
    """Views of a flat buffer: a dict from name to tensor."""
    ranges = ranges_of(shapes)
    return {name: flat[slice(*ranges[name])].reshape(shape) for name, shape in shapes}


def joined(
    frozen: Mapping[str, Any], trained: Tensors, shapes: Shapes, blocks: Mapping[str, Sequence[int]]
) -> Tensors:
    """All tensors by name, from the frozen ones (of some only some blocks) and the trained ones.

    frozen   name -> an array, or a list of its arrays, one a block
    blocks   name -> the blocks that are trained
    """
    tensors: dict[str, Any] = {}
    for name, shape in shapes:
        if name not in frozen:
            tensors[name] = trained[name]
        elif name in trained:
            ours, others = iter(trained[name]), iter(frozen[name])
            tensors[name] = Stack([next(ours if l in blocks[name] else others) for l in range(shape[0])])
        else:
            parts = frozen[name]
            tensors[name] = parts if isinstance(parts, np.ndarray) else Stack(parts)
    return tensors
