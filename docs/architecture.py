"""The page docs/architecture.md and its picture, from the imports of gpt2: `python -m docs.architecture`.

The sentences stand here, the arrows in the source. A test compares page and picture with what this makes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from docs import house
from docs.picture import Panel, draw

PAGE = house.ROOT / "docs" / "architecture.md"
PICTURE = house.ROOT / "docs" / "pictures" / "architecture.svg"


class Room(NamedTuple):
    """A few words for the picture, and a sentence for the page."""

    words: str
    sentence: str


# The parts of gpt2, in the order in which a run comes to them; then commands, and what all of them need
PARTS = {
    "train": Room(
        "the program",
        "Everything between a command line and a trained model: flags, settings, building, the loop, "
        "and the progress reports.",
    ),
    "data": Room(
        "text to tokens", "Corpora become tokens: tokenizers, token files, and the batches of a run."
    ),
    "weights": Room(
        "files of models",
        "Models in files: the checkpoints of a run, and those of Hugging Face and llm.c, read and written.",
    ),
    "storage": Room(
        "files of any kind",
        "Atomic files, locks, downloads, the folders of runs and their metrics.",
    ),
    "layers": Room(
        "the mathematics",
        "The mathematics in plain NumPy: one file a layer, its forward and below it the backward by hand.",
    ),
    "autodiff": Room(
        "the compiler",
        "The compiler, which derives a backward from a forward and makes fast programs of both. "
        "It imports nothing else of gpt2; its packages are listed below.",
    ),
    "backward": Room(
        "by hand or derived",
        "The seam: for each layer the backward by hand or the derived one, compiled or as written.",
    ),
    "machine": Room("machine", "Free memory, in a container too, and whether other programs are at work."),
    "model": Room(
        "GPT-2",
        "What GPT-2 is and does: sizes, tensors, layers, own ones too; forward, decoder, adapters, AdamW.",
    ),
    "parallel": Room(
        "many workers",
        "Several workers: threads with shares of the batch, processes with shared memory, MPI ranks.",
    ),
    "sampling": Room(
        "text from a model", "Text from a model, token by token: choices among tokens, stop strings."
    ),
    "library": Room("load and save", "`load`, `save` and `load_tokenizer`, for your own program."),
    "commands": Room(
        "gpt2 sample, ...",
        "One module a command: sample, evaluate, plot, convert, explain, check, bench.",
    ),
    "cli": Room(
        "command lines", "What all commands share: flags, typing errors, examples, the width of a terminal."
    ),
    "output": Room(
        "what is printed",
        "Standard output: its colours, and what to do when it goes away while a program runs, or fills up.",
    ),
    "errors": Room("for people", "UserError, the one-line error for users, and the exit status."),
    "hints": Room("what to type", "Commands quoted in messages, spelled for the user's shell."),
    "__main__": Room("", "`gpt2`, or `python -m gpt2`: the list of commands, started by name."),
}

# The rooms of gpt2/autodiff, in the order in which a function goes through them
STAGES = {
    "transforms": Room(
        "grad, vjp, vmap", "What derives: `grad`, `vjp`, `jvp`, `hvp`, `jacobian`, `hessian`; and `vmap`."
    ),
    "loops": Room("scan, while", "Loops whose body is recorded once: `scan`, `while_loop`, `parallel_map`."),
    "implicit": Room("equations", "`root`, `fixed_point` and `custom_linear_solve`, with their derivatives."),
    "custom": Room(
        "your own rules", "`custom_vjp`, `custom_jvp`, `checkpoint`, `stop_gradient`, `callback`."
    ),
    "programs": Room(
        "a call to a program",
        "Derived functions: a call's types lead to a program, which is made, kept, found again and run.",
    ),
    "reuse": Room(
        "still the same?",
        "Whether a recording may be used again: what the function depended on, and whether that still holds.",
    ),
    "record": Room(
        "NumPy to graph",
        "NumPy becomes a graph: the function runs once on values that note what is done with them.",
    ),
    "pipeline": Room(
        "the row of stages", "Puts the stages that follow in a row, in one place for all who compile."
    ),
    "derive": Room(
        "graph to gradient", "A graph becomes its derivative, backwards or forwards, by the rules of the ops."
    ),
    "passes": Room(
        "smaller graphs", "A graph becomes a smaller and faster one that means the same, by many local rules."
    ),
    "keep": Room(
        "keep or recompute",
        "Splits forward from backward, and chooses with a minimum cut which values are handed over.",
    ),
    "emit": Room(
        "graph to source",
        "A graph becomes NumPy source: regions that stay in cache, a plan for memory, and lines that "
        "a person can read.",
    ),
    "run": Room(
        "while it runs",
        "What programs call while they run: threads, split products, recycled results.",
    ),
    "ops": Room(
        "the table of ops",
        "The table of ops: one row an op, with its type, its NumPy source, its derivative and its tests "
        "(docs/ops.md).",
    ),
    "graph": Room("nodes with types", "The graph itself: nodes with types, and how they print."),
    "tree": Room(
        "nested containers",
        "Tuples, lists, dicts and classes of arrays, taken apart and put together again: `ad.tree`.",
    ),
    "hidden": Room(
        "exchanged numbers",
        "Constants that change without compiling again: recordings that differ only in them share a program.",
    ),
    "same": Room("equal to the bit", "Whether two values are equal to the last bit."),
    "atoms": Room("plain values", "Types treated as plain values: numbers, strings, None."),
    "doors": Room("", "Loads a room beside the core, where one is first used."),
    "undo": Room("undoing", "Restores state on any exit, Ctrl-C included."),
    "switches": Room("options", "What may be switched off or chosen: `ad.options`."),
    "errors": Room("what goes wrong", "What may go wrong, with the line of the user's function."),
}

# The rooms beside the compiler's core, each to be understood alone
EXTRAS = {
    "show": Room(
        "text and pictures",
        "Programs and graphs for people: `ad.source`, `ad.stages`, `ad.drawing`, and what a notebook shows.",
    ),
    "check": Room(
        "check gradients",
        "`check_grads` and `check_backward`: compares derivatives with differences, and guesses the mistake.",
    ),
    "random": Room(
        "random draws", "Random draws as inputs of a program, and derivatives of samples by their parameters."
    ),
    "sparse": Room("sparse Jacobians", "`sparse_jacobian`: columns that never meet share one pass."),
    "enzyme": Room(
        "Enzyme's calls", "`ad.autodiff`: Enzyme's calling convention, which adds gradients into buffers."
    ),
    "scipy": Room(
        "SciPy's functions",
        "SciPy's modules with derivatives, where SciPy is installed: `integrate`, `interpolate`, `linalg`, "
        "`ndimage`, `optimize`, `signal`, `sparse`, `special`, `stats`.",
    ),
    "interop": Room(
        "PyTorch, JAX",
        "Functions of PyTorch and JAX with their gradients, and functions derived here as theirs.",
    ),
    "compat": Room(
        "other tools' names",
        "Names of other tools with this compiler behind them: `compat.autograd` has those of HIPS autograd.",
    ),
}

ROOMS = {"gpt2": PARTS, "gpt2/autodiff": {**STAGES, **EXTRAS}}

BESIDE = {
    "train.py": "trains from a checkout: a door to gpt2/train",
    "data/": "`python -m data`: corpora by name, and where their text lies; a door to gpt2/data",
    "tests/": "tests, in folders named after the rooms that they test; helpers in tests/support, long runs "
    "in tests/long",
    "examples/": "notebooks, and a model that is not GPT-2: Llama from forwards alone (docs/llama.md)",
    "bench/": "benchmarks and studies, which know gpt2 and nothing of the tests",
    "docs/": "these pages, and the scripts that make some of them",
    ".ci/run": "what has to pass before a change goes in",
}

# One meaning each, in names and prose: word -> (the class or function that it names, what it means)
WORDS = {
    "Recording": (
        "autodiff/record/record.py",
        "the graph of one run of a function, and what that run looked at.",
    ),
    "World": ("autodiff/reuse/world.py", "what a function reads besides its arguments."),
    "Guard": ("autodiff/reuse/guard.py", "a test whether the world of a recording is as it was."),
    "Path": (
        "autodiff/reuse/conditions.py",
        "the way that a recording took through `if` and `while` (a key path leads to a leaf of a tree).",
    ),
    "Tree": ("autodiff/tree/structure.py", "nested containers of arrays, as in `ad.tree`."),
    "Wiring": (
        "autodiff/programs/wiring.py",
        "a graph, where its inputs come from in a call, and how its outputs make up the result.",
    ),
    "Term": (
        "autodiff/passes/collect.py",
        "a number times factors, element by element. A product is always one of matrices or vectors.",
    ),
    "Region": ("autodiff/emit/regions.py", "ops that run together, block of rows after block of rows."),
    "BufferPlan": ("autodiff/emit/buffers.py", "the plan: in which memory each value lives, and how long."),
    "Fusion": ("autodiff/emit/numexpr.py", "elementwise ops that numexpr computes as one expression."),
    "Place": ("model/config.py", "where a layer stands in GPT-2: `encoder`, `ln1`, `qkv`, ..."),
    "LayerCall": ("model/description.py", "a layer at its place, with the tensors that it is given there."),
    "ModelLayer": ("backward.py", "a layer as a model runs it: compiled, or as written."),
    "Step": ("train/step.py", "one update of the parameters by the optimizer."),
}

# What to read first, in this order
FIRST = {
    "gpt2/layers/layernorm.py": "a layer: its forward, and below it its backward by hand",
    "gpt2/model/forward.py": "the forward of GPT-2, layer by layer",
    "gpt2/model/backward.py": "its backward, the same in reverse",
    "gpt2/train/loop.py": "training: validations, samples, steps and checkpoints",
    "gpt2/autodiff/ops/matrix.py": "ops of the compiler with their rules: products of matrices",
    "gpt2/autodiff/passes/algebra.py": "a pass of the compiler: rules that make a graph smaller",
}

# Calls from the outside in: title -> (file, function, what it does there)
CALLS = {
    "A training step, `python train.py`": [
        (
            "gpt2/train/program.py",
            "main",
            "reads the command line, and chooses kernels before NumPy is loaded",
        ),
        ("gpt2/train/console.py", "run", "prints, and turns signals and errors into an exit status"),
        ("gpt2/train/session.py", "opened", "takes the folder, resumes"),
        ("gpt2/train/resolve.py", "resolve", "makes the parts of a Run: text, model, AdamW, team"),
        ("gpt2/train/loop.py", "loop", "steps, validations, checkpoints in their order"),
        ("gpt2/train/run.py", "train_step", "one step of a Run: batches, learning rate"),
        (
            "gpt2/parallel/team.py",
            "step_on",
            "gradients of all workers, then the update; shares.py and processes.py have their own",
        ),
        (
            "gpt2/model/gpt2.py",
            "loss_and_grads",
            "by default the whole loss as one program (`self.program.both`); "
            "with `--backward manual` or `auto` model/forward.py and model/backward.py, layer by layer",
        ),
        ("gpt2/model/optimizer.py", "update", "AdamW in blocks"),
    ],
    "A first gradient, `ad.grad(f)(x)`": [
        ("gpt2/autodiff/transforms/gradient.py", "grad", "returns a derived function"),
        ("gpt2/autodiff/programs/derived.py", "slow", "looks for a program that fits the call"),
        (
            "gpt2/autodiff/programs/derived.py",
            "built",
            "makes one where there is none, by the steps that follow",
        ),
        (
            "gpt2/autodiff/record/record.py",
            "record",
            "runs f once on values that note what is done with them",
        ),
        ("gpt2/autodiff/derive/differentiate.py", "gradient_graph", "the chain rule over the recorded graph"),
        (
            "gpt2/autodiff/passes/__init__.py",
            "simplify",
            "rules of the passes, until none applies; before the derivation and after it",
        ),
        ("gpt2/autodiff/pipeline.py", "emitted", "the last stage: a callable program"),
        (
            "gpt2/autodiff/emit/source.py",
            "emit",
            "its NumPy text; emit/scalar.py writes that for floats alone",
        ),
    ],
}

HEAD = """\
# The map

Find the file that you want to read or change, and see what it may import.

## Read these six files first

Some {lines:,} lines: a layer of GPT-2, its forward and backward, how it is trained, and one rule and one pass
of the compiler.

{files}
## Two calls, followed

Who calls whom, from the command to the numbers. A test looks for each function in its file.

{calls}
## The rooms

Made by `python -m docs.architecture`, as is the picture. A test fails when either is out of date, or a
room is missing here.

![The rooms of gpt2 and of its compiler, and their imports](pictures/architecture.svg)

An arrow leads from a room to one that it imports; arrows that follow from others are left out. All of them
point down: no two rooms need each other, and no import hides in a function without a reason. pyproject.toml
has the order of the rooms, which `lint-imports` (import-linter) checks; `python -m tests.house` prints all
arrows.

"""

RUN = """\
## gpt2, in the order of a run

`python train.py` reads flags and settings, fetches a text, makes a model of layers, and repeats: a batch, the
loss and its gradients, an optimizer step.

"""

COMPILE = """\
## gpt2/autodiff, in the order of a call

`ad.grad(f)(x)` records `f` as a graph, derives the graph of its gradient, simplifies that, writes it out as
NumPy and runs it; the next call with the same types finds the program made. docs/compiler.md follows one
example through all stages, docs/autodiff.md is the guide for users.

These rooms are the core, some {core:,} lines. Read `graph.py`, `ops/`, `record/`, `derive/`, `passes/`,
`emit/`, `programs/` and `transforms/` in this order, and the others when one of these leads there.

"""

EXTRA = """\
## Beside the core

Some {extra:,} lines that the core does not import, and that need not be read to understand it: it loads one
of them by name (doors.py) where it is used first. import-linter checks that; a test runs the core without.

"""


MEANINGS = """\
## Words with one meaning

Names, texts and comments use them in these senses. One word has two, as both are names of others: `matmul` is
NumPy's product of matrices, and among layers llm.c's name of the linear layer.

"""


def page() -> str:
    parts = [
        head() + RUN + listed(PARTS, "gpt2"),
        COMPILE.format(core=lines_of(STAGES)) + listed(STAGES, "gpt2/autodiff"),
        EXTRA.format(extra=lines_of(EXTRAS)) + listed(EXTRAS, "gpt2/autodiff"),
        MEANINGS + "".join(item(word, f"{text} `{file}`") for word, (file, text) in WORDS.items()),
        "## Beside gpt2\n\n" + "".join(item(name, words) for name, words in BESIDE.items()),
    ]
    return "\n".join(parts)


def head() -> str:
    lines = sum(len((house.ROOT / path).read_text(encoding="utf-8").splitlines()) for path in FIRST)
    files = "".join(item(path, f"{words}.") for path, words in FIRST.items())
    calls = "\n".join(
        f"{title}:\n\n" + "".join(item(f"{file}: {name}", f"{words}.") for file, name, words in steps)
        for title, steps in CALLS.items()
    )
    return HEAD.format(lines=round(lines, -2), files=files, calls=calls)


def lines_of(rooms: Mapping[str, Room]) -> int:
    """How many lines the rooms have, to the nearest thousand."""
    folder = house.ROOT / "gpt2" / "autodiff"
    files = [f for name in rooms for f in ((folder / name).rglob("*.py"), [folder / f"{name}.py"])]
    found = [path for some in files for path in some if path.is_file()]
    return round(sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found), -3)


def listed(rooms: Mapping[str, Room], folder: str) -> str:
    lines = []
    for name, room in rooms.items():
        inside = (house.ROOT / folder / name).is_dir()
        lines.append(item(f"{folder}/{name}{'/' if inside else '.py'}", room.sentence))
    return "".join(lines)


def item(name: str, words: str) -> str:
    text = f"- `{name}`: {words}"
    return (
        textwrap.fill(text, 112, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        + "\n"
    )


def picture() -> str:
    return draw(panels())


def panels() -> list[Panel]:
    arrows = house.arrows()
    return [
        panel("gpt2", arrows, PARTS, 1, lit=frozenset({"autodiff"})),
        panel("inside gpt2/autodiff", arrows, ROOMS["gpt2/autodiff"], 2),
    ]


def panel(title: str, arrows: house.Arrows, rooms: Mapping[str, Room], depth: int, lit=frozenset()) -> Panel:
    """The rooms below gpt2 (depth 1) or gpt2.autodiff (2) that have words, with the arrows between them."""
    words = {name: room.words for name, room in rooms.items() if room.words}
    package = ["gpt2", "autodiff"][:depth]

    def room_of(module: str) -> str | None:
        parts = module.split(".")
        name = parts[depth] if len(parts) > depth and parts[:depth] == package else None
        return name if name in words else None

    found = house.between(arrows, room_of)
    return Panel(title, {name: set(found.get(name, ())) for name in words}, words, lit)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
