"""Small mistakes, put into the hand-written backwards, the table of rules and the chain rule, in memory only.

A mutant is one edit of a function: a sign turned, an axis changed, a factor or a term dropped, operands
exchanged, ... as a person might slip. With `planted(mutant)` the functions in memory carry the mistake; files
are never touched. The gradient tests have to notice. tests/long/mutate.py runs all of them.
"""

import ast
import copy
import gc
import importlib
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.support.calls.op_samples import samples_of
from tests.support.tables import sections

# Names of derivative columns in a row of the table
RULES = ("partials", "transpose", "jvp", "vjp_rule", "jvp_rule")
# Calls that move no numbers: removing them is not a mathematical mistake
PLUMBING = set(
    "tuple list range len iter next zip enumerate reversed int str partial callable isinstance dict set "
    "min max getattr".split()
)
# Keywords that are easily forgotten
FORGOTTEN = {"keepdims", "axis", "reverse", "axes"}
FLIPPED = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
EXCHANGED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}

# Statements that compute nothing, or raise
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Assert, ast.arguments)
SKIPPED += (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)

Function = (ast.FunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Mutant:
    """One edit. `at` leads from the function's node to the edited one: (field, index or None) by steps."""

    module: str
    function: str  # its name, with the statement it stands in for a lambda
    line: int
    before: str
    after: str
    node: ast.AST = field(compare=False, repr=False)  # the function that is replaced
    at: tuple = field(compare=False, repr=False)
    new: ast.AST = field(compare=False, repr=False)
    tests: frozenset = field(compare=False, repr=False)  # what is affected: names of ops, or of a layer

    @property
    def key(self):
        """What the edit is, wherever its line goes."""
        return self.module.removeprefix("gpt2."), self.function, self.before, self.after

    def __str__(self):
        path = self.module.replace(".", "/")
        return f"{path}.py:{self.line}  {self.function}:  {self.before}  ->  {self.after}"


class Source:
    """A module's functions in memory, each with its place in the file."""

    def __init__(self, module: str):
        self.module = importlib.import_module(module)
        self.path = self.module.__file__
        self.tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def live(self) -> dict[ast.AST, list]:
        """Function node -> the function objects made from it."""
        found: dict[ast.AST, list] = {}
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, Function)]
        for f in gc.get_objects():
            if isinstance(f, types.FunctionType) and f.__code__.co_filename == self.path:
                node = self._node(f.__code__, nodes)
                if node is not None:
                    found.setdefault(node, []).append(f)
        return found

    def _node(self, code, nodes):
        """The innermost function of that name around the code's last instruction with a place."""
        placed = [p for p in code.co_positions() if None not in p]
        if not placed:
            return None
        line, _, column, _ = placed[-1]
        around = [
            n
            for n in nodes
            if getattr(n, "name", "<lambda>") == code.co_name
            and (n.lineno, n.col_offset) <= (line, column) <= (n.end_lineno, n.end_col_offset)
        ]
        return max(around, key=lambda n: (n.lineno, n.col_offset), default=None)

    def enclosing(self, node) -> list[ast.AST]:
        """The functions around a node that exist in memory, the node itself included."""
        found = []
        while node is not None:
            if node in self.live:
                found.append(node)
            node = self.parents.get(node)
        return found

    def name(self, node) -> str:
        """The function's name, or the first words of the statement that a lambda stands in."""
        if isinstance(node, ast.FunctionDef):
            return node.name
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
            return f"{ast.unparse(node.value.func)}({ast.unparse(node.value.args[0])})"
        return getattr(node, "name", "<lambda>")


_sources: dict[str, Source] = {}


def source(module: str) -> Source:
    if module not in _sources:
        _sources[module] = Source(module)
    return _sources[module]


# ---- Where mistakes are planted --------------------------------------------------------------------------

LAYERS = ("encoder", "layernorm", "matmul", "attention", "gelu", "residual", "crossentropy")
LAYERS += ("gelu_erf", "relu", "scaled_attention", "silu")
MODEL = ("backward_pass", "_loss_backward", "block_backward", "through", "_announce", "backward")
TABLE = ("elementwise", "reduce", "matrix", "shape", "index", "linalg", "fft")


def of_layers() -> list[Mutant]:
    """The backward of each layer, matmul's naive one included."""
    found = []
    for layer in LAYERS:
        s = source(f"gpt2.layers.{layer}")
        for node in s.live:
            if "backward" in s.name(node):
                found += mutants_of(s, node, frozenset([s.name(node).partition("_backward")[0]]))
    return found


def of_model() -> list[Mutant]:
    return [
        m
        for s in map(source, ("gpt2.model.gpt2", "gpt2.model.backward"))
        for node in s.live
        if s.name(node) in MODEL
        for m in mutants_of(s, node, frozenset(["model"]))
    ]


def of_table() -> list[Mutant]:
    """Every derivative in the table of ops, with the helpers in its file."""
    from gpt2.autodiff.ops import OPS

    rows: dict[ast.AST, set] = {}  # function node -> the rows it serves
    where: dict[ast.AST, Source] = {}
    for name, op in OPS.items():
        if not samples_of(name) or op.needs is not None:
            continue
        for column in RULES:
            f = getattr(op, column)
            if isinstance(f, types.FunctionType):
                for s, node in _reached(f):
                    rows.setdefault(node, set()).add(name)
                    where[node] = s
    return [m for node, names in rows.items() for m in mutants_of(where[node], node, frozenset(names))]


def of_chain() -> list[Mutant]:
    """The chain rule, which applies the table: all of chain_rule.py but how it words what a rule cannot do,
    and the two functions of differentiate.py that pull a gradient through one node.
    """
    steps, whole = source("gpt2.autodiff.derive.chain_rule"), source("gpt2.autodiff.derive.differentiate")
    places = [(steps, node) for node in steps.live if steps.name(node) != "errors_at"]
    places += [(whole, node) for node in whole.live if whole.name(node) in ("pull", "transposed_jvp")]
    return [m for s, node in places for m in mutants_of(s, node, frozenset(["chain"]))]


GROUPS = {"layers": of_layers, "model": of_model, "table": of_table, "chain": of_chain}


def _reached(f) -> Iterator[tuple[Source, ast.AST]]:
    """The nodes of a function and of the functions in its file that it uses."""
    s = source(f.__module__)
    nodes = {g: node for node, made in s.live.items() for g in made}
    todo, seen = [f], set()
    while todo:
        g = todo.pop()
        if g in seen or g not in nodes:
            continue
        seen.add(g)
        yield s, nodes[g]
        used = [g.__globals__.get(name) for name in sorted(_names(g.__code__))]
        cells = [c.cell_contents for c in g.__closure__ or ()]
        todo += [h for h in used + cells if isinstance(h, types.FunctionType)]


def _names(code) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


# ---- The edits ------------------------------------------------------------------------------------------


def mutants_of(s: Source, function: ast.AST, tests: frozenset) -> list[Mutant]:
    found = []
    for at, node in _walk(function):
        instead = list(edits(node, function))
        if isinstance(function, ast.Lambda) and len(at) == 1:
            instead += _results(node)
        for new in instead:
            new = ast.fix_missing_locations(ast.copy_location(new, node))
            before, after = _text(node), _text(new)
            if before != after:
                where = s.module.__name__, s.name(function), node.lineno
                found.append(Mutant(*where, before, after, function, at, new, tests))
    return found


def _text(node) -> str:
    """A node's source; of an `if` only its condition."""
    return f"if {ast.unparse(node.test)}:" if isinstance(node, ast.If) else ast.unparse(node)


def _walk(function) -> Iterator[tuple[tuple, ast.AST]]:
    """(path, node) of everything in a function that computes: no docstrings, defaults or error messages."""
    places = [None] if isinstance(function, ast.Lambda) else range(len(function.body))
    stack = [((("body", i),), _get(function, "body", i)) for i in reversed(places)]
    while stack:
        at, node = stack.pop()
        if isinstance(node, SKIPPED):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield at, node
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            continue  # one number
        below = []
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                below.append((name, None))
            elif isinstance(value, list):
                below += [(name, i) for i, v in enumerate(value) if isinstance(v, ast.AST)]
        stack += [((*at, step), _get(node, *step)) for step in reversed(below)]


def _get(node, name, i):
    value = getattr(node, name)
    return value if i is None else value[i]


def edits(node, function) -> Iterator[ast.AST]:
    """Replacements of a node."""
    kind = type(node)
    if kind is ast.BinOp:
        op = type(node.op)
        if op in EXCHANGED:
            yield ast.BinOp(node.left, EXCHANGED[op](), node.right)
            yield node.left
            yield node.right if op is not ast.Sub else ast.UnaryOp(ast.USub(), node.right)
        if op in (ast.Sub, ast.Div, ast.MatMult, ast.Pow):
            yield ast.BinOp(node.right, node.op, node.left)
    elif kind is ast.UnaryOp and isinstance(node.op, ast.USub):
        yield node.operand
        if isinstance(node.operand, ast.Constant):
            yield ast.UnaryOp(ast.USub(), ast.Constant(node.operand.value + 1))
    elif kind is ast.Constant:
        value = node.value
        if isinstance(value, bool):
            yield ast.Constant(not value)
        elif isinstance(value, (int, float)):
            yield ast.Constant(value + 1)
        if type(value) in (int, float, complex) and value:
            yield ast.UnaryOp(ast.USub(), ast.Constant(value))
    elif kind is ast.Compare and len(node.ops) == 1:
        yield ast.Compare(node.left, [FLIPPED[type(node.ops[0])]()], node.comparators)
    elif kind is ast.IfExp:
        yield node.body
        yield node.orelse
    elif kind is ast.If:
        yield ast.If(ast.Constant(True), node.body, node.orelse)
        yield ast.If(ast.Constant(False), node.body, node.orelse)
    elif kind is ast.Call:
        yield from _call(node)
    elif kind is ast.Slice:
        if node.lower is not None:
            yield ast.Slice(None, node.upper, node.step)
        if node.upper is not None:
            yield ast.Slice(node.lower, None, node.step)
    elif kind is ast.AugAssign:
        if type(node.op) in EXCHANGED:
            yield ast.AugAssign(node.target, EXCHANGED[type(node.op)](), node.value)
        target = copy.deepcopy(node.target)
        target.ctx = ast.Store()
        yield ast.Assign([target], node.value)
    elif kind is ast.Return and node.value is not None:
        for value in _results(node.value):
            yield ast.Return(value)
    elif kind is ast.Lambda:
        for value in _results(node.body):
            yield ast.Lambda(node.args, value)
    elif kind is ast.Name and isinstance(node.ctx, ast.Load):
        names = [a.arg for a in function.args.args]
        if node.id in names and len(names) > 1:
            yield ast.Name(names[(names.index(node.id) + 1) % len(names)], ast.Load())


def _call(node):
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in FORGOTTEN:
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name and name not in PLUMBING and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]
    if len(node.args) == 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        yield ast.Call(node.func, node.args[::-1], node.keywords)


def _results(value):
    """Other results: negated, exchanged, dropped."""
    if not isinstance(value, ast.Tuple):
        if isinstance(value, (ast.BinOp, ast.Call, ast.Name)):
            yield ast.UnaryOp(ast.USub(), value)
        return
    for i, element in enumerate(value.elts):

        def with_element(new, i=i):
            return ast.Tuple([*value.elts[:i], new, *value.elts[i + 1 :]], ast.Load())

        if isinstance(element, (ast.BinOp, ast.Name)) or (
            isinstance(element, ast.Call) and getattr(element.func, "id", "") not in PLUMBING
        ):
            yield with_element(ast.UnaryOp(ast.USub(), element))
        if not isinstance(element, ast.Starred) and getattr(element, "value", "") is not None:
            yield with_element(ast.Constant(None))
    if len(value.elts) > 1:
        yield ast.Tuple([value.elts[1], value.elts[0], *value.elts[2:]], ast.Load())


# ---- Planting one ----------------------------------------------------------------------------------------


class Unplantable(Exception):
    """The edit takes away a variable that the function object is bound to."""


@contextmanager
def planted(m: Mutant):
    """Within this context every function made from the mutant's node carries its mistake."""
    s = source(m.module)
    changed = []
    parent, (name, i) = m.node, m.at[-1]
    for step in m.at[:-1]:
        parent = _get(parent, *step)
    old = _get(parent, name, i)
    try:
        _set(parent, name, i, m.new)
        try:
            for node in s.enclosing(m.node):
                for f in s.live[node]:
                    changed.append((f, f.__code__))
                    f.__code__ = _compiled(node, f, s.path)
        except (ValueError, SyntaxError) as error:
            raise Unplantable(str(error)) from None
        finally:
            _set(parent, name, i, old)
        yield
    finally:
        for f, code in changed:
            f.__code__ = code


def _set(node, name, i, new):
    if i is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[i] = new


def _compiled(node, f, path):
    """The code of a function's node, with the free variables that the function object has."""
    free = f.__code__.co_freevars
    if isinstance(node, ast.Lambda):
        inside = [ast.Return(node)]
    else:
        plain = copy.copy(node)
        plain.decorator_list = []
        inside = [plain]
        if node.name not in free:  # or a function that calls itself would be bound to it
            inside.insert(0, ast.Global([node.name]))
    arguments = ast.arguments([], [ast.arg(v) for v in free], None, [], [], None, [])
    factory = ast.FunctionDef("factory", arguments, inside, [], None, lineno=1, col_offset=0)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    outer = next(c for c in compile(module, path, "exec").co_consts if isinstance(c, types.CodeType))
    return next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == f.__name__)


# ---- Mistakes that change no gradient ----------------------------------------------------------------------


def explained() -> dict[tuple, tuple[str, int]]:
    """(module, function, before, after) -> why it survives rightly, and how many do; None stands for `*`.

    Each row of survivors.txt was judged by hand.

        # module below gpt2, function
        before -- after -- why the gradient stays right -- how many such mistakes survive, if not one

    `*` stands for any text, and a reason in capitals is spelled out in the first section. The number is
    compared by tests/long/mutate.py, as an edit written like this one may stand elsewhere in the function,
    where it has to be caught.
    """
    found, table = {}, sections(str(Path(__file__).with_name("survivors")))
    reasons = dict(line.split(" -- ") for line in table.pop("reasons"))
    for where, lines in table.items():
        for line in lines:
            before, after, why, *count = line.split(" -- ")
            edit = (None if text == "*" else text for text in (before, after))
            found[(*where.split(), *edit)] = reasons.get(why, why), int(*count or [1])
    return found


EXPLAINED = explained()


def explanation(mutant):
    """The key of EXPLAINED that the mutant fits, or None."""
    for key in EXPLAINED:
        if all(k is None or k == part for k, part in zip(key, mutant.key)):
            return key
    return None
