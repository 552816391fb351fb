"""autograd.scipy.stats: scipy.stats with derivatives. Its distributions can be imported as modules, too."""

import sys

from ....scipy import stats as _module

_MODULES = ("beta", "chi2", "dirichlet", "gamma", "multivariate_normal", "norm", "poisson", "t")

for _name in _MODULES:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = getattr(_module, _name)


def __getattr__(name):
    return getattr(_module, name)


def __dir__():
    return dir(_module)
