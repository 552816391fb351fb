"""Detect changes of what a model's own layers read besides their arguments: globals, closures, attributes.

    K = {"k": 1.0}
    GPT2(config, layers={"gelu": lambda inp: inp * K["k"]})

Compiled programs contain the values of when they were compiled. So the layers are run once on small inputs,
and what they read is recorded in an Environment, which is compared before each step.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2.model.description import Description
from gpt2.model.fitting import plain


class Environment:
    """What the own layers and the own block of a Description read besides their arguments.

    results   their outputs for trial inputs, compared if a layer does something that cannot be followed (it
              prints, or counts its calls)
    """

    def __init__(self, d: Description) -> None:
        self.d = d
        self.results: list[np.ndarray] = []
        self._guards, self._without_arrays, self._followed = [], [], True
        for function, args, static, others in _calls(d):
            with np.errstate(all="ignore"):
                outputs, reads = ad.watch(functools.partial(function, *args, **static), function, *others)
            self.results += _arrays(outputs)
            guard = reads.guard()
            self._followed &= guard.trouble is None
            if guard.trouble is None:
                self._guards.append(guard)
                self._without_arrays.append(reads.guard(arrays=False))

    def unchanged(self, arrays: bool = False) -> bool:
        """Whether all of it is unchanged. arrays: including the values of arrays, which are arguments of the
        programs in this process, so that they may change without compiling again.
        """
        guards = self._guards if arrays else self._without_arrays
        return all(guard.holds() for guard in guards) and (self._followed or self.matches(self._run_again()))

    def matches(self, results: list[np.ndarray]) -> bool:
        """Whether these are the results for the trial inputs, up to rounding."""
        return len(results) == len(self.results) and all(
            a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in zip(results, self.results)
        )

    def _run_again(self):
        with np.errstate(all="ignore"):
            return [a for f, args, static, _ in _calls(self.d) for a in _arrays(f(*args, **static))]


def _calls(d: Description) -> Iterator[tuple[Any, tuple, dict, tuple]]:
    """(function, arguments, keywords, other objects that it calls) of own layers and block."""
    rng = np.random.default_rng(0)
    T = min(3, d.config.block_size)
    for slot, layer in d.own.items():
        for place in d.places_of(slot)[:1]:
            inputs, static = tuple(d.inputs_at(place, 2, T, rng)), d.calls[place].static
            yield layer.forward, inputs, static, ()
            if layer.backward is not None:
                out, saved = layer.forward(*inputs, **static)
                yield layer.backward, (np.array(out), saved), static, ()
    if d.block is not None:
        x, *tensors = d.inputs_at("block", 2, T, rng)
        layers = dict(plain(d.layers))
        named = dict(zip(d.block_tensors, tensors))
        yield d.block.forward, (x, named, layers, d.config), {}, (layers, d.config)


def _arrays(result: Any) -> list[np.ndarray]:
    """Copies of the arrays in a layer's result: its output, with or without saved values, or gradients."""
    parts = result if isinstance(result, tuple) else (result,)
    return [np.array(a) for a in parts if isinstance(a, np.ndarray)]
