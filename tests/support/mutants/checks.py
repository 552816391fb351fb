"""The gradient tests that a mutant has to fail: those of the code it touches, quickest first."""

import functools
import inspect
import itertools
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from gpt2 import backward
from gpt2.autodiff.check.numeric import check_graph
from gpt2.backward import choose as CHOOSE
from tests.layers import test_layers
from tests.model import test_model, test_own, test_tuning
from tests.support.calls.op_samples import samples_of
from tests.support.damage import Hangs, time_limit
from tests.support.mutants.planting import Mutant, Unplantable, planted

SECONDS = 5.0  # of processor time, after which a mutant counts as one that does not end
HUNG = "it does not end"


@contextmanager
def quiet():
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        yield


def caught(m: Mutant) -> str | None:
    """What noticed the mutant, HUNG where a test of it takes too long, or None where nothing noticed.

    Raises Unplantable where it cannot be put in.
    """
    with time_limit(SECONDS), planted(m), quiet():
        for name, check in checks(m):
            try:
                check()
            except Unplantable:
                raise
            except Hangs:
                return HUNG
            except (Exception, pytest.fail.Exception):
                return name
    return None


def passes(m: Mutant) -> None:
    """Run the same tests without the mutant: they have to pass, or they would notice anything."""
    with quiet():
        for _, check in checks(m):
            check()


def checks(m: Mutant):
    """(name, function) of every test that concerns the mutant."""
    if m.module.startswith("gpt2.layers"):
        (layer,) = m.tests
        yield from layer_checks(layer)
    elif m.module in ("gpt2.model.gpt2", "gpt2.model.backward"):
        yield from model_checks()
    elif m.module.startswith("gpt2.autodiff.derive."):
        yield from chain_checks()
    else:
        yield from row_checks(sorted(m.tests))


def layer_checks(layer):
    """Of tests/layers/test_layers.py: the tests of a layer's cases, and those without that have its name."""
    for name, test in all_of(test_layers):
        case = test.keywords.get("case")
        if case.layer == layer if case else f"test_{layer}" in name or f"_{layer}" in name:
            yield name, test


# ---- The model: tests/model/test_model.py, with its central differences worked out once


def model_checks():
    yield "test_gradient_is_the_slope", slopes_hold
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("gpt2.backward.choose", _choose_once)  # compiled once, not in every test
        for compile in (False, True):
            for test in (
                test_model.test_accumulated_halves_equal_the_whole_batch,
                test_model.test_backward_overwrites_old_gradients,
            ):
                yield test.__name__, functools.partial(test, compile)
        for test in (
            test_model.test_tied_embedding_gets_both_gradients,
            test_model.test_forward_and_backward_write_to_no_argument,
            test_model.test_backward_needs_a_forward_each_time,
            test_model.test_gradient_of_the_logits_uses_their_memory,
            test_model.test_uncompiled_step_holds_two_copies_of_the_logits_at_most,
        ):
            yield test.__name__, test
        for kind in test_tuning.KINDS:
            yield f"frozen_parts_hold[{kind}]", functools.partial(frozen_parts_hold, kind)
        yield "own_block_holds", own_block_holds
        for kind in ("all", "last", "frozen ends"):
            test = test_tuning.test_on_ready_announces_each_trained_matrix_once
            yield test.__name__, functools.partial(test, kind)
        for halves in (True, False):
            test = test_model.test_derived_gradients_agree_with_uncompiled_manual
            yield test.__name__, functools.partial(test, "auto", halves)


_CHOSEN: dict = {}


def _choose_once(spec, compile, elementwise, layers, changed):
    """What choose gives for this model, with layers compiled for the first that asked for the same."""
    key = (spec, compile, elementwise, *layers.items())
    if key not in _CHOSEN:
        _CHOSEN[key] = CHOOSE(spec, compile, elementwise, layers)
    table = backward.Table(changed)
    dict.update(table, _CHOSEN[key])
    return table


def frozen_parts_hold(kind):
    """The gradient by hand of what is trained is that of the whole program, which no mutant touches."""
    for scale, accumulate in ((1.0, False), (0.5, True)):
        if not accumulate:
            tuning = test_tuning.KINDS[kind]
            model = test_tuning.model_of(tuning, "auto" if tuning.lora else None, compile=False)
        model.forward(*test_tuning.batch())
        model.backward(scale, accumulate)
    np.testing.assert_allclose(model.flat_grads, 1.5 * _frozen_gradient(kind), rtol=1e-9, atol=1e-12)


@functools.cache
def _frozen_gradient(kind):
    model = test_tuning.model_of(test_tuning.KINDS[kind], "whole")
    model.loss_and_grads(*test_tuning.batch())
    return model.flat_grads


def own_block_holds():
    """The gradient through a user-defined block, derived block by block, is that of the whole program."""
    tokens, targets = test_own.batch()
    model = test_own.model_of(compile=False, **test_own.own("swiglu"))
    model.forward(tokens, targets)
    model.backward()
    np.testing.assert_allclose(model.flat_grads, _own_block_gradient(), rtol=1e-9, atol=1e-12)


@functools.cache
def _own_block_gradient():
    model = test_own.model_of("whole", **test_own.own("swiglu"))
    model.loss_and_grads(*test_own.batch())
    return model.flat_grads


def slopes_hold():
    """test_model.test_gradient_is_the_slope, for every tensor."""
    model = test_model.small_model(compile=False)
    tokens, targets = test_model.batch()
    model.forward(tokens, targets)
    model.backward()
    for name, directions in _slopes().items():
        gradient = model.grads[name]
        for direction, slope in directions:
            assert abs(np.sum(gradient * direction) - slope) < 1e-6 * np.linalg.norm(gradient), name


@functools.cache
def _slopes():
    """Tensor -> (direction, central difference); of the forward pass alone, which no mutant touches."""
    model = test_model.small_model(compile=False)
    tokens, targets = test_model.batch()
    return {name: list(test_model.slopes(model, name, tokens, targets)) for name in model.params}


# ---- The chain rule: tests/autodiff/derive, and the table's samples


def chain_checks():
    from tests.autodiff.derive import test_differentiate, test_random_branches
    from tests.autodiff.ops import test_rules

    test_differentiate.RNG = np.random.default_rng(0)  # or what is drawn would depend on what ran before
    yield from all_of(test_differentiate)
    yield from row_checks(sorted(test_rules.ROWS), orders=(1,))
    yield "random branches", test_random_branches.test_none_is_silently_wrong


def all_of(module):
    """(name, function) of every test in a module of tests that have no fixture but monkeypatch."""
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for row in itertools.product(*(values for _, values, *_ in marks)):
            given = {}
            for (names, *_), values in zip(marks, row):
                names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
                given |= dict(zip(names, values if len(names) > 1 else [values], strict=True))
            words = "-".join(str(getattr(value, "name", value)) for value in given.values())
            yield f"{name}[{words}]" if given else name, functools.partial(_with_monkeypatch, test, **given)


def _with_monkeypatch(test, **given):
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "monkeypatch" in inspect.signature(test).parameters:
            given["monkeypatch"] = monkeypatch
        test(**given)


# ---- The table of rules: tests/autodiff/ops/test_rules.py and test_rule_points.py


def row_checks(names, orders=(1, 2)):
    from tests.autodiff.ops import test_rule_points, test_rules

    samples = [
        (name, i, s, dtype) for name in names for i, s in enumerate(samples_of(name)) for dtype in s.dtypes
    ]
    for order in orders:
        for name, i, s, dtype in samples:

            def derivatives(name=name, s=s, dtype=dtype, order=order):
                graph, values = test_rules.instance(name, s, dtype)
                check_graph(graph, values, order=order)

            yield f"test_derivatives[{name}-{i}-{dtype}]", derivatives
    for name in names:
        for test, args in test_rule_points.checks_of(name):
            yield test.__name__, functools.partial(test, *args)
    for name, i, s, dtype in samples:
        if name != "float_power":
            yield (
                f"test_single_precision_stays[{name}-{i}-{dtype}]",
                functools.partial(test_rules.test_single_precision_stays.case, name, s, dtype),
            )
