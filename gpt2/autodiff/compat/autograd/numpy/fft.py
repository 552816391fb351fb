"""autograd.numpy.fft: numpy.fft."""

import numpy as _numpy

from ....record.interception import intercepted_in

globals().update(intercepted_in(_numpy.fft))
