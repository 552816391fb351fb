"""Compiled programs, and fast entries to them: functions generated for the argument types of the last call.

    def entry(args, kwargs):
        if len(args) != 1 or kwargs: return slow(args, kwargs)
        x0, = args
        if type(x0) is not ndarray or x0.shape != (100,) or x0.dtype is not float64: return slow(args, kwargs)
        if recordings or watches or overrides() or not holds(): return slow(args, kwargs)
        r = program(x0)
        return r[0]

An entry checks the types, the static values and the guard, and calls the program; any other call takes the
slow path, which looks up the types and generates a new entry. Flattening arguments in general costs several
microseconds, this less than half of one.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..emit.scalar import FLOAT_ERRORS, ScalarProgram
from ..graph import Node
from ..record import interception
from ..record.draws import redraw
from ..reuse.guard import GONE, Guard
from ..reuse.guard import compiled as code_of
from ..reuse.watch import watches_running
from ..same import same_items
from ..switches import overrides
from ..tree import ContainerKind, Tree, flatten, unflatten
from .wiring import Arguments, Transform, Wiring, check_apart, check_overlap, leaf_key, matched_buffers

_UNSET = object()
commas = ", ".join
DEEPEST = 64  # nested containers: Python's parser allows 200


@dataclass
class Compiled:
    """A program for one combination of argument types."""

    wiring: Wiring
    program: Any
    outside: list
    guard: Guard
    # condition(leaves, outside): whether it may be used for these arguments
    conditions: list[Callable[[Sequence, Sequence], bool]] = field(default_factory=list)
    draws: list = field(default_factory=list)  # as in a Recording
    inputs: Sequence[Node] = ()  # of the recorded graph
    entries: dict = field(default_factory=dict)  # structure and types of `out` -> fast entry

    def accepts(self, call: Arguments) -> bool:
        return all(condition(call.leaves, self.outside) for condition in self.conditions)

    def drawn(self, leaves: list) -> list:
        """The operands from outside, with fresh random numbers."""
        if not self.draws:
            return self.outside
        n = len(self.inputs) - len(self.outside)  # the leaves of f: a call of ad.jvp has tangents besides
        operands = [*leaves[:n], *self.outside]
        redraw(self.draws, self.inputs, operands)
        return operands[n:]

    def let_draws_go(self) -> None:
        """Let the numbers go that were drawn while recording, as each later call draws its own."""
        n = len(self.inputs) - len(self.outside)
        for k, draw in self.draws:
            self.outside[k - n] = np.broadcast_to(np.zeros((), draw.node.dtype), draw.node.shape)
            draw.value = None


class _Text:
    """The source under construction, for a derived function of this name."""

    def __init__(self, name: str, transform: Transform):
        self.name, self.transform = name, transform
        self.lines: list[str] = []
        self.env: dict = {"ndarray": np.ndarray, "unset": _UNSET}
        self.leaves: list[str] = []
        self.count = 0

    def value(self, v) -> str:
        """A name for a value in the function's globals."""
        name = f"k{len(self.env)}"
        self.env[name] = v
        return name

    def variable(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def unless(self, condition: str) -> None:
        """Take the slow path if the condition is true."""
        self.lines.append(f"    if {condition}: return slow(args, kwargs)")


class _TooSpecial(Exception):
    """Raised for an argument that is not worth a fast entry."""


def entry_for(
    slow: Callable, name: str, transform: Transform, compiled: Compiled, call: Arguments, out: Any
) -> Callable:
    """The entry for calls like this one, written on first use; `slow` if there is none."""
    leaves, tree = flatten(out)
    key = tree, tuple(map(leaf_key, leaves))
    if key not in compiled.entries:
        try:
            t = _written(_Text(name, transform), compiled, call, out)
        except _TooSpecial:
            compiled.entries[key] = slow
            return slow
        env = {**t.env, "slow": slow, "overrides": overrides}
        exec(code_of("def entry(args, kwargs):\n" + "\n".join(t.lines) + "\n", "<autodiff entry>"), env)
        compiled.entries[key] = env["entry"]
    return compiled.entries[key]


def _written(t: _Text, compiled: Compiled, call: Arguments, out: Any) -> _Text:
    if max(call.tree.depth(), compiled.wiring.tree.depth()) > DEEPEST:
        raise _TooSpecial
    args_tree, kwargs_tree = call.tree.children
    leaves = iter(call.leaves)
    _container(t, args_tree, "args", leaves)
    if kwargs_tree.children or out is not None:
        _container(t, kwargs_tree, "kwargs", leaves, extra=int(out is not None))
    else:
        t.unless("kwargs")
    buffers = "None" if out is None else _buffers(t, compiled.wiring, out)
    # the slow path notes for a function that is recorded or watched what it depends on
    guard, busy = compiled.guard, "recordings or watches or overrides()"
    t.env.update(recordings=interception.running, watches=watches_running)
    if guard.text is None:
        t.unless(f"{busy} or not {t.value(guard.holds)}()")
    else:
        t.env.update(
            {name: value for name, value in guard.names.items() if name != "__builtins__"}, gone=GONE
        )
        test = f"        if {busy} or not ({guard.text}): return slow(args, kwargs)"
        t.lines += ["    try:", test, "    except gone:", "        return slow(args, kwargs)"]
    for condition in compiled.conditions:
        t.unless(f"not {t.value(condition)}(({commas(t.leaves)},), {t.value(compiled.outside)})")
    if compiled.wiring.written:
        t.lines.append(
            f"    {t.value(check_overlap)}({t.name!r}, {compiled.wiring.written}, "
            f"[{commas(t.leaves)}], {t.value(compiled.outside)})"
        )
    _call(t, compiled, buffers)
    return t


def _container(t: _Text, tree: Tree, name: str, leaves, extra: int = 0) -> None:
    """Check type and length of a tuple, list, dict or instance, and its items."""
    kind, keys, children = tree.kind, tree.keys, tree.children
    if name not in ("args", "kwargs"):
        t.unless(f"type({name}) is not {t.value(tree.type)}")
    if isinstance(kind, ContainerKind) and kind.attributes and not _has_slots(kind.type):
        held, name = name, t.variable()
        t.lines.append(f"    {name} = {held}.__dict__")
    elif not isinstance(kind, type) or issubclass(kind, tuple) and kind.__dictoffset__:  # of a user's class
        raise _TooSpecial
    t.unless(f"len({name}) != {len(children) + extra}")
    if keys is not None:
        _order(t, keys, name, extra)
    parts = [t.variable() for _ in children]
    if keys is not None:
        t.lines += [f"    {part} = {name}.get({t.value(key)}, unset)" for part, key in zip(parts, keys)]
    elif parts:
        t.lines.append(f"    {', '.join(parts)}, = {name}")
    for part, child in zip(parts, children):
        _check(t, child, part, leaves)


def _has_slots(t: type) -> bool:
    """Whether attributes of instances may lie outside their `__dict__`."""
    members = [type(m) for c in t.__mro__ for m in vars(c).values()]
    return types.MemberDescriptorType in members and t is not types.SimpleNamespace


def _order(t: _Text, keys, name: str, extra: int) -> None:
    """The order of the keys is part of the value: a function may go through them."""
    key_order = f"tuple({name})" if not extra else f"tuple([k for k in {name} if k != 'out'])"
    if any(type(k) is not str for k in keys):  # 1 == True
        t.unless(f"not {t.value(same_items)}({key_order}, {t.value(keys)})")
    elif len(keys) > 1:
        t.unless(f"{key_order} != {t.value(keys)}")


def _check(t: _Text, tree: Tree, name: str, leaves) -> None:
    x = next(leaves) if tree.is_leaf else tree.value
    kind = type(x)
    if tree.is_leaf:
        t.leaves.append(name)
        if kind is np.ndarray:
            strided = f"not {name}.flags.c_contiguous"
            if not x.flags.c_contiguous:
                strided = f"{name}.strides != {x.strides}"
            unlike = f"{name}.shape != {x.shape} or {name}.dtype is not {t.value(x.dtype)} or {strided}"
            t.unless(f"type({name}) is not ndarray or {unlike}")
        elif kind in (float, complex):
            t.unless(f"type({name}) is not {kind.__name__}")
        elif isinstance(x, np.generic) and kind.__module__ == "numpy":
            t.unless(f"type({name}) is not {t.value(kind)}")
        else:
            raise _TooSpecial
    elif not tree.is_static:
        _container(t, tree, name, leaves)
    elif kind in (int, str, bytes):
        t.unless(f"type({name}) is not {kind.__name__} or {name} != {t.value(x)}")
    else:
        t.unless(f"{name} is not {t.value(x)}")


def _buffers(t: _Text, wiring, out) -> str:
    """Check `out`; the text of the tuple of buffers."""
    t.lines.append("    out = kwargs.get('out', unset)")
    leaves, tree = flatten(out)
    t.leaves, outer = [], t.leaves
    _check(t, tree, "out", iter(leaves))
    names, t.leaves = t.leaves, outer
    chosen = ["None"] * len(wiring.graph.outputs)
    numbered = unflatten(tree, [np.float64(i) for i in range(len(leaves))])
    for o, k, _ in matched_buffers(t.transform.name, wiring, numbered):
        chosen[o.index] = names[int(k)]
        t.unless(f"not {names[int(k)]}.flags.writeable")
    buffers = f"({', '.join(chosen)},)"
    written = [t.leaves[u.leaf] for u in wiring.updates]
    if len(chosen) - chosen.count("None") + len(written) > 1:
        arrays = commas([*chosen, *written])
        t.lines.append(f"    {t.value(check_apart)}({t.transform.name!r}, ({arrays},), {len(written)})")
    return buffers


def _call(t: _Text, compiled, buffers: str) -> None:
    wiring, program = compiled.wiring, compiled.program
    operands = [t.leaves[i] for i in wiring.feed] + [t.value(a) for a in compiled.outside]
    if type(t.transform).execute is not Transform.execute:
        run = t.value(t.transform.execute)
        t.lines.append(
            f"    return {run}({t.value(program)}, {t.value(wiring)}, [{commas(t.leaves)}], "
            f"{t.value(compiled.outside)}, {buffers})"
        )
        return
    if type(program) is ScalarProgram and buffers == "None":
        t.env["trouble"] = FLOAT_ERRORS
        single = program.single
        t.lines += [
            "    try:",
            f"        r = {t.value(program.function)}({commas(operands)})",
            "    except trouble:",
            f"        r = {t.value(program.in_numpy)}({commas(operands)}){'[0]' if single else ''}",
        ]
        text = "r" if single else "r[{}]"

        def result_text(o) -> str:
            if o.kind == "number":
                return text.format(o.index)
            make = np.asarray if o.kind == "array" else wiring.graph.outputs[o.index].dtype.type
            return f"{t.value(make)}({text.format(o.index)})"

    else:
        arguments = operands if buffers == "None" else [*operands, f"out={buffers}"]
        t.lines.append(f"    r = {t.value(program)}({commas(arguments)})")
        text, tail = "r[{}]", {"array": "", "scalar": "[()]", "number": ".item()"}

        def result_text(o) -> str:
            return f"r[{o.index}]{tail[o.kind]}"

    t.env.update(copyto=np.copyto, add=np.add)
    for u in wiring.updates:  # of the caller's arrays
        x, value = t.leaves[u.leaf], text.format(u.index)
        t.lines.append(f"    add({x}, {value}, {x})" if u.added else f"    copyto({x}, {value})")
    t.lines.append("    return " + _result(t, wiring, result_text))


def _result(t: _Text, wiring, text) -> str:
    outs = iter(wiring.outs)

    def build(tree: Tree) -> str:
        if tree.is_leaf:
            return text(next(outs))
        if tree.is_static:
            return t.value(tree.value)
        kind, keys = tree.kind, tree.keys
        parts = [build(c) for c in tree.children]
        if keys is not None:
            items = commas(f"{t.value(k)}: {p}" for k, p in zip(keys, parts))
            return f"{{{items}}}" if kind is dict else f"{t.value(kind)}({{{items}}})"
        if kind is list:
            return f"[{commas(parts)}]"
        whole = f"({commas(parts)},)" if parts else "()"
        if kind is tuple:
            return whole
        return f"{t.value(kind)}({'*' if hasattr(kind, '_fields') else ''}{whole})"

    return build(wiring.tree)
