"""Views of views of views: their paths in few steps, and what is written through them."""

import itertools

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import build, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.memory.view_chains import chain_between, follow, shortened


def a_step(x, rng):
    """A view of a node: sliced, turned over, with an axis of length 1 more or less, with two axes in one."""
    kind, axis = rng.choice(["slice", "back", "turn", "more", "less", "join"]), int(rng.integers(x.ndim))
    n = x.shape[axis]
    if kind == "slice" and n:
        start = int(rng.integers(n))
        return build.take_slice(x, axis, start, int(rng.integers(start, n + 1)), int(rng.integers(1, 3)))
    if kind == "back":
        return build.take_slice(x, axis, n - 1, None, -1) if n else x
    if kind == "turn":
        return build.transpose(x, tuple(rng.permutation(x.ndim).tolist()))
    if kind == "more" and x.ndim < 5:
        return build.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
    if kind == "less" and n == 1 and x.ndim > 1:
        return build.reshape(x, x.shape[:axis] + x.shape[axis + 1 :])
    if kind == "join" and axis and rng.random() < 0.2:
        return build.reshape(x, (*x.shape[: axis - 1], x.shape[axis - 1] * n, *x.shape[axis + 1 :]))
    return x


@pytest.mark.parametrize("seed", range(40))
def test_a_shortened_path_leads_to_the_same_place(seed):
    rng = np.random.default_rng(seed)
    x = input_node((4, 5, 3), np.float64, "x")
    end, short = x, ()
    for _ in range(12):
        more = a_step(end, rng)
        short = shortened(short, chain_between(end, more))
        end = more
    full = chain_between(x, end)
    value = rng.normal(size=x.shape)
    one, other = evaluate_graph(Graph([x], [follow(x, full), follow(x, short)]), [value])
    np.testing.assert_array_equal(one, other)
    assert len(short) <= len(full)
    assert all(one.op != other.op for one, other in itertools.pairwise(short))


def test_slices_and_transposes_are_two_steps_in_any_number():
    rng = np.random.default_rng(0)
    end, short = input_node((9, 8, 7), np.float64, "x"), ()
    for k in range(60):
        if k % 2:
            more = build.transpose(end, tuple(rng.permutation([1, 2, 0]).tolist()))
        else:
            more = build.take_slice(end, k % 3, end.shape[k % 3] - 1, None, -1)
        short = shortened(short, chain_between(end, more))
        end = more
    assert [s.op for s in short] == ["slice", "transpose"]


@pytest.mark.parametrize("seed", range(6))
def test_writes_through_views_of_views(seed):
    """What NumPy's own arrays hold afterwards, and its derivative."""

    def f(x):
        rng = np.random.default_rng(seed)
        a = x * 1.0
        views, total = [a], 0.0
        for _ in range(10):
            v = views[int(rng.integers(len(views)))]
            for _ in range(3):
                axis = int(rng.integers(v.ndim))
                every = (slice(None),) * axis
                kind = rng.choice(["back", "cut", "turn", "more", "pick", "join"])
                if kind == "back":
                    v = v[(*every, slice(None, None, -1))]
                elif kind == "cut" and v.shape[axis] > 1:
                    v = v[(*every, slice(1, None, int(rng.integers(1, 3))))]
                elif kind == "turn":
                    v = v.T
                elif kind == "more" and v.ndim < 4:
                    v = v[(*every, None)]
                elif kind == "pick" and v.ndim > 1:
                    v = v[(*every, 0)]
                elif kind == "join" and v.flags.c_contiguous:
                    v = v.reshape(-1)
            views.append(v)
            v *= 1.5
            v[..., 0] += x[0, 0, 0]
            total = total + (v * v).sum()
        return total + sum((w * np.arange(1.0, w.size + 1).reshape(w.shape)).sum() for w in views)

    x = np.random.default_rng(seed).normal(size=(3, 2, 4))
    g = ad.compile(f)
    for _ in range(2):
        np.testing.assert_allclose(g(x), f(x), rtol=1e-12)
    ad.check_grads(f, (x,), order=1)
