"""lstm: the loss of a small LSTM whose weight matrices are diagonal (ADBench's variant)."""

from functools import partial

import numpy as np

from bench.gradbench.function import Function, array
from bench.programs import formulas
from bench.programs.library import NUMPY
from gpt2 import autodiff as ad

loss = partial(formulas.lstm, NUMPY)


def _read(data):
    main, extra, state, sequence = (
        array(data[name]) for name in ("main_params", "extra_params", "state", "sequence")
    )
    return main, extra, state, 0.0, sequence


def _write(gradients):
    return np.concatenate([g.ravel() for g in gradients]).tolist()


FUNCTIONS = {
    "objective": Function(ad.compile(loss, pure=True), _read),
    "jacobian": Function(ad.grad(loss, argnums=(0, 1), pure=True), _read, _write),
}
