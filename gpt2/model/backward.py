"""The backward of GPT-2 by hand: the forward pass (forward.py) in reverse, layer by layer.

Each layer's own backward, written by hand or derived, is in the table `layers`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpt2.model.description import Description
from gpt2.model.fitting import Layers
from gpt2.model.tensors import ranges_of


def backward_pass(saved: dict, scale: float, grads: "Gradients", d: Description, layers: Layers) -> None:
    """Gradient of scale * mean loss, written to grads tensor by tensor. Consumes `saved`."""
    dlogits = _loss_backward(saved, scale, d, layers)
    dx = grads.through(d, layers, "head", dlogits, saved)
    del dlogits  # (B, T, V), the largest array there is
    dx = grads.through(d, layers, "lnf", dx, saved)
    for l in reversed(range(d.config.n_layer)):
        if dx is None:  # nothing below this is trained
            break
        dx = block_backward(dx, saved["blocks"].pop(), l, grads, d, layers)
    # if wte is used twice, as embedding and as head, its gradients add up
    grads.through(d, layers, "encoder", dx, saved, again=d.calls["head"].tensors)


def _loss_backward(saved, scale, d, layers):
    """dlogits. Each loss that counts gets its share of the mean, the others nothing."""
    targets = saved.pop("targets")
    counted = targets >= 0
    dlosses = np.full(targets.shape, scale / max(1, np.count_nonzero(counted)), d.config.dtype)
    dlosses *= counted  # 0 for targets that do not count, whatever the layer's own backward makes of them
    logits = saved.pop("logits")  # not needed again, so dlogits may use their memory
    in_use = any(_may_share(kept, logits) for kept in saved["head"])  # unless the head's backward reads them
    dlogits, _ = layers["crossentropy"].backward(
        dlosses, saved.pop("loss"), out=(None if in_use else logits, None)
    )
    return dlogits


def _may_share(saved, array):
    """Whether a saved object may share memory with an array; one that is not an array may."""
    return saved is not None and (not isinstance(saved, np.ndarray) or np.may_share_memory(saved, array))


def block_backward(
    dout: np.ndarray, saved: dict[str, tuple], l: int, grads: "Gradients", d: Description, layers: Layers
) -> np.ndarray:
    """Gradient of block_forward with respect to x (B, T, C). Parameter gradients go to slice l of grads.

    None if it is not needed: neither x nor what it was computed from is trained.
    """
    if d.block is not None:
        return grads.through(d, layers, "block", dout, saved, l)
    through = partial(grads.through, d, layers)
    add, plus = layers["residual"].backward, layers["residual"].forward

    dx, dfcproj = add(dout, saved["residual2"])
    dfch_gelu = through("fcproj", dfcproj, saved, l)  # (B, T, F)
    dfch = through("gelu", dfch_gelu, saved, l)
    dln2 = through("fc", dfch, saved, l)  # (B, T, C)
    dbranch = through("ln2", dln2, saved, l)
    if dbranch is None:
        return None
    dx, _ = plus(dx, dbranch)  # around the MLP and through it

    dx, dattproj = add(dx, saved["residual1"])
    datty = through("attproj", dattproj, saved, l)
    dqkv = through("att", datty, saved, l)  # (B, T, 3C)
    dln1 = through("qkv", dqkv, saved, l)  # (B, T, C)
    dbranch = through("ln1", dln1, saved, l)
    if dbranch is None:
        return None
    dx, _ = plus(dx, dbranch)  # around attention and through it
    return dx


@dataclass
class Gradients:
    """Writes parameter gradients into views of the flat buffer, or adds to them if accumulate is set.

    on_ready is called for each matrix of a block. The rest is small, or comes at the end (wte).
    """

    views: Mapping[str, np.ndarray]
    accumulate: bool
    on_ready: Callable[[int, int], None] | None
    d: Description

    def __post_init__(self):
        self.ranges = ranges_of(self.d.trained.shapes)  # name -> (start, stop) in the flat buffer

    def through(
        self,
        d: Description,
        layers: Layers,
        place: str,
        dout: Any,
        saved: dict,
        l: Any = ...,
        again: Collection[str | None] = (),
    ) -> Any:
        """The backward of the layer at this place: writes the gradients of its tensors, and returns that of
        its first input; None if it is not needed, as nothing below this place is trained.

        l: the block; again: tensors that already have a gradient, to which this adds.
        """
        s = d.calls[place]
        layer = layers[s.layer]
        return self._put(layer, place, dout, saved.pop(place), s.tensors, l, again, s.static, s.data)

    def _put(self, layer, place, dout, saved, names, l, again, static, data):
        wanted = self.d.trained.wanted(place, l)
        if dout is None or (wanted is not None and not any(wanted)):
            return None
        views = [self._view(name, l) for name in names]
        add = self.accumulate or bool(again)
        for name, view in zip(names, views):
            if add and not self.accumulate and name not in again and view is not None:
                view[...] = 0.0  # its first gradient is added like the others
        layer = layer if wanted is None else layer.wanting(wanted)
        dinp, *_ = layer.backward(dout, saved, out=(*[None] * data, *views), add=add, **static)
        self._announce(names, views, l)
        return dinp if wanted is None or wanted[0] else None

    def _view(self, name, l):
        """The memory for the gradient of a tensor's slice l; None if it is not wanted."""
        if not self.d.trained.at(name, l):
            return None
        return self.views[name] if l is ... else self.views[name][self.d.trained.index(name, l)]

    def _announce(self, names, views, l):
        if self.on_ready is None or l is ...:
            return
        for name, view in zip(names, views):
            if view is not None and view.ndim == 2:
                start = self.ranges[name][0] + self.d.trained.index(name, l) * view.size
                self.on_ready(start, start + view.size)
