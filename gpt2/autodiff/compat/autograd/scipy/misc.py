"""autograd.scipy.misc: where logsumexp was once."""

from ....scipy.special import logsumexp

__all__ = ["logsumexp"]
