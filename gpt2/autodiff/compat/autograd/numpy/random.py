"""autograd.numpy.random: numpy.random."""

import numpy as _numpy

globals().update({k: v for k, v in vars(_numpy.random).items() if not k.startswith("_")})
