"""Tuning: which part of a model is trained (all, adapters, the last blocks, biases), and which is frozen.

    Tuning("lora:8")                       low-rank adapters of rank 8, and nothing else. Hu et al. 2021
    Tuning("last:2")                       the last two blocks and the layernorm after them
    Tuning("biases")                       the biases. Ben Zaken et al. 2021
    Tuning("all", freeze="wte,wpe")        everything but these tensors

A frozen tensor gets no gradient and no moments, and the product that its gradient would be is not computed.
This module knows names only; Description knows which tensors a model has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpt2.errors import OptionError, suggestion
from gpt2.model.lora import LoRA

KINDS = "all, lora:RANK, last:BLOCKS, biases"
NAMES = ("all", "lora", "last", "biases", "adapter")  # adapter: the command line's, for that of --init
# The places of a block that can have an adapter, and the names of their modules in transformers
MODULES = {"qkv": "attn.c_attn", "attproj": "attn.c_proj", "fc": "mlp.c_fc", "fcproj": "mlp.c_proj"}
# What --lora-targets may name -> the places that it means: parts of these names, as in peft
TARGETS: dict[str, list[str]] = {"all-linear": [*MODULES]}
for _place, _module in MODULES.items():
    for _name in (_place, _module, *_module.split(".")):
        TARGETS.setdefault(_name, []).append(_place)


@dataclass(frozen=True)
class Tuning:
    """Which part of a model is trained, as on the command line.

    train         all, lora:RANK, last:BLOCKS or biases
    freeze        names of further tensors to freeze, separated by commas
    lora_alpha    an adapter counts lora_alpha / RANK times
    lora_targets  the matrices that get an adapter, with commas: c_attn, attn.c_proj, c_fc, mlp.c_proj, or
                  c_proj for two of them, as PEFT names them; qkv, attproj, fc, fcproj; attn, mlp, all-linear
    adapter       instead of these two, an adapter of peft: LoRA.to_json()

    The last three apply only to lora. Raises UserError for invalid values.
    """

    train: str = "all"
    freeze: str = ""
    lora_alpha: float = 8.0
    lora_targets: str = "c_attn"
    adapter: str = ""

    def __post_init__(self):
        if not isinstance(self.freeze, str):
            raise option_error("freeze", self.freeze, "expected names, separated by commas")
        kind, number = self._parts()
        if kind not in NAMES:
            raise self.wrong(f"expected {KINDS}" + suggestion(kind, NAMES))
        if kind in ("all", "biases", "adapter") and number is not None:
            raise self.wrong(f"{kind} takes no number")
        if kind in ("lora", "last"):
            what = "rank" if kind == "lora" else "number of blocks"
            if not (number or "").isdecimal() or int(number) < 1:
                found = f", got {number}" if number else ""
                raise self.wrong(f"expected a {what} from 1, {kind}:{'8' if kind == 'lora' else '2'}{found}")
        if kind == "lora":
            alpha = self.lora_alpha
            if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0.0 < alpha < 1e6:
                raise option_error("lora_alpha", alpha, "expected a number above 0")
            self.lora  # noqa: B018  # raises for unknown targets

    def _parts(self) -> tuple[str, str | None]:
        if not isinstance(self.train, str):
            raise option_error("train", repr(self.train), f"expected {KINDS}")
        kind, colon, number = self.train.strip().partition(":")
        return kind, number if colon else None

    def wrong(self, text: str) -> OptionError:
        """The OptionError that says `text` of `train`."""
        return option_error("train", self.train, text)

    @property
    def kind(self) -> str:
        return self._parts()[0]

    @property
    def number(self) -> int:
        """The rank, or the number of blocks."""
        return int(self._parts()[1] or 0)

    @property
    def everything(self) -> bool:
        """Whether nothing is frozen."""
        return self.kind == "all" and not self.frozen

    @property
    def frozen(self) -> tuple[str, ...]:
        """The names of `freeze`."""
        return tuple(name.strip() for name in self.freeze.split(",") if name.strip())

    @property
    def lora(self) -> LoRA | None:
        """The adapters, or None."""
        if self.kind != "lora":
            return None
        if self.adapter:
            try:
                return LoRA.from_json(self.adapter)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError):
                raise option_error(
                    "adapter", self.adapter, "is not what an adapter of peft is kept as"
                ) from None
        module = self.number, float(self.lora_alpha) / self.number
        return LoRA(dict.fromkeys(places_of(self.lora_targets), (module,)))

    def summary(self) -> str:
        """As text: "lora:8 (alpha 16) on attn.c_attn", "last:2, wte frozen"."""
        lora = self.lora
        parts = [self.train.strip()]
        if lora is not None:
            alike = {module for modules in lora.modules.values() for module in modules}
            (rank, scale), *others = alike if None not in alike else [(0, 0.0), None]
            alpha = f"alpha {rank * scale:g}" if not others else "in some blocks, or of several ranks"
            where = [MODULES.get(place, place) for place in lora.modules]
            parts = [f"{parts[0]} ({alpha}) on {', '.join(where)}"] if where else []
            parts += ["with DoRA"] * lora.dora + [f"with {name}" for name in lora.tensors]
            parts += [f"{len(lora.tokens)} rows of wte"] if lora.tokens else []
        return ", ".join([*parts, *(f"{name} frozen" for name in self.frozen)])


def tuning(given: Tuning | str | None) -> Tuning:
    """A Tuning from what a caller passes: a Tuning, its text, or None for everything."""
    return given if isinstance(given, Tuning) else Tuning() if given is None else Tuning(given)


def places_of(targets: str | Iterable[str]) -> tuple[str, ...]:
    """The places of these targets, in the order of the block. Raises UserError for an unknown name."""
    names = targets.split(",") if isinstance(targets, str) else [*targets]
    if not all(isinstance(name, str) for name in names):
        raise option_error("lora_targets", targets, "expected names, separated by commas")
    names = [name.strip() for name in names]
    for name in names:
        if name not in TARGETS:
            text = (
                f"{name!r} is not a matrix of a block; expected c_attn, c_proj, c_fc, attn.c_proj, "
                f"mlp.c_proj, attn, mlp or all-linear{suggestion(name, TARGETS)}"
            )
            raise option_error("lora_targets", ",".join(names), text)
    meant = {place for name in names for place in TARGETS[name]}
    return tuple(place for place in MODULES if place in meant)


def option_error(name: str, value: Any, text: str) -> OptionError:
    """The OptionError that says `text` of a setting."""
    return OptionError(f"{name} {value!r}: {text}", f"--{name.replace('_', '-')} {value}: {text}")
