"""A signal's exception at each bytecode of a recording: whatever a recording changes is as it was before."""

import contextlib
import gc
import sys
import threading

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import pipeline, undo
from gpt2.autodiff.record import bytecode, draws, interception, record, recorder
from gpt2.autodiff.reuse import same_code
from gpt2.autodiff.reuse.watch import watches_running

X = np.array([1.0, 2.0])


class Interrupted(KeyboardInterrupt):
    pass


class Interrupt:
    """Raises Interrupted before instruction `at` of all that runs in this thread, or of the code `only`; `at`
    none only counts.

    Left out are the instructions by which a `with` statement ends in the ordinary way, up to the call of
    __exit__: CPython looks for signals at calls, at jumps back and where functions begin, and a lock would
    stay locked for ever.
    """

    def __init__(self, at=None, only=None):
        self.at, self.count, self.only = at, 0, only

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)

    def _called(self, frame, event, arg):
        if frame.f_code is Interrupt.__exit__.__code__ or self.only not in (None, frame.f_code):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._opcode

    def _opcode(self, frame, event, arg):
        if event == "opcode" and frame.f_lasti not in leaving(frame.f_code):
            self.count += 1
            if self.count - 1 == self.at:
                raise Interrupted
        return self._opcode


_leaving: dict = {}  # by the id of code: hashing code takes long


def leaving(code):
    """The offsets of the three Nones that __exit__ is called with, of its call, and of what may stand before
    them: the SWAP by which a `return` keeps its value, the NOP where a loop ends. CPython looks for no signal
    there.
    """
    if id(code) not in _leaving:
        found, instructions = set(), bytecode.instructions_of(code)
        for k, ins in enumerate(instructions[3:], 3):
            nones = [i.opname == "LOAD_CONST" and i.argval is None for i in instructions[k - 3 : k]]
            if ins.opname in ("PRECALL", "CALL") and all(nones):
                first = k - 4 if k > 3 and instructions[k - 4].opname in ("SWAP", "NOP") else k - 3
                found.update(i.offset for i in instructions[first : k + 2])
        _leaving[id(code)] = code, found
    return _leaving[id(code)][1]


def names_of_numpy():
    return {(m.__name__, k): id(v) for m in (np, np.linalg, np.fft) for k, v in vars(m).items()}


def state():
    """All that a recording changes, besides names."""
    return (
        gc.isenabled(),
        sys.getprofile(),
        recorder.state(),
        recorder.current(),
        len(interception.running),
        len(watches_running),
        len(draws._exchanged),
        np.geterr(),
        threading.active_count(),
    )


def plain(rng):
    return ad.compile(lambda x: np.sum(np.array([x[0], x[1] * 2.0])))


def drawing(rng):
    return ad.compile(lambda x: np.sum(x * rng.normal(size=2)))


@ad.custom_vjp
def ruled(x):
    return x * 2.0


ruled.defvjp(lambda dout, out, x: (dout * 2.0,))


def with_a_rule(rng):
    return ad.grad(lambda x: np.sum(ad.grad(lambda y: np.sum(ruled(y) * x))(x)))


def scanned(rng):
    return ad.grad(lambda x: ad.scan(lambda c, t: (c * t, None), np.sum(x), x)[0])


def interrupted(make, at, only=None):
    """Whether the first call of a function reached the interrupt; checks that nothing stays changed."""
    rng = np.random.default_rng(0)
    same_code.shared_recordings.__init__()
    g = make(rng)
    names, before = names_of_numpy(), state()
    ended = False
    interrupt = Interrupt(at, only)
    with contextlib.suppress(Interrupted), interrupt:
        g(X)
        ended = True
    assert state() == before, f"at instruction {at}"
    assert names.items() <= names_of_numpy().items(), f"at instruction {at}"
    assert not any(type(c.cell_contents) is draws.Drawing for c in (g.__wrapped__.__closure__ or ()))
    assert g(X) is not None and state() == before, "later calls work"
    return not ended, interrupt.count


@pytest.fixture(autouse=True)
def watched_at_once(monkeypatch):
    monkeypatch.setattr(same_code.SharedRecordings, "is_time", lambda self, key: True)


MAKERS = [plain, drawing, with_a_rule, scanned]


def instructions_of(make):
    """How many a recording has, where its program is found: imports and compilation are done by then."""
    for _ in range(2):
        interrupted(make, None)
    return interrupted(make, None)[1]


def every(make, step):
    stopped = [interrupted(make, at)[0] for at in range(0, instructions_of(make), step)]
    assert sum(stopped) > 0.7 * len(stopped) > 14, "recordings become shorter where caches are filled"


@pytest.mark.parametrize("make", MAKERS)
def test_interrupts_here_and_there(make):
    every(make, instructions_of(make) // 30)


class Once(undo.undoing):
    """Undoes only once: the second, redundant undo does nothing."""

    count = 0

    def __enter__(self):
        Once.count += 1
        self.acts = Once.count % 2 == 0

    def __exit__(self, *error):
        if self.acts:
            self.undo()

    __slots__ = ("acts",)


def test_undoing_only_once_is_noticed(monkeypatch):
    """The tests above fail if it is undone only once."""
    interrupted(plain, None)
    monkeypatch.setattr(record, "undoing", Once)
    try:
        with pytest.raises(AssertionError, match="at instruction"):
            for at in range(10):
                interrupted(plain, at, record._end.__code__)
    finally:
        interception.running.clear()
        interception._exchange_names()
        recorder.restore((0, None, False))


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_interrupts_at_many_instructions(make):
    every(make, instructions_of(make) // 300)


@pytest.mark.slow
def test_an_interrupt_at_each_instruction_of_what_is_undone():
    undone = record._end, draws.exchanging.__wrapped__, draws._put_back, recorder.restore, pipeline._resume
    for code in (*undone, undo.undoing.__exit__):
        n = interrupted(drawing, None, code.__code__)[1]
        for at in range(n):
            assert interrupted(drawing, at, code.__code__)[0]
        assert n
