"""Each fault that the guard once had, planted again, makes the tests with random worlds fail."""

import collections
import functools
import types

import numpy as np
import pytest

from gpt2.autodiff import same
from gpt2.autodiff.emit import program, scalar
from gpt2.autodiff.programs import derived, wiring
from gpt2.autodiff.record import bytecode, interception, record
from gpt2.autodiff.record.bytecode import CodeMap
from gpt2.autodiff.record.recorder import Recorder
from gpt2.autodiff.record.value import Recorded
from gpt2.autodiff.reuse import conditions, guard, kinds, things, world
from tests.support.worlds.random_worlds import Stale, check_acting, check_world
from tests.support.worlds.things import Float64Of

World = world.World


def taken_as_it_is(monkeypatch, kind):
    monkeypatch.setitem(things._VISITS, kind, lambda w, v: None)


def listed(monkeypatch, *objects):
    found = kinds.LISTED._objects | {id(v): v for v in objects}
    monkeypatch.setattr(kinds.LISTED, "_objects", found)


def without_facts(monkeypatch, unwanted):
    """No fact for which unwanted(kind, parts) is true."""
    fact = World.fact
    monkeypatch.setattr(World, "fact", lambda w, *parts: unwanted(*parts) or fact(w, *parts))


def without_module(monkeypatch, names):
    without_facts(monkeypatch, lambda kind, *parts: parts[0] is names and kind in ("entry", "absent"))


def equal_ranges(monkeypatch):
    exact = same.same

    def lax(a, b):
        return type(a) is type(b) is range and a == b or exact(a, b)

    monkeypatch.setattr(same, "same", lax)


def sets_without_order(monkeypatch):
    monkeypatch.setitem(things._VISITS, set, lambda w, v: w.fact("items", v, tuple(v)))
    exact = guard.same_items

    def lax(same, items, then):
        return frozenset(items) == frozenset(then) if type(items) is set else exact(same, items, then)

    monkeypatch.setattr(guard, "same_items", lax)


def the_dict_of_then(monkeypatch):
    """An object's __dict__ that is replaced goes unnoticed."""

    class Box:
        pass

    note = things.Names.note

    def noted(self, names, fact):
        box = Box()
        box.__dict__ = self.holder.__dict__
        holder, self.holder = self.holder, box
        note(self, names, fact)
        self.holder = holder
        fact.__self__.kept = [*getattr(fact.__self__, "kept", []), box]  # by the World

    monkeypatch.setattr(things.Names, "note", noted)


def unseen_code(monkeypatch):
    """Code that runs unseen is taken for harmless."""
    fail = World.fail
    monkeypatch.setattr(World, "_in_classes", lambda w, code: [])
    monkeypatch.setattr(World, "fail", lambda w, why: None if "not followed" in why else fail(w, why))


def computed_names(monkeypatch):
    monkeypatch.setattr(bytecode.reads, "known", CodeMap())
    monkeypatch.setattr(bytecode, "BY_NAME", frozenset())


def opaque_names(monkeypatch):
    monkeypatch.setattr(bytecode.reads, "known", CodeMap())
    monkeypatch.setattr(bytecode, "OPAQUE_ATTRIBUTES", frozenset())


def default_dicts_as_dicts(monkeypatch):
    def visit(w, v):
        w._dict(v)
        w.reach(v.default_factory)

    monkeypatch.setitem(things._VISITS, collections.defaultdict, visit)


def without_patterns(monkeypatch):
    """`match` is taken for code like any other."""
    monkeypatch.setattr(bytecode, "_PATTERNS", frozenset())
    monkeypatch.setattr(bytecode.reads, "known", bytecode.CodeMap())


def types_as_they_are(monkeypatch):
    monkeypatch.setattr(world, "type_test_error", lambda *a: None)
    monkeypatch.setattr(record, "check_type_tests", lambda *a: None)


def unasked(monkeypatch):
    """hasattr and getattr are Python's own while something is recorded."""
    names = [(n, own, own if "hasattr" in own else others) for n, own, others in interception._names]
    monkeypatch.setattr(interception, "_names", names)


def equal_types(monkeypatch):
    monkeypatch.setattr(type(Recorded), "__eq__", type.__eq__)
    monkeypatch.setattr(type(Recorded), "__hash__", type.__hash__)


def without_metadata(monkeypatch):
    exact = wiring.leaf_key

    def lax(x):
        kind, *rest = exact(x)
        return (kind, *(part for part in rest if part is not True and part is not False))

    monkeypatch.setattr(wiring, "leaf_key", lax)


FAULTS = {
    "exceptions out of what is not watched": (
        lambda m: m.setattr(World, "_check_caught", lambda w, frame: None),
        "caught_exceptions",
    ),
    "flags of arguments": (
        lambda m: m.setattr(Recorder, "note_query", [].copy),  # the compiler and C are not watched
        "flags_of_an_argument",
    ),
    "arguments that share memory": (
        lambda m: m.setattr(Recorder, "note_query", [].copy),
        "memory_of_arguments",
    ),
    "one argument or two": (
        lambda m: [m.setattr(where, "repeats_array", lambda *a: False) for where in (conditions, derived)],
        "one_argument_or_two",
    ),
    "`is` by a function": (lambda m: m.setattr(world, "_IDENTITY_FUNCTIONS", ()), "one_argument_or_two"),
    "metadata of arguments": (without_metadata, "metadata_of_an_argument"),
    "types of arguments": (types_as_they_are, "type_of_an_argument"),
    "types that are compared": (equal_types, "type_of_an_argument"),
    "attributes that only arrays have": (unasked, "type_of_an_argument"),
    "attributes that recorded values lack": (
        lambda m: [m.delattr(Recorded, "__getattr__"), unasked(m)],
        "type_of_an_argument",
    ),
    "objects that a call makes": (lambda m: m.setattr(World, "returns", lambda w, v: None), "a_set_made"),
    "settings that are given back": (
        lambda m: m.setattr(World, "returns", lambda w, v: None),
        "setting_given_back",
    ),
    "types of results": (lambda m: m.setattr(wiring, "SCALAR", wiring.NUMBER), "number_given"),
    "namespaces": (lambda m: taken_as_it_is(m, types.SimpleNamespace), "namespace"),
    "ranges": (equal_ranges, "scalar"),
    "order of sets": (sets_without_order, "a_set"),
    "a replaced __dict__": (the_dict_of_then, "instance"),
    "attributes of functions": (
        lambda m: m.setattr(things.FunctionNames, "note", lambda self, names, fact: None),
        "function",
    ),
    "names of functions": (lambda m: m.setattr(things, "_NAMES_OF_CODE", ()), "function"),
    "texts of functions": (opaque_names, "function_s_texts"),
    "names of NumPy": (lambda m: without_module(m, np.__dict__), "names_of_numpy"),
    "built-in names": (lambda m: without_module(m, __builtins__), "built_in_names"),
    "the error state": (lambda m: listed(m, np.geterr), "error_state"),
    "default_factory": (default_dicts_as_dicts, "default_dict"),
    "caches": (lambda m: taken_as_it_is(m, functools._lru_cache_wrapper), "cached_function"),
    "__str__ and others": (unseen_code, "special_methods"),
    "members of enumerations": (
        lambda m: m.setattr(things.InstanceNames, "note", lambda self, names, fact: None),
        "enumeration",
    ),
    "metaclasses": (
        lambda m: without_facts(m, lambda kind, *parts: kind == "type" and isinstance(parts[0], type)),
        "class_itself",
    ),
    "computed names": (computed_names, "nested_getattr"),
    "the bytes of arrays": (lambda m: m.setattr(guard, "same_array", lambda a, b: True), "an_array"),
    "methods of lists": (lambda m: m.setattr(World, "_bound", lambda w, v: None), "method_of_a_list"),
    "cells": (lambda m: without_facts(m, lambda kind, *parts: kind == "cell"), "function"),
    "one thing or its twin": (
        lambda m: m.setattr(world, "_compares_by_identity", lambda *a: True),
        "equal_twins",
    ),
    "a setting or its twin": (
        lambda m: m.setattr(world, "_compares_by_identity", lambda *a: True),
        "equal_settings",
    ),
    "classes of NumPy's numbers": (
        lambda m: m.setitem(things._VISITS, Float64Of, lambda w, v: None),
        "numpy_number_subclass",
    ),
    "attributes that functions of ours were given": (
        lambda m: m.setattr(World, "_of_ours", lambda w, v: None),
        "derived_function",
    ),
    "a nan and another": (lambda m: m.setattr(same, "_has_nan", lambda a: False), "nans_in_a_list"),
    "lists that NumPy reads": (
        lambda m: m.setattr(World, "_is_method_of_known", lambda w, frame: False),
        "list_of_the_library",
    ),
    "NumPy's own classes": (
        lambda m: m.setattr(kinds, "is_numpy_class", lambda c: False),
        "polynomial_of_numpy",
    ),
    "names of fields": (lambda m: m.setattr(World, "_dtype", lambda w, d: None), "structured_array"),
    "classes that are registered": (without_patterns, "registered_class"),
    "settings of texts": (lambda m: m.setattr(World, "_formats", lambda w: None), "text_of_a_number"),
    "numbers that are exchanged": (
        lambda m: [
            m.setattr(where, "with_globals", lambda f, names, values: f) for where in (program, scalar)
        ],
        "factor",
    ),
    "classes": (lambda m: without_facts(m, lambda kind, *parts: kind == "class"), "instance"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name, monkeypatch):
    plant, kind = FAULTS[name]
    plant(monkeypatch)
    with pytest.raises(Stale):
        for seed in range(40):
            check_world(seed, [kind])


def test_acts_are_noticed(monkeypatch):
    """Changes made by the run itself."""

    def made(facts):
        found = guard.make_guard(facts)
        found.holds = lambda: True
        return found

    monkeypatch.setattr(world, "make_guard", made)
    with pytest.raises(Stale):
        check_acting("counts")
