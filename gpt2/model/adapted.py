"""Adapted: what the adapters of a LoRA add to a model's layers and tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpt2 import autodiff as ad
from gpt2.layers.layer import Parameter
from gpt2.model.config import LayerCall
from gpt2.model.lora import EMBEDDINGS, LoRA


class Adapted:
    """What adapters add to a model of L blocks.

    calls     place -> LayerCall, in place of the plain one
    outside, in_block   the tables of the added Parameters, by name
    trained   the added tensors that are trained -> the blocks
    fixed     the others -> their values: scales that differ between blocks, (L, 1)
    """

    def __init__(self, lora: LoRA, calls: Mapping[str, LayerCall], shapes: Mapping[str, tuple], L: int):
        self.lora, self.L, self.shapes = lora, L, shapes
        self.calls: dict[str, LayerCall] = {}
        self.outside: dict[str, Parameter] = {}
        self.in_block: dict[str, Parameter] = {}
        self.trained: dict[str, tuple[int, ...]] = {}
        self.fixed: dict[str, np.ndarray] = {}
        self.constant = {"constant": ad.stop_gradient} if lora.dora else {}
        for place in calls:
            if place in lora.modules:
                self._matrix(place, calls[place].tensors)
        if "lora_encoder" in lora.layers:
            self._embeddings(calls["head"].tensors)

    def _add(self, place, role, shape, start=None, trained=True):
        """Add a tensor; returns its name."""
        name = f"{place}_lora_{role}"
        table = self.outside if place in (*EMBEDDINGS, "head") else self.in_block
        table[name] = Parameter(name, shape, start)
        if trained:
            self.trained[name] = self.lora.blocks(place, self.L) if table is self.in_block else ()
        return name

    def _matrix(self, place, tensors):
        """The adapters beside the matrix of a linear layer."""
        OC, C = self.shapes[tensors[0]]
        rank = self.lora.rank(place)
        pair = self._add(place, "a", (rank, C), "fan_in"), self._add(place, "b", (OC, rank), 0.0)
        bias = self._add(place, "bias", (OC,)) if self.lora.bias else None
        magnitude = self._add(place, "magnitude", (OC,)) if self.lora.dora else None
        names, static = [*tensors, *pair, bias, magnitude], dict(self.constant)
        scales = [1.0 if module is None else module[1] for module in self.lora.modules[place]]
        used = {module[1] for module in self.lora.modules[place] if module is not None}
        if len(used) == 1:
            static["scale"] = used.pop()
        else:
            names.append(self._add(place, "scale", (1,), 0.0, trained=False))
            self.fixed[names[-1]] = np.array(scales)[:, None]
        while names[-1] is None:
            names.pop()
        self.calls[place] = LayerCall("lora", tuple(names), static)

    def _embeddings(self, head):
        """The adapters of wte and wpe, and the rows in place of some of wte."""
        names: list[str | None] = [*EMBEDDINGS]
        static: dict[str, Any] = dict(self.constant)
        for name in EMBEDDINGS:
            if name not in self.lora.modules:
                names += [None] * 3
                continue
            (rows, C), (rank, static[f"{name}_scale"]) = self.shapes[name], self.lora.at(name)
            pair = self._add(name, "a", (rank, rows), 0.0), self._add(name, "b", (C, rank), "normal")
            names += [*pair, self._add(name, "magnitude", (C,)) if self.lora.dora else None]
        if tokens := self.lora.tokens:
            names.append(self._add("wte", "rows", (len(tokens), self.shapes["wte"][1])))
            if head[0] == "wte" and "head" not in self.calls:
                self.calls["head"] = LayerCall("lora_tokens", (*head, names[-1]), {"replaced": tokens})
            static["replaced"] = tokens
        self.calls["encoder"] = LayerCall("lora_encoder", tuple(names), static)
