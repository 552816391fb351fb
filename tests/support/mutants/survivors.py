"""Mistakes that change no gradient, and why. Each row of survivors.txt was judged by hand.

    # module below gpt2, function
    before -- after -- why the gradient stays right -- how many such mistakes survive, if not one

`*` stands for any text, and a reason in capitals is spelled out in the first section. tests/long/mutate.py
compares the number, as an edit written like this one may stand elsewhere in the function, where it has to be
caught.
"""

from __future__ import annotations

from tests.support.tables import sections


def explained() -> dict[tuple, tuple[str, int]]:
    """(module, function, before, after) -> why it survives rightly, and how many do; None stands for `*`."""
    found, table = {}, sections(__file__)
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
