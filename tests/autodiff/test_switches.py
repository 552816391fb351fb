"""The switches of a caller hold in its context: asyncio tasks, threads and generators keep theirs."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.switches import DEFAULT, current_options, followed, overrides


def shown():
    """What a switch is at, by what a call does: the options of a program that is made here, and following."""
    return current_options().math, any(followed())


@pytest.fixture(params=["options", "detect_anomaly"])
def switch(request):
    return {"options": lambda: ad.options(math="fast"), "detect_anomaly": ad.detect_anomaly}[request.param]


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = shown()
    yield
    assert shown() == before == ("strict", False)
    assert overrides() == followed() == ()


def test_two_tasks_keep_theirs(switch):
    async def with_it(entered, left):
        with switch():
            inside = shown()
            entered.set()
            await left.wait()
            assert shown() == inside != ("strict", False)
        assert shown() == ("strict", False)

    async def without(entered, left):
        await entered.wait()
        seen = shown()
        left.set()
        return seen

    async def both():
        events = asyncio.Event(), asyncio.Event()
        return (await asyncio.gather(with_it(*events), without(*events)))[1]

    assert asyncio.run(both()) == ("strict", False)


def test_two_tasks_that_end_in_the_order_in_which_they_began():
    async def with_math(math, steps):
        with ad.options(math=math):
            for _ in range(steps):
                assert shown()[0] == math
                await asyncio.sleep(0)
        return shown()[0]

    async def both():
        return await asyncio.gather(with_math("fast", 2), with_math("strict", 4), with_math("fast", 3))

    assert asyncio.run(both()) == ["strict"] * 3


def test_a_task_begins_with_the_switches_of_where_it_was_started(switch):
    async def child(go):
        await go.wait()
        return shown()

    async def parent():
        go = asyncio.Event()
        with switch():
            inside, task = shown(), asyncio.create_task(child(go))
            thread = asyncio.to_thread(shown)
            assert await thread == inside
        go.set()
        return inside, await task

    inside, seen = asyncio.run(parent())
    assert seen == inside


def test_a_program_made_before_is_not_taken_in_a_task_with_options_of_its_starter():
    """The default program's fast entry looks at the context of its caller, whatever is open elsewhere."""
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
        thread = threading.Thread(target=lambda: seen.append(shown()))
        thread.start()
        thread.join()
    assert seen == [("strict", False)]


def test_generators_that_end_in_the_order_in_which_they_began(switch):
    def generator():
        with switch():
            yield shown()

    first, second = generator(), generator()
    inside = next(first)
    assert next(second) == inside
    assert next(first, None) is None
    assert shown() == inside  # the second one is still open
    assert next(second, None) is None
    assert shown() == ("strict", False)


def test_options_of_the_inner_one_stay_when_the_outer_one_ends_first():
    def generator(**fields):
        with ad.options(**fields):
            yield

    outer, inner = generator(math="fast"), generator(off={"cse"})
    next(outer), next(inner)
    outer.close()
    assert current_options() == ad.Options(off={"cse"})
    inner.close()
    assert current_options() == DEFAULT


def test_a_generator_that_ends_in_another_context_leaves_nothing(switch):
    def generator():
        with switch():
            yield

    context = contextvars.copy_context()
    running = generator()
    context.run(next, running)
    running.close()
    assert context.run(shown) == ("strict", False)


def test_the_compiler_s_own_threads_have_the_caller_s(switch):
    seen, pieces = [], iter(range(64))
    both = threading.Barrier(2)

    def job(index):
        both.wait(10)
        for _ in pieces:
            seen.append(shown())

    threads = ad.get_threads()
    ad.set_threads(2)
    try:
        with switch():
            inside = shown()
            ad.run_on_threads(job)
    finally:
        ad.set_threads(threads)
    assert set(seen) == {inside} != {("strict", False)}


def test_an_unknown_option_opens_nothing():
    with pytest.raises(ValueError, match="math is 'quick'"), ad.options(math="quick"):
        pass
