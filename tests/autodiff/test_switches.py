"""ad.options and ad.detect_anomaly are local to a context: to an asyncio task, a thread, a generator."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.switches import DEFAULT, current_options, followed, overrides

UNSET = ("strict", False)


def state():
    """The math option of a program compiled here, and whether anomalies are detected."""
    return current_options().math, any(followed())


@pytest.fixture(params=["options", "detect_anomaly"])
def switch(request):
    return {"options": lambda: ad.options(math="fast"), "detect_anomaly": ad.detect_anomaly}[request.param]


@pytest.fixture(autouse=True)
def all_switches_are_reset():
    assert state() == UNSET
    yield
    assert state() == UNSET
    assert overrides() == followed() == ()


def test_concurrent_tasks_have_their_own(switch):
    async def with_switch(entered, checked):
        with switch():
            inside = state()
            entered.set()
            await checked.wait()
            assert state() == inside != UNSET
        assert state() == UNSET

    async def without(entered, checked):
        await entered.wait()
        seen = state()
        checked.set()
        return seen

    async def both():
        events = asyncio.Event(), asyncio.Event()
        return (await asyncio.gather(with_switch(*events), without(*events)))[1]

    assert asyncio.run(both()) == UNSET


def test_tasks_that_overlap_without_nesting():
    async def with_math(math, steps):
        with ad.options(math=math):
            for _ in range(steps):
                assert state()[0] == math
                await asyncio.sleep(0)
        return state()[0]

    async def both():
        return await asyncio.gather(with_math("fast", 2), with_math("strict", 4), with_math("fast", 3))

    assert asyncio.run(both()) == ["strict"] * 3


def test_task_inherits_the_switches_of_its_creator(switch):
    async def child(go):
        await go.wait()
        return state()

    async def parent():
        go = asyncio.Event()
        with switch():
            inside, task = state(), asyncio.create_task(child(go))
            assert await asyncio.to_thread(state) == inside
        go.set()
        return inside, await task

    inside, seen = asyncio.run(parent())
    assert seen == inside


def test_task_with_inherited_options_does_not_run_the_default_program():
    """The fast entry of the default program checks the options of its caller's context."""
    f = ad.compile(lambda x: np.sum(np.exp(x) * np.exp(x)))
    x = np.linspace(0.1, 0.9, 7)
    for _ in range(3):
        f(x)
    plain = ad.source(f)

    async def child(go):
        await go.wait()
        f(x)
        return ad.source(f)

    async def parent():
        go = asyncio.Event()
        with ad.options(off={"cse"}):
            task = asyncio.create_task(child(go))
        go.set()
        return await task

    other = asyncio.run(parent())
    assert other.count("np.exp") == 2 > plain.count("np.exp")
    f(x)
    assert ad.source(f) == plain


def test_threads_have_their_own(switch):
    seen = []
    with switch():
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
    assert seen == [UNSET]


def test_generators_that_overlap_without_nesting(switch):
    def generator():
        with switch():
            yield state()

    first, second = generator(), generator()
    inside = next(first)
    assert next(second) == inside
    assert next(first, None) is None
    assert state() == inside  # the second one is still open
    assert next(second, None) is None
    assert state() == UNSET


def test_inner_options_outlive_outer_ones():
    def generator(**fields):
        with ad.options(**fields):
            yield

    outer, inner = generator(math="fast"), generator(off={"cse"})
    next(outer), next(inner)
    outer.close()
    assert current_options() == ad.Options(off={"cse"})
    inner.close()
    assert current_options() == DEFAULT


def test_generator_closed_in_another_context_is_undone(switch):
    def generator():
        with switch():
            yield

    context = contextvars.copy_context()
    running = generator()
    context.run(next, running)
    running.close()
    assert context.run(state) == UNSET


def test_worker_threads_have_the_switches_of_the_caller(switch):
    seen, pieces = [], iter(range(64))
    both = threading.Barrier(2)

    def job(index):
        both.wait(10)
        for _ in pieces:
            seen.append(state())

    ad.set_threads(2)
    with switch():
        inside = state()
        ad.run_on_threads(job)
    assert set(seen) == {inside} != {UNSET}


def test_unknown_option_is_refused():
    with pytest.raises(ValueError, match="math is 'quick'"), ad.options(math="quick"):
        pass
