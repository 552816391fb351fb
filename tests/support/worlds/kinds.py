"""Kinds of things that a function may read: how to make one, read it, and change it. For random_worlds.py.

In kinds.txt a section is a kind: first statements that make v, then what is known of it.

    value -- the thing, if it is not v
    read -- what a function asks of it, with {v} for its place; of several one is drawn
    again -- another value for that place, drawn by r
    changes -- a list of further changes
    undo -- a statement that puts back what was changed elsewhere

Every other name is that of a change: a statement with a small number n. Kinds that the compiler's guard
understands and kinds that it does not stand side by side.
"""

from __future__ import annotations

import abc
import array
import builtins
import collections
import dataclasses
import enum
import fractions
import functools
import io
import numbers
import operator
import re
import string
import sys
import threading
import types
import weakref

import numpy as np

from gpt2 import autodiff as ad
from tests.support.random import fills
from tests.support.tables import sections
from tests.support.worlds import things
from tests.support.worlds.things import KINDS, Thing, kind, names_of

MODULES = (
    *(abc, array, builtins, collections, dataclasses, enum, fractions, functools, io, numbers, operator),
    *(string, sys, threading, types, weakref),
)
NAMES = {
    **names_of(things),
    **{m.__name__: m for m in MODULES},
    "np": np,
    "ad": ad,
    "SCALE": 2,
}
FIELDS = ("value", "read", "again", "changes", "undo")


def from_text(name: str, lines: list[str]) -> None:
    """Enter the kind of a section."""
    known = [tuple(line.split(" -- ", 1)) for line in lines if " -- " in line]
    setup = [line for line in lines if " -- " not in line]
    reads = [text for field, text in known if field == "read"]
    changes = [(label, text) for label, text in known if label not in FIELDS]
    given = {"value": "v", "again": "None", "changes": "[]", "undo": "None", **dict(known)}
    body = [
        *setup,
        *(line for k, (_, text) in enumerate(changes) for line in (f"def change_{k}(n):", f"    {text}")),
        f"again = {'None' if given['again'] == 'None' else 'lambda r: ' + given['again']}",
        f"def undo(): {given['undo']}",
        f"more = [{', '.join(f'({label!r}, change_{k})' for k, (label, _) in enumerate(changes))}]",
        f"return {given['value']}, again, [*more, *{given['changes']}], undo",
    ]
    code = compile("def make(r):\n" + "".join(f"    {line}\n" for line in body), f"<kind {name}>", "exec")

    def make(rng):
        names = {**NAMES, "__name__": __name__}
        exec(code, names)
        read = reads[rng.integers(len(reads))] if len(reads) > 1 else reads[0]
        value, again, changes, undo = names["make"](rng)
        return Thing(value, read, again, changes, undo)

    KINDS[name] = make


for _name, _lines in sections(__file__).items():
    from_text(_name, _lines)


@kind
def an_array_to_fill(rng):
    """A copy of it, or what is made of it, is filled with x."""
    v = np.array([1.0, 2.0, 3.0])
    makes = [m for m in fills.GRAMMAR["makes"] if re.search(r"\bG\b", m) and not re.search(r"\bM\b", m)]
    call = f"np.sum(fill{rng.integers(len(fills.GRAMMAR['fills']))}({rng.choice(makes)}, x))"
    changes = [("item", lambda n: v.__setitem__(n % 3, n)), ("all", lambda n: v.__imul__(0.5))]
    return Thing(v, re.sub(r"\bG\b", "{v}", call), lambda r: r.integers(1, 9, 3) * 1.0, changes)
