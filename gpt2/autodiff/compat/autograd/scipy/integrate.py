"""autograd.scipy.integrate: odeint, with derivatives by the adjoint equation.

A right-hand side without branches on values is recorded once, and has derivatives of any order
(gpt2.autodiff.scipy.integrate). One with branches runs as plain Python at every step, and has first
derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.integrate as _scipy

from ....scipy import integrate as _integrate
from ..core import defvjp_argnums, make_vjp
from ..misc import flatten
from ..tracer import primitive


@primitive
def _odeint(func: Callable, y0: Any, t: Any, func_args: tuple, **kwargs: Any) -> Any:
    return _scipy.odeint(func, y0, t, func_args, **kwargs)


def odeint(func: Callable, y0: Any, t: Any, args: Any = (), **kwargs: Any) -> Any:
    """scipy.integrate.odeint, differentiated with respect to y0, t and args."""
    try:
        return _integrate.odeint(func, y0, t, args, **kwargs)
    except _integrate.BranchingError:
        return _odeint(func, y0, t, args, **kwargs)


def _adjoint(func: Callable, y0: Any, t: Any, func_args: tuple, yt: Any, kwargs: dict) -> Callable:
    """g -> gradients for y0, t and the arguments, as one vector: backwards from time to time.

    Between two times the state y, its adjoint a, and integrals of a df/dt and a df/dargs run backwards as one
    system (Chen et al. 2018); at each time the gradient of that row is added to the adjoint.
    """
    T, D = np.shape(yt)
    vector, unflatten = flatten(func_args)

    def slope(y, t, vector):
        dy = func(y, t, *unflatten(vector))
        return np.stack(dy) if isinstance(dy, (list, tuple)) else dy

    def backwards(state, t, vector):
        y, a = state[:D], state[D : 2 * D]
        pull, dy = make_vjp(lambda x: slope(*x), (y, t, vector))
        return np.concatenate([dy, *(np.ravel(d) for d in pull(-a))])

    def pull(g):
        a = g[-1]
        d_args, d_t, d_start = np.zeros(np.size(vector)), [0.0] * T, 0.0
        for i in range(T - 1, 0, -1):
            d_t[i] = np.dot(slope(yt[i], t[i], vector), g[i])
            d_start = d_start - d_t[i]
            state = np.concatenate([yt[i], a, np.reshape(d_start, (1,)), d_args])
            state = _odeint(backwards, state, np.array([t[i], t[i - 1]]), (vector,), **kwargs)[1]
            a, d_start, d_args = state[D : 2 * D] + g[i - 1], state[2 * D], state[2 * D + 1 :]
        d_t[0] = d_start
        return a, np.stack(d_t), unflatten(d_args)

    return pull


def _vjp(argnums: list[int], ans: Any, args: tuple, kwargs: dict) -> Callable:
    func, y0, t, func_args = args
    pull = _adjoint(func, y0, t, func_args, ans, kwargs)

    def chosen(g):
        gradients = dict(zip((1, 2, 3), pull(g)))
        return [gradients[n] for n in argnums]

    return chosen


defvjp_argnums(_odeint, _vjp)
