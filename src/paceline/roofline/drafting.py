"""What a round's draft costs, by kind of drafter.

Either a share of the target's own step, or computed from the drafter's own config with the same
formulas, options and calibration as the target; only the step's overhead is paid once, by the
target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

from paceline.core.errors import InvalidRequest, check_integer, check_number
from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Options, Workload, forward_time
from paceline.roofline.hardware import Hardware


class DrafterCost(Protocol):
    """A drafter as the roofline sees it.

    `max_draft` is the longest draft it can propose, None for no limit of its own. `model` is what
    it keeps in memory beside the target, None for nothing.
    """

    @property
    def name(self) -> str: ...
    @property
    def max_draft(self) -> int | None: ...
    @property
    def model(self) -> Architecture | None: ...

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        """Seconds of a draft of that length; 0 for none. Of the target's `workload`, the batch and
        the context count. Raises InvalidRequest for a draft longer than `max_draft`."""


@dataclass(frozen=True)
class Ideal:
    """Drafts that cost nothing: the limit of what a drafter can bring."""

    name: str = "ideal"
    max_draft: int | None = field(default=None, init=False)
    model: Architecture | None = field(default=None, init=False)

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
    max_draft: int | None = None
    model: Architecture | None = field(default=None, init=False)

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
        check_length(self, draft_length)
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
    max_draft: int | None = None
    model: Architecture | None = field(default=None, init=False)

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
        check_length(self, draft_length)
        return self.seconds * workload.batch if draft_length else 0.0


@dataclass(frozen=True)
class Autoregressive:
    """One pass of `model` per drafted token, and of `head` where it shares the target's; `once` per
    round before them (EAGLE's fusion of the target's features), over the rows just verified.

    The first pass also takes in what the last round committed; it is counted as one row. See
    `drafters.py` for how MTP layers, EAGLE heads and small models are read.
    """

    model: Architecture
    head: Architecture | None = None
    once: Architecture | None = None
    name: str = "autoregressive"
    max_draft: int | None = None

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        check_length(self, draft_length)
        if draft_length == 0:
            return 0.0
        options = _within_a_step(options)
        single = replace(workload, rows_per_request=1)
        seconds = draft_length * forward_time(self.model, hardware, single, options).total
        if self.head is not None:
            seconds += draft_length * forward_time(self.head, hardware, single, options).total
        if self.once is not None:
            verified = replace(workload, rows_per_request=draft_length + 1)
            seconds += forward_time(self.once, hardware, verified, options).total
        return seconds


@dataclass(frozen=True)
class Block:
    """One pass drafts the whole block (DFlash): the anchor and a mask per drafted token.

    `model` runs over draft length + 1 rows, its `head` (the target's own) over the draft length of
    them; `once` fuses the target's features of the rows just verified into the drafter's cache.
    """

    model: Architecture
    head: Architecture
    once: Architecture
    block_size: int
    name: str = "block"

    @property
    def max_draft(self) -> int:
        return self.block_size - 1

    def time(
        self,
        draft_length: int,
        architecture: Architecture,
        hardware: Hardware,
        workload: Workload,
        options: Options,
    ) -> float:
        check_length(self, draft_length)
        if draft_length == 0:
            return 0.0
        options = _within_a_step(options)
        rows = replace(workload, rows_per_request=draft_length + 1)
        drafted = replace(workload, rows_per_request=draft_length)
        seconds = forward_time(self.model, hardware, rows, options).total
        seconds += forward_time(self.once, hardware, rows, options).total
        return seconds + forward_time(self.head, hardware, drafted, options).total


def check_length(drafter: DrafterCost, draft_length: int) -> None:
    """Raises InvalidRequest for a draft that the drafter cannot propose."""
    most = drafter.max_draft
    if most is not None and draft_length > most:
        expected = f"at most {most}: the longest draft of {drafter.name}"
        raise InvalidRequest("draft_length", draft_length, expected)


def _within_a_step(options: Options) -> Options:
    return replace(options, calibration=replace(options.calibration, step_overhead=0.0))
