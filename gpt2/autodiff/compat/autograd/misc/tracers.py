"""autograd.misc.tracers: const_graph; all derived functions here keep their graphs anyway."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def const_graph(fun: Callable, *args: Any, **kwargs: Any) -> Callable:
    """functools.partial."""
    return functools.partial(fun, *args, **kwargs)


def full_graph(fun: Callable, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "autograd.misc.tracers.full_graph: ad.stages(f, *args) shows the graph that this compiler records"
    )
