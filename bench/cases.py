"""The layers at training sizes: tests/support/cases.py's rows once more, as large as in GPT-2 124M.

matmul stands here in the five shapes that a step runs it in.
"""

from gpt2.errors import UserError
from tests.support.cases import Case, Ids

C, NH, V = 768, 12, 50257


def cases(B, T, C=C, NH=NH, V=V):
    """Name -> Case for a batch of B sequences of T tokens, float32 when it draws its inputs.

    C channels, NH heads, V words in the vocabulary: those of GPT-2 124M unless given.
    """
    rows = [
        Case("encoder", "encoder", (Ids((B, T), V), (V, C), (T, C)), None),
        Case("layernorm", "layernorm", ((B, T, C), (C,), (C,)), None),
        Case("matmul-qkv", "matmul", ((B, T, C), (3 * C, C), (3 * C,)), None),
        Case("matmul-attproj", "matmul", ((B, T, C), (C, C), (C,)), None),
        Case("matmul-fc", "matmul", ((B, T, C), (4 * C, C), (4 * C,)), None),
        Case("matmul-fcproj", "matmul", ((B, T, 4 * C), (C, 4 * C), (C,)), None),
        Case("matmul-head", "matmul", ((B, T, C), (V, C), None), None),
        Case("attention", "attention", ((B, T, 3 * C),), None, {"num_heads": NH}),
        Case("gelu", "gelu", ((B, T, 4 * C),), None),
        Case("residual", "residual", ((B, T, C), (B, T, C)), None),
        Case("crossentropy", "crossentropy", ((B, T, V), Ids((B, T), V)), None),
    ]
    return {case.name: case for case in rows}


def find_layers(text):
    """Names of cases from a comma-separated list; "" is all of them, "matmul" its five shapes."""
    every = list(cases(1, 1))
    if not text:
        return every
    found = []
    for name in text.split(","):
        matching = [case for case in every if case == name or case.startswith(f"{name}-")]
        if not matching:
            raise UserError(f"--layers: no layer {name!r}, expected some of {', '.join(every)}")
        found += matching
    return found


def find_batch(name):
    """(B, T) of a name such as B4T64. Raises UserError where it reads otherwise."""
    B, t, T = name.removeprefix("B").partition("T")
    if not (name.startswith("B") and t and B.isdecimal() and T.isdecimal() and int(B) and int(T)):
        raise UserError(f"--sizes: {name!r} is not a batch such as B4T64: 4 sequences of 64 tokens")
    return int(B), int(T)
