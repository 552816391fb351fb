"""LoRA: the adapters of a model, where they stand, and what they add to its layers and tensors.

With Tuning("lora:8") they are alike in all blocks. An adapter of peft may have them in some blocks, of
several ranks, beside the embeddings and the head, and train other tensors with them. The tensors of a place
are always those of all blocks, shaped for the largest rank: where it is smaller the rest of a and b is zero,
and stays zero in training, as the gradient of each is a product with the other; where there is no adapter
both are zero and frozen.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from gpt2 import autodiff as ad
from gpt2.layers.layer import Parameter

EMBEDDINGS = ("wte", "wpe")
Module = tuple[int, float] | None


class AdaptedCall(NamedTuple):
    """The call of a layer with adapters: its name, its tensors, its keyword arguments."""

    layer: str
    tensors: tuple[str | None, ...]
    static: dict[str, Any]


@dataclass(frozen=True)
class LoRA:
    """Which adapters a model has.

    modules  place, wte or wpe -> (rank, scale) of each block, None where it has none; a single one if the
             blocks are alike, and outside of them. The adapter counts scale times, as a rule alpha / rank
    tensors  other tensors that are trained -> the blocks
    tokens   the rows of wte in whose place others are trained
    dora     whether there are magnitudes; bias: biases
    fields   of peft's adapter_config.json, if it comes from there; keys: of its other tensors
    """

    modules: Mapping[str, tuple[Module, ...]]
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tokens: tuple[int, ...] = ()
    dora: bool = False
    bias: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)
    keys: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The LoRA of to_json. Raises ValueError, TypeError, KeyError or AttributeError for another text."""
        parts = json.loads(text)
        modules = {
            place: tuple(None if m is None else (int(m[0]), float(m[1])) for m in blocks)
            for place, blocks in parts.pop("modules").items()
        }
        tensors = {name: tuple(map(int, blocks)) for name, blocks in parts.pop("tensors").items()}
        return cls(modules, tensors, tuple(parts.pop("tokens")), keys=tuple(parts.pop("keys")), **parts)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of their layers."""
        embeddings = bool(self.tokens) or any(name in self.modules for name in EMBEDDINGS)
        used = {
            "lora": any(place not in EMBEDDINGS for place in self.modules),
            "lora_encoder": embeddings,
            "lora_tokens": bool(self.tokens),
        }
        return tuple(name for name in used if used[name])

    def at(self, place: str, l: Any = ...) -> Module:
        """(rank, scale) of the adapter of a place, in block l; None if there is none."""
        blocks = self.modules.get(place, (None,))
        return blocks[0 if len(blocks) == 1 or l is ... else l]

    def rank(self, place: str) -> int:
        """The largest rank at a place."""
        return max(module[0] for module in self.modules[place] if module is not None)

    def blocks(self, place: str, L: int) -> tuple[int, ...]:
        """The blocks, of L, in which a place has an adapter."""
        return tuple(l for l in range(L) if self.at(place, l) is not None)


class Adapted:
    """What adapters add to a model of L blocks.

    calls     place -> AdaptedCall, in place of the plain one
    outside, in_block   the tables of the added Parameters, by name
    trained   the added tensors that are trained -> the blocks
    fixed     the others -> their values: scales that differ between blocks, (L, 1)
    """

    def __init__(self, lora: LoRA, calls: Mapping[str, Any], shapes: Mapping[str, tuple], L: int):
        self.lora, self.L, self.shapes = lora, L, shapes
        self.calls: dict[str, AdaptedCall] = {}
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
        self.calls[place] = AdaptedCall("lora", tuple(names), static)

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
                self.calls["head"] = AdaptedCall("lora_tokens", (*head, names[-1]), {"replaced": tokens})
            static["replaced"] = tokens
        self.calls["encoder"] = AdaptedCall("lora_encoder", tuple(names), static)
