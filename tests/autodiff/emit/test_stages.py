"""The decisions before a line is written, each by itself on a graph written by hand."""

import numpy as np
import pytest

from gpt2.autodiff.emit import buffers, regions
from gpt2.autodiff.emit.buffers import Kind
from gpt2.autodiff.emit.layout import lower
from gpt2.autodiff.emit.schedule import Schedule
from gpt2.autodiff.emit.windows import Places
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node


@pytest.fixture
def nodes():
    """Two products side by side in one result, and the exponential of the first, which is summed."""
    x, w = (input_node(shape, np.dtype(float), name) for shape, name in (((4, 3), "x"), ((3, 3), "w")))
    a, b = apply("matmul", x, w), apply("matmul", apply("tanh", x), w)
    indices = ((None, None, 1), (0, 3, 1)), ((None, None, 1), (3, 6, 1))
    both = apply("assemble", a, b, shape=(4, 6), indices=indices, dtype="float64")
    total = apply("sum", apply("exp", a), axes=(0, 1), keepdims=False)
    graph = lower(Graph([x, w], [both, total], "f"))
    return {
        n.op if n.op != "matmul" else "ab"[n.args[0] is not graph.inputs[0]]: n for n in graph.nodes
    }, graph


def test_schedule_says_who_reads_a_value_up_to_where(nodes):
    by_op, graph = nodes
    schedule = Schedule(graph, regions.schedule(graph))
    a, b, both, exp = (by_op[name] for name in ("a", "b", "assemble", "exp"))
    assert {*schedule.readers(a)} == {both, exp} and schedule.readers(b) == [both]
    assert schedule.last_read(a) == max(schedule.order[both], schedule.order[exp])
    assert not schedule.is_done_with(a, b) or schedule.order[b] > schedule.last_read(a)


def test_parts_are_computed_in_the_memory_of_the_whole(nodes):
    by_op, graph = nodes
    places = Places(Schedule(graph, regions.schedule(graph)))
    a, b, both = by_op["a"], by_op["b"], by_op["assemble"]
    assert places.base(a) is places.base(b) is places.base(both)
    assert (places.layout(a).start, places.layout(b).start) == (0, 3 * 8)
    assert places.layout(a).strides == places.layout(both).strides == (6 * 8, 8)
    assert by_op["exp"] not in places.windows


def test_memory_is_by_kind_and_steps(nodes):
    by_op, graph = nodes
    schedule = Schedule(graph, regions.schedule(graph))
    places, steps = Places(schedule), buffers.steps_of(schedule.regions)
    kind = buffers.kinds(places)
    assert {kind[by_op[name]] for name in ("a", "b", "assemble")} == {Kind.RESULT}
    assert kind[by_op["tanh"]] is kind[by_op["exp"]] is Kind.ARENA
    spans = buffers.storage(places, kind, steps, lend=False)
    tanh, exp = spans[by_op["tanh"]], spans[by_op["exp"]]
    apart = tanh.end < exp.start or exp.end < tanh.start
    assert buffers.offsets(buffers.distinct(spans)) == (128 if apart else 256)  # 4 x 3 numbers, aligned to 64


def test_a_slot_of_scratch_is_used_again_once_its_value_is_read():
    x = input_node((20_000, 4), np.dtype(float), "x")
    a = apply("exp", x)
    total = apply("add", apply("multiply", apply("sin", a), apply("tanh", x)), a)
    schedule = Schedule(graph := lower(Graph([x], [total], "f")), regions.schedule(graph))
    places = Places(schedule)
    kind = buffers.kinds(places)
    (region,) = [r for r in schedule.regions if r.N > 1]
    slots = buffers.slots(region, places, kind)
    assert not buffers.in_planes(region, slots, places)
    assert {n.op for n in slots} == {"exp", "sin", "tanh", "multiply"}
    assert len(set(slots.values())) == 3
