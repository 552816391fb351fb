"""Sources of a layer or of the whole model: as written by hand, and as derived by the compiler."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2.backward import whole
from gpt2.commands.explain.subject import own
from gpt2.layers import Layer
from gpt2.layers.cases import Sizes
from gpt2.model.backward import backward_pass, block_backward
from gpt2.model.config import GPT2Config
from gpt2.model.description import Description
from gpt2.model.forward import block_forward, forward_pass, loss_fn

SHOWN = Sizes(B=4, T=64, C=768, NH=12, V=1024, OC=3072, max_t=1024)
WHOLE = GPT2Config(vocab_size=1024, block_size=64, n_layer=12, n_head=12, n_embd=768)


def readable(name: str, forward: Any, backward: Any) -> str:
    """Both graphs as source, with one import."""
    _, rest = ad.readable_source(backward, f"{name}_backward").split("\n\n\n", 1)
    return ad.readable_source(forward, f"{name}_forward") + "\n\n" + rest


def whole_source(file: str | None = None) -> tuple[str, str, str]:
    """The loss of GPT-2, or of a model with the layers of a file, as it is written; its backward by hand, and
    forward and backward as derived. A block stands once in each: the compiler makes a function of what it
    finds alike.
    """
    d = Description(WHOLE, layers=file)
    names = [*(name for name, _ in d.shapes), "tokens", "targets"]

    def loss(*arrays):
        params = dict(zip(names, arrays))
        return loss_fn(params, *arrays[-2:], config=WHOLE, layers=d.written, description=d)

    # names the inputs of the derived functions
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    vars(loss)["__signature__"] = inspect.Signature(parameters)
    tokens = np.zeros((SHOWN.B, SHOWN.T), np.int64)
    # never read, so their pages are never allocated
    zeros = [np.zeros(shape, WHOLE.dtype) for _, shape in d.shapes]
    forwards: list[Callable] = [loss_fn, forward_pass]
    backwards: list[Callable] = [backward_pass]
    if d.block is None:
        forwards.append(block_forward)
        backwards.append(block_backward)
    sources = {name: written_source(d.written[name]) for name in own(d)}
    titled = [[f"# {name}\n{texts[k]}" for name, texts in sources.items()] for k in range(2)]
    return (
        "\n\n".join([_sources(*forwards), *titled[0]]),
        "\n\n".join([_sources(*backwards), *titled[1]]),
        whole(loss).source(*zeros, tokens, tokens),
    )


def _sources(*functions: Callable) -> str:
    return "\n\n".join([inspect.getsource(f) for f in functions])


def written_source(layer: Layer) -> tuple[str, str]:
    """Source of the forward and of the manual backward; a comment in place of a missing one."""
    sources = []
    for function in (layer.forward, layer.backward):
        if function is None:
            sources.append("# None: this layer has only the derived backward.")
            continue
        try:
            sources.append(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
        except (OSError, TypeError):
            sources.append(f"# {function.__name__}: its source cannot be found.")
    return sources[0], sources[1]
