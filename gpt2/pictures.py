"""How pictures look: colours, light and dark, matplotlib's style, and SVG that follows the browser."""

from contextlib import AbstractContextManager
from typing import Any

from gpt2.errors import UserError
from gpt2.hints import install

# Name -> (light, dark) colour. The light ones all differ, as `dark` looks them up.
PALETTE = {
    "paper": ("#ffffff", "#0d1117"),
    "panel": ("#f6f8fa", "#151b23"),
    "edge": ("#d0d7de", "#3d444d"),
    "text": ("#1f2328", "#e6edf3"),
    "soft": ("#57606a", "#9aa4af"),
    "own": ("#2563eb", "#58a6ff"),
    "lit": ("#dbeafe", "#1e3a5f"),
    "peer": ("#c3ccd6", "#4b5563"),
    "limit": ("#cf222e", "#ff7b72"),
    "green": ("#0d9488", "#2dd4bf"),
    "grey": ("#666f7a", "#a5adb6"),
    "orange": ("#d55e00", "#ff9a52"),
    "purple": ("#a0478f", "#e08fd0"),
    "brown": ("#8a6d00", "#e0c04c"),
    "sky": ("#3a8fc7", "#9fd4f5"),
    "keyword": ("#8250df", "#c4a3ff"),  # this and the following: source code as on GitHub
    "comment": ("#6e7781", "#8b949e"),
    "number": ("#0a5ca8", "#79c0ff"),
    "name": ("#953800", "#ffa657"),
}
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
SERIES = ("own", "limit", "grey", "green", "orange", "purple", "brown", "sky")
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",  # text as text, not as paths
    "svg.hashsalt": "gpt2",  # reproducible ids
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.monospace": ["Menlo", "Consolas", "DejaVu Sans Mono"],
    "font.size": 13,
    "text.color": LIGHT["text"],
    "axes.edgecolor": LIGHT["edge"],
    "axes.labelcolor": LIGHT["soft"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "grid.color": LIGHT["edge"],
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.4,
    "legend.labelspacing": 0.45,
    "legend.labelcolor": LIGHT["soft"],
}


def look() -> AbstractContextManager:
    """A context manager that sets matplotlib's style. Raises UserError without matplotlib."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise UserError(f"pictures need matplotlib: {install('matplotlib')}") from None
    return rc_context(LOOK)


def adaptive(text: str) -> str:
    """An SVG in light colours that turns dark in a browser's dark mode."""
    rules = [
        f'[style*="{how}: {light}"] {{ {how}: {dark} !important }}'
        for light, dark in PALETTE.values()
        for how in ("fill", "stroke")
    ]
    style = "@media (prefers-color-scheme: dark) { " + " ".join(rules) + " }"
    return text.replace("<defs>", f"<style>{style}</style>\n <defs>", 1)
