"""autograd.scipy: the modules of gpt2.autodiff.scipy under autograd's names, if SciPy is installed.

Distributions can be imported as modules too (`import autograd.scipy.stats.norm as norm`), and `misc` has
logsumexp, as in old versions of SciPy.
"""

import sys
from types import ModuleType

from ....scipy import integrate, linalg, special, stats
from . import signal

__all__ = ["integrate", "linalg", "misc", "signal", "special", "stats"]

misc = ModuleType(f"{__name__}.misc", "autograd.scipy.misc: logsumexp.")
vars(misc).update(logsumexp=special.logsumexp)
for _module in (integrate, linalg, special, stats, misc):
    sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
for _name in ("beta", "chi2", "dirichlet", "gamma", "multivariate_normal", "norm", "poisson", "t"):
    sys.modules[f"{__name__}.stats.{_name}"] = getattr(stats, _name)
