"""The layers at training sizes: gpt2/layers/cases.py in the shapes of GPT-2 124M.

matmul appears in all five shapes of a step.
"""

from dataclasses import replace

from gpt2.errors import UserError
from gpt2.layers.cases import Sizes, at

C, NH, V = 768, 12, 50257
# Of results, relative to their norm: float32 sums of up to 50257 terms in different orders
TOLERANCE = 1e-4


def cases(B, T, C=C, NH=NH, V=V):
    """Name -> Case for a batch of B sequences of T tokens.

    C channels, NH heads, V words in the vocabulary: those of GPT-2 124M unless given.
    """

    def row(name, C=C, OC=C):
        layer = name.partition("-")[0]
        return replace(at(Sizes(B=B, T=T, C=C, OC=OC, NH=NH, V=V, max_t=T))[layer], name=name)

    rows = [
        row("encoder"),
        row("layernorm"),
        row("matmul-qkv", OC=3 * C),
        row("matmul-attproj"),
        row("matmul-fc", OC=4 * C),
        row("matmul-fcproj", C=4 * C),
        replace(row("matmul-head"), shapes=((B, T, C), (V, C), None)),
        row("attention"),
        row("gelu", C=4 * C),
        row("residual"),
        row("crossentropy"),
    ]
    return {case.name: case for case in rows}


def find_batch(name):
    """(B, T) of a name such as B4T64. Raises UserError for others."""
    B, t, T = name.removeprefix("B").partition("T")
    if not (name.startswith("B") and t and B.isdecimal() and T.isdecimal() and int(B) and int(T)):
        raise UserError(f"{name!r} is not a batch such as B4T64: 4 sequences of 64 tokens")
    return int(B), int(T)
