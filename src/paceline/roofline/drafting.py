"""What a round's draft costs, by kind of drafter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.core.errors import check_integer, check_number
from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Options, Workload, forward_time
from paceline.roofline.hardware import Hardware


class DrafterCost(Protocol):
    """A drafter as the roofline sees it. Of the target's `workload`, batch and context count."""

    name: str

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        """Seconds that a draft of that length takes; 0 for none."""


@dataclass(frozen=True)
class Ideal:
    """Drafts that cost nothing: the limit of what a drafter can bring."""

    name: str = "ideal"

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        return 0.0


@dataclass(frozen=True)
class Fraction:
    """`cost` of the target's own step at one row, once per `per_block` drafted tokens.

    1 is autoregressive drafting (MTP, EAGLE); 16 a block drafter that yields 16 at once.
    """

    cost: float
    per_block: int = 1
    name: str = "fraction"

    def __post_init__(self) -> None:
        check_number("drafter.cost", self.cost, 0, 100, "a share of the target's step, 0 or more")
        check_integer("drafter.per_block", self.per_block, 1, 4096, "drafted tokens per pass")

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        if draft_length == 0:
            return 0.0
        single = replace(workload, rows_per_request=1)
        step = forward_time(architecture, hardware, single, options).total
        return self.cost * step * math.ceil(draft_length / self.per_block)


@dataclass(frozen=True)
class Lookup:
    """Copies from the text (n-grams, suffixes): `seconds` of the host per draft and request."""

    seconds: float = 0.0
    name: str = "lookup"

    def __post_init__(self) -> None:
        check_number("drafter.seconds", self.seconds, 0, 60, "seconds, 0 or more")

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        return self.seconds * workload.batch if draft_length else 0.0
