"""The registry of kinds of drafters, and what a kind is built from: its options, and how the engine
runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.core import MAX_DRAFT_LEN, InvalidRequest
from paceline.drafters.base import Drafter
from paceline.models.loader import LoadedModel
from paceline.models.networks import BACKENDS, DEVICES, DTYPES
from paceline.models.quantized import AUTO, QUANTIZE

Reader = Callable[[str, str], object]  # (field, text) -> value, or InvalidRequest
Settings: TypeAlias = dict[str, Any]  # arguments by name, each checked by its Reader


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A parsed `NAME[=VALUE][,key=value…]`: what to register and how to build it."""

    name: str
    kind: str
    value: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def settings(self, readers: Mapping[str, Reader]) -> Settings:
        """Return the options, converted. Raises InvalidRequest for unknown keys and bad values."""
        settings = {}
        for key, text in self.options:
            if key not in readers:
                expected = "one of " + ", ".join(readers) if readers else "no options"
                raise InvalidRequest(f"drafter {self.name}", key, expected)
            settings[key] = readers[key](f"drafter {self.name}, {key}", text)
        return settings


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The settings of the engine that a drafter is built for.

    target    the loaded target; None where a spec is only checked. Its weights may be consumed.
    dtype, device, backend, quantize   how the target runs; a drafter that is a network runs alike,
              and may be quantised where the target is not
    needs_q   whether the verification rule judges sampled drafts by the q they were drawn from
    window    the most tokens of context that a draft may look at; 0: all; None: as many as the
              drafter was trained on
    """

    target: LoadedModel | None = None
    dtype: str = "bfloat16"
    device: str = "cpu"
    backend: str = "auto"
    quantize: str | None = None
    needs_q: bool = False
    window: int | None = None

    @property
    def network_settings(self) -> Settings:
        """NETWORK_OPTIONS that the user did not set, and `draw` where the rule needs q, which only
        sampled drafts have."""
        settings = {name: getattr(self, name) for name in NETWORK_OPTIONS}
        settings["quantize"] = self.quantize or AUTO
        return settings | ({"draw": "sample"} if self.needs_q else {})


Factory = Callable[[DrafterSpec, BuildContext], Drafter]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter that can be asked for by name.

    value       whether a spec may have a value; or what it must be, in words
    untrained   drafts for any target as it is: what trained drafters are measured beside
    remembers   drafts from the answers to earlier requests
    """

    build: Factory
    value: bool | str
    untrained: bool
    remembers: bool


KINDS: dict[str, Kind] = {}


def register(
    kind: str, value: bool | str = False, *, untrained: bool = False, remembers: bool = False
) -> Callable[[Factory], Factory]:
    """Decorator: makes `kind` a drafter that can be asked for by name. See Kind."""

    def add(factory: Factory) -> Factory:
        KINDS[kind] = Kind(factory, value, untrained, remembers)
        return factory

    return add


def build(spec: DrafterSpec, context: BuildContext | None = None) -> Drafter:
    """Make the drafter of a spec. Raises InvalidRequest for a kind that is not registered, and for
    a value that is missing or would be ignored."""
    if spec.kind not in KINDS:
        raise InvalidRequest("drafter", spec.kind, "one of " + ", ".join(sorted(KINDS)))
    kind, field = KINDS[spec.kind], f"drafter {spec.name}"
    if spec.value is not None and not kind.value:
        raise InvalidRequest(field, spec.value, f"no value after {spec.kind}")
    if spec.value is None and isinstance(kind.value, str):
        raise InvalidRequest(field, spec.kind, f"{kind.value} after it, as {spec.kind}:PATH")
    return kind.build(spec, context or BuildContext())


# -- readers of options ----------------------------------------------------------------------------


def whole(low: int, high: int) -> Reader:
    def read(field: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or not low <= int(text) <= high:
            raise InvalidRequest(field, text, f"a whole number from {low} to {high}")
        return int(text)

    return read


def real(low: float, high: float) -> Callable[[str, str], float]:
    def read(field: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise InvalidRequest(field, text, f"a number from {low:g} to {high:g}")
        return number

    return read


def text(field: str, text: str) -> str:
    return text


def one_of(*allowed: str) -> Reader:
    def read(field: str, text: str) -> str:
        if text not in allowed:
            raise InvalidRequest(field, text, "one of " + ", ".join(allowed))
        return text

    return read


def _quantize(field: str, text: str) -> str | None:
    one_of("none", *QUANTIZE)(field, text)
    return None if text == "none" else text


DRAFT_LENGTH = {"max_draft_len": whole(1, MAX_DRAFT_LEN)}  # the one option that every drafter has
NETWORK_OPTIONS: dict[str, Reader] = {  # of drafters that run a network
    "dtype": one_of(*DTYPES),
    "device": one_of(*DEVICES),
    "backend": one_of(*BACKENDS),
    "quantize": _quantize,
}
