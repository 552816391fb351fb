"""autograd.scipy: SciPy's modules, where SciPy is installed."""

from . import integrate, linalg, misc, signal, special, stats

__all__ = ["integrate", "linalg", "misc", "signal", "special", "stats"]
