"""LoRA: which adapters a model has, and where they stand. Settings read it before NumPy is loaded.

With Tuning("lora:8") they are alike in all blocks. An adapter of peft may have them in some blocks, of
several ranks, beside the embeddings and the head, and train other tensors with them. The tensors of a place
are always those of all blocks, shaped for the largest rank: where it is smaller the rest of a and b is zero,
and stays zero in training, as the gradient of each is a product with the other; where there is no adapter
both are zero and frozen.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

EMBEDDINGS = ("wte", "wpe")
Module = tuple[int, float] | None


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
