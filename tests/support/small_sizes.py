"""Sizes from which programs work otherwise, and small ones in their place: arrays of a few numbers then take
the paths of large ones, in blocks, in pieces, column by column.

    for module, name, n in SMALL_SIZES:
        monkeypatch.setattr(module, name, n)
"""

from gpt2.autodiff.emit import regions
from gpt2.autodiff.run import kernels, short

SMALL_SIZES = (
    (regions, "SMALL", 2),
    (regions, "BLOCK_BYTES", 400),
    (kernels, "PIECE", 4),
    (short, "FEWEST", 2),
)
_AS_THEY_ARE = [(module, name, getattr(module, name)) for module, name, _ in SMALL_SIZES]


def set_sizes(small: bool) -> None:
    """The small sizes, or those that are written in the modules, until the next call."""
    for module, name, n in SMALL_SIZES if small else _AS_THEY_ARE:
        setattr(module, name, n)
