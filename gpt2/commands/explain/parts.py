"""Collects what is shown of a layer: its sources, whether they agree, what they keep, all stages."""

import ast
import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.backward import options_for
from gpt2.commands.check import check_layer
from gpt2.commands.explain import sources
from gpt2.commands.explain.subject import subject


@dataclass(frozen=True)
class Explained:
    """All that is shown of a layer.

    derivation        formulas and references, from the docstring of its file; about is its first line
    derived, emitted  the derived forward and backward: readable, and as they run
    shapes            argument -> its type as text, for which the layer was compiled
    kept              bytes that the forward keeps for the backward besides its inputs: (manual, derived);
                      None for manual if there is no manual backward
    errors            comparison -> (largest scaled error, tolerance), in float64, at small sizes
    stages            (title, text) for each stage of the compiler
    file              the user's file that it is from; None for GPT-2's
    """

    name: str
    about: str
    derivation: str
    forward: str
    manual: str
    derived: str
    emitted: str
    shapes: dict
    kept: tuple
    errors: dict
    stages: list
    file: str | None = None


def explain(name: str, file: str | None = None) -> Explained:
    """Explain one of gpt2.layers.ALL_LAYERS, or a layer of a file; takes a fraction of a second."""
    case = subject(name, sources.SHOWN, "float32", file)
    layer, args, static = case.layer, case.inputs(), case.static
    if file is None:  # from the source, as python -OO drops it
        source = inspect.getsource(sys.modules[layer.forward.__module__])
        docstring = ast.get_docstring(ast.parse(source)) or ""
    else:
        docstring = inspect.getdoc(inspect.unwrap(layer.forward)) or f"of {file}"
    about, _, derivation = docstring.partition("\n")
    forward, manual = sources.written_source(layer)
    names = list(inspect.signature(layer.forward).parameters)
    shapes = {k: f"{a.dtype} {a.shape}" for k, a in zip(names, args)}
    pair: Any = ad.FixedPair(layer.forward, options_for(), name=name)
    entry, _ = pair.entry(args, static)
    kept = sum(node.nbytes for node in entry.graphs[0].outputs[1:] if node.op != "input")
    kept_by_hand = None
    if layer.backward is not None:
        saved = [a for a in layer.forward(*args, **static)[1] if isinstance(a, np.ndarray)]
        kept_by_hand = sum(a.nbytes for a in saved if not any(a is x for x in args))
    return Explained(
        name,
        about,
        derivation.strip("\n"),
        forward=forward,
        manual=manual,
        derived=sources.readable(name, *entry.graphs),
        emitted=entry.forward.source + "\n\n" + entry.backward.program.source,
        shapes={**shapes, **{k: str(v) for k, v in static.items()}},
        kept=(kept_by_hand, kept),
        errors=check_layer(name, file=file),
        stages=split(ad.stages(pair, *args, **static))[:-2],  # without those of both halves as one program
        file=file,
    )


MODEL = "model"


def explain_model(file: str | None = None, columns: int = 0) -> str:
    """The whole loss of GPT-2, or of a model with the layers of a file, as text: forward, manual backward and
    derived; side by side in `columns` characters, or for 0 one below the other, ready to run.
    """
    titles = ("forward", "backward, by hand", "derived by the compiler")
    head = f"{MODEL}: the whole model as one program; its blocks are one function, called in a loop"
    texts = list(zip(titles, sources.whole_source(file)))
    if columns:
        return "\n".join([*cli.wrapped(head, columns - 1), "", *cli.side_by_side(texts, columns)])
    return "\n\n".join([head, *(f"---- {title}\n\n{source.rstrip()}" for title, source in texts)])


def split(text: str) -> list[tuple[str, str]]:
    """The text of ad.stages as a list of (title, text)."""
    parts = re.split(r"^# (.+)\n\n", text, flags=re.MULTILINE)[1:]
    return [(title, body.rstrip()) for title, body in zip(parts[::2], parts[1::2])]
