"""From graph to callable: `compile_graph(graph)` emits NumPy source, compiles it and wraps it as a Program."""

from __future__ import annotations

import itertools
import linecache

import numpy as np

from .graph import Graph, Node, is_scalar_const, node_names
from .ops import OPS

_serial = itertools.count(1)


class Program:
    """A compiled graph. `program(*arrays, out=None)` returns a tuple; `source` is the NumPy text that runs."""

    def __init__(self, graph: Graph, source: str, function, name: str):
        self.graph = graph
        self.source = source
        self.name = name
        self._function = function

    def __call__(self, *arrays, out=None):
        results = self._function(*arrays)
        if out is None:
            return results
        for result, buffer in zip(results, out):
            if buffer is not None:
                np.copyto(buffer, result)
        return tuple(r if b is None else b for r, b in zip(results, out))


def compile_graph(graph: Graph, options=None, name: str | None = None) -> Program:
    """Compile a graph of NumPy ops. Results are fresh arrays (or the caller's `out` buffers)."""
    name = name or graph.name
    source, env = emit_plain(graph, name)
    return Program(graph, source, load_source(source, env, name), name)


def load_source(source: str, env: dict, name: str):
    """Execute emitted source so that tracebacks and debuggers can show its lines."""
    filename = f"<autodiff {name} {next(_serial)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), env)
    return env[name]


def emit_plain(graph: Graph, name: str) -> tuple[str, dict]:
    """One NumPy statement a node, as a person would write it down. Returns the source and its globals."""
    names = node_names(graph)
    env: dict = {"np": np}
    lines = ["import numpy as np", "", f"def {name}({', '.join(names[i] for i in graph.inputs)}):"]

    def ref(n: Node) -> str:
        if is_scalar_const(n):
            return scalar_text(n)
        if n.op == "const":
            env[names[n]] = n.value
        return names[n]

    for n in graph.nodes:
        if n.op in ("input", "const"):
            continue
        op = OPS[n.op]
        args = [ref(a) for a in n.args]
        if op.code is not None:
            text = op.code(*args, **n.attrs)
        else:
            env[f"_{n.op}"] = op.evaluate
            attrs = []
            for k, v in n.attrs.items():
                env[f"_attr_{n.id}_{k}"] = v
                attrs.append(f"{k}=_attr_{n.id}_{k}")
            text = f"_{n.op}({', '.join(args + attrs)})"
        lines.append(f"    {names[n]} = {text}")
    results = ", ".join(ref(o) for o in graph.outputs)
    lines.append(f"    return ({results},)" if graph.outputs else "    return ()")
    return "\n".join(lines) + "\n", env


def scalar_text(n: Node) -> str:
    """A scalar constant as a literal: weak beside arrays (NEP 50), so the dtype of its surroundings is kept."""
    v = n.value
    if isinstance(v, float) and not np.isfinite(v):
        return "np.nan" if np.isnan(v) else ("np.inf" if v > 0 else "-np.inf")
    return repr(v)
