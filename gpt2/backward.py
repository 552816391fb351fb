"""The seam: for each layer, the backward written by hand or the one derived by the compiler."""

from gpt2.errors import UserError
from gpt2.layers import LAYERS, Layer

MODES = ("manual", "auto")


def choose(spec="manual"):
    """The table of layers that a model runs with: a dict from name to Layer.

    spec is a mode for all layers, then exceptions, separated by commas: "manual", "auto",
    "manual,attention=auto". Raises UserError where a word of it is not known.
    """
    default, *exceptions = [part.strip() for part in spec.split(",")]
    modes = dict.fromkeys(LAYERS, _checked(default, spec))
    for part in exceptions:
        name, equals, mode = part.partition("=")
        if not equals or name not in LAYERS:
            raise UserError(
                f"backward {spec!r}: {part!r} is not LAYER=MODE, with LAYER one of {', '.join(LAYERS)}"
            )
        modes[name] = _checked(mode, spec)
    return {name: auto(LAYERS[name]) if mode == "auto" else LAYERS[name] for name, mode in modes.items()}


def _checked(mode, spec):
    if mode == "whole":
        raise _no_compiler("backward 'whole'")
    if mode not in MODES:
        raise UserError(f"backward {spec!r}: {mode!r} is not one of {', '.join(MODES)}, whole")
    return mode


def auto(layer: Layer) -> Layer:
    """The same layer with a backward that the compiler derives from layer.forward."""
    raise _no_compiler(f"auto backward of {layer.name}")


def _no_compiler(what):
    return UserError(f"{what}: derived backwards need gpt2.autodiff, not there yet; use 'manual'")
