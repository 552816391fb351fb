"""Muon: momentum, made orthogonal, for the matrices of the blocks; AdamW for all other tensors.

    m <- momentum m + (1 - momentum) g               running mean of the gradient of a matrix
    u  = momentum m + (1 - momentum) g               Nesterov's look ahead
    p <- p - lr * decay * p - lr * sqrt(max(1, rows / columns)) * orthogonal(u)

orthogonal(u) is U V' for the singular value decomposition u = U S V': the same directions, each with the
singular value 1, so that a step changes the output of a layer equally in all. It is found without a
decomposition: iterations of a polynomial push every singular value towards 1.

    x = u / |u|,  then each time  A = x x',  x <- (a + b A + c A A) x

Jordan et al. 2024: the method, and a, b, c, which in four iterations bring singular values from 0.0052 |u| on
to between 0.68 and 1.21, in five those from 0.0015 |u| on. torch.optim.Muon has the same update, with five
iterations, its products in bfloat16. A matrix has one moment, where AdamW's tensors have two.

Four iterations, as a fifth brings nothing. Validation losses of --preset shakespeare-char-cpu after its 600
steps, on 100 batches, for seeds 0 to 2: five 1.837 1.855 1.847, four 1.854 1.850 1.840, three 1.877 1.896
1.885. The coefficients of Polar Express (Amsel et al. 2025): five 1.855 1.849 1.851, four 1.848 1.853 1.852.
An iteration takes 3 n^2 r + n^3 operations for a matrix of n by r, n <= r, as syrk halves the symmetric
products; four take what a step takes for this matrix on 2.2 n to 2.7 n tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt2.autodiff import axpby, get_threads, run_on_threads
from gpt2.errors import OptionError
from gpt2.model.optimizer import AdamW, check_number
from gpt2.model.tensors import ranges_of

if TYPE_CHECKING:
    from gpt2.model.description import Description
    from gpt2.model.gpt2 import GPT2

QUINTIC = ((3.4445, -4.7750, 2.0315),) * 4  # a, b, c of every iteration
PART = 1 << 18  # entries of a product that are computed at once, to be written over its factor
TINY = 1e-7  # the least norm that a matrix is divided by


class FlatMatrix(NamedTuple):
    """A matrix of a block: the index of its first entry in the flat buffer, and its shape."""

    start: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


class Muon(AdamW):
    """Updates the matrices of a model's blocks by Muon, and its other tensors by AdamW.

    model         GPT2 whose blocks' matrices are trained: qkvw, as three, attprojw, fcw, fcprojw, and those
                  of own layers; embeddings, gains and biases are AdamW's
    lr            learning rate of the matrices, unless step() gets another
    momentum      as above
    weight_decay  share of a matrix that is lost per step and unit of lr; of AdamW's decayed tensors likewise
    coefficients  a, b, c of every iteration of the polynomial
    adamw_lr      learning rate of the other tensors; it follows lr where step() gets another one
    betas, eps    AdamW's

    m (N,) has the moments of all parameters, v (N,) AdamW's second ones, whose memory is not touched where
    the matrices lie. Raises OptionError, a ValueError, if no matrix is trained, as with adapters.

        >>> config = gpt2.GPT2Config(vocab_size=65, block_size=16, n_layer=1, n_head=2, n_embd=8)
        >>> model = gpt2.GPT2(config, seed=0)
        >>> optimizer = gpt2.Muon(model, lr=0.02, adamw_lr=1e-2)
        >>> tokens = np.arange(12).reshape(2, 6)
        >>> losses = []
        >>> for _ in range(20):
        ...     losses.append(model.loss_and_grads(tokens, tokens + 1))
        ...     norm = optimizer.step(clip=1.0)
        >>> losses[-1] < losses[0] and optimizer.t
        20
    """

    name = "muon"

    def __init__(
        self,
        model: GPT2,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        coefficients: Sequence[tuple[float, float, float]] = QUINTIC,
        adamw_lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ):
        super().__init__(model, adamw_lr, betas, eps, weight_decay)
        check_number("Muon: lr", lr, least=sys.float_info.min, expected="a number above 0")
        check_number("Muon: momentum", momentum, below=1.0, expected="a number from 0 to below 1")
        if not all(len(three) == 3 for three in coefficients):
            raise ValueError(f"Muon: coefficients are {coefficients}, expected a, b, c of every iteration")
        self.adamw_lr, self.lr, self.momentum, self.coefficients = self.lr, lr, momentum, coefficients
        tensors = matrices_of(model.description)
        if not tensors:
            text = "updates matrices of the blocks, and none of them is trained; take adamw"
            raise OptionError(f"Muon: {text}", f"--optimizer muon: {text}")
        self.one_moment = tuple(tensors)
        ranges = ranges_of(model.description.trained.shapes)
        self.apart = [ranges[name] for name in tensors]
        # the largest first, so that threads end together
        self.matrices = sorted(sum(tensors.values(), []), key=lambda a: -a.rows * a.columns * min(a[1:]))

    def __repr__(self) -> str:
        settings = f"lr={self.lr:g}, momentum={self.momentum:g}, adamw_lr={self.adamw_lr:g}"
        count = f"{len(self.matrices)} matrices of {self.params.size:,} parameters"
        return f"<Muon of {count}: {settings}; {self.t} steps taken>"

    def options(self) -> dict[str, Any]:
        mine = {"momentum": self.momentum, "coefficients": self.coefficients, "adamw_lr": self.adamw_lr}
        return super().options() | mine

    def part(self, rank: int, size: int) -> tuple[int, int]:
        """AdamW's parts, with a border that lies within a matrix moved to its beginning."""

        def moved(border):
            return next((m.start for m in self.matrices if m.start < border < m.stop), border)

        start, stop = super().part(rank, size)
        return moved(start), moved(stop)

    def share(self, rank: int, size: int) -> tuple[int, int, list[FlatMatrix]]:
        """Entries for AdamW, and every size-th matrix, as matrices cost the most."""
        return *super().part(rank, size), self.matrices[rank::size]

    def update(
        self,
        norm: float,
        lr: float | None = None,
        clip: float | None = 1.0,
        start: int = 0,
        stop: int | None = None,
        matrices: Sequence[FlatMatrix] | None = None,
    ) -> None:
        """AdamW's update(), and that of some matrices, by default those that begin in start..stop."""
        lr = self.lr if lr is None else lr
        stop = self.params.size if stop is None else stop
        if matrices is None:
            matrices = [m for m in self.matrices if start <= m.start < stop]
        super().update(norm, self.adamw_lr * (lr / self.lr), clip, start, stop)
        scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        todo = iter(matrices)
        while len(self._workspaces) < get_threads():
            self._workspaces.append(Workspace(self.matrices, self.params.dtype))

        def job(thread):
            for matrix in todo:
                self._update_matrix(matrix, lr, scale, self._workspaces[thread])

        run_on_threads(job)

    def use(
        self, params: np.ndarray, grads: np.ndarray, m: np.ndarray, v: np.ndarray, first: int = 0
    ) -> None:
        super().use(params, grads, m, v, first)
        self._workspaces: list[Workspace] = []  # one for each thread

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_workspaces": []}

    def _update_matrix(self, matrix, lr, scale, workspace):
        """The formulas on one matrix, in place."""
        start, rows, columns = matrix
        stop = matrix.stop
        p, g = self.params[start:stop], self.grads[start:stop]
        m = self.m[start - self.first : stop - self.first]
        u = workspace.x[: len(p)]
        workspace.axpby((1.0 - self.momentum) * scale, g, self.momentum, m)
        np.multiply(m, self.momentum, out=u)
        workspace.axpby((1.0 - self.momentum) * scale, g, 1.0, u)
        result = workspace.orthogonal(rows, columns, self.coefficients)
        lr_here = lr * math.sqrt(max(1.0, rows / columns))
        workspace.axpby(-lr_here, result.reshape(-1), 1.0 - lr * self.weight_decay, p)


class Workspace:
    """Arrays in which any of some matrices is made orthogonal: x holds it, gram and square n * n entries,
    n being its shorter side, and part those of a product that are computed at once."""

    def __init__(self, matrices: Sequence[FlatMatrix], dtype: np.dtype):
        entries = max(m.rows * m.columns for m in matrices)
        square = max(min(m.rows, m.columns) ** 2 for m in matrices)
        self.x, self.part = np.empty(entries, dtype), np.empty(max(PART, math.isqrt(square)), dtype)
        self.gram, self.square = np.empty(square, dtype), np.empty(square, dtype)

    def axpby(self, a: float, x: np.ndarray, b: float, y: np.ndarray) -> None:
        """y <- a x + b y, for vectors of any length."""
        for first in range(0, len(x), PART):
            here = slice(first, first + PART)
            axpby(a, x[here], b, y[here], self.part[: len(x[here])])

    def orthogonal(
        self, rows: int, columns: int, coefficients: Sequence[tuple[float, float, float]]
    ) -> np.ndarray:
        """The matrix (rows, columns) whose entries x begins with, made orthogonal in place.

        The polynomial is taken on the shorter side. NumPy computes a product of an array and its own
        transpose by syrk, half of the work, which also serves the square of the symmetric gram.
        """
        n = min(rows, columns)
        flat = self.x[: rows * columns]
        x = flat.reshape(rows, columns)
        across = x if rows <= columns else x.T  # (n, the longer side)
        gram, square = (a[: n * n].reshape(n, n) for a in (self.gram, self.square))
        np.multiply(flat, 1.0 / max(math.sqrt(float(np.dot(flat, flat))), TINY), out=flat)
        count = max(1, PART // n)
        for a, b, c in coefficients:
            np.matmul(across, across.T, out=gram)
            np.matmul(gram, gram.T, out=square)
            self.axpby(b, gram.reshape(-1), c, square.reshape(-1))
            square.reshape(-1)[:: n + 1] += a
            for first in range(0, across.shape[1], count):
                part = across[:, first : first + count]
                product = self.part[: part.size].reshape(part.shape, order="C" if across is x else "F")
                part[...] = np.matmul(square, part, out=product)
        return x


def matrices_of(d: Description) -> dict[str, list[FlatMatrix]]:
    """The trained matrices of the blocks by the name of their tensor; queries, keys and values are three."""
    ranges, tensors = ranges_of(d.trained.shapes), {}
    for name, shape in d.trained.shapes:
        if name in d.in_block and len(shape) == 3 and name not in d.adapters:
            count, rows, columns = shape
            if name == "qkvw":
                count, rows = 3 * count, rows // 3
            starts = range(*ranges[name], rows * columns)
            tensors[name] = [FlatMatrix(start, rows, columns) for start in starts]
    return tensors
