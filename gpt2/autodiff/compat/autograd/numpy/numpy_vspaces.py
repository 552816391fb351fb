"""autograd.numpy.numpy_vspaces: the spaces of real and complex arrays, which are one class here."""

from ..core import VSpace

ArrayVSpace = VSpace
ComplexArrayVSpace = VSpace
