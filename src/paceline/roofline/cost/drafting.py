"""The price of a draft, by kind of drafter: the passes that it makes, and the time of these passes.

A pass is either a share of the target's own step, or a forward of the drafter's own network, which
is computed with the same formulas, options and calibration as the target. The target alone pays the
overhead of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.errors import InvalidRequest, check_integer, check_number
from paceline.roofline.architecture import Architecture
from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment
from paceline.roofline.device import IDEAL, Calibration


class DraftPass(NamedTuple):
    """A forward of `network` with so many `rows` a request, so many `times`.

    Without a network it is a share of the target's own step at one row.
    """

    network: Architecture | None
    rows: int
    times: float


class DrafterCost:
    """A drafter as the roofline sees it. Its drafts are free, unless a kind says otherwise."""

    @property
    def name(self) -> str:
        return "drafter"

    @property
    def max_draft(self) -> int | None:
        """The longest draft that the drafter can propose, None for no limit of its own."""
        return None

    @property
    def model(self) -> Architecture | None:
        """The network that the drafter keeps in memory beside the target, None for nothing."""
        return None

    @property
    def host_seconds(self) -> float:
        """Seconds of the host per draft and request."""
        return 0.0

    def passes(self, draft_length: int) -> list[DraftPass]:
        """The passes of a draft of `draft_length` tokens, 1 or more."""
        return []

    def time(
        self,
        draft_length: int,
        deployment: Deployment,
        load: Workload,
        calibration: Calibration = IDEAL,
    ) -> float:
        """Seconds of a draft of that length beside the target's step; 0 for none.

        Of the target's `load`, the batch and the context count. The plain twin of `Grid.drafts`.
        Raises InvalidRequest for a draft longer than `max_draft`.
        """
        self.check_length(draft_length)
        if draft_length == 0:
            return 0.0
        seconds = self.host_seconds * load.batch
        for network, rows, times in self.passes(draft_length):
            forward = Workload(load.batch, rows, load.context)
            if network is None:
                step = deployment.forward_time(forward, calibration)
            else:
                beside = deployment.running(network)
                step = beside.forward_time(forward, calibration.within_a_step())
            seconds += times * step.total
        return seconds

    def check_length(self, draft_length: int) -> None:
        """Raise InvalidRequest for a draft that the drafter cannot propose."""
        if self.max_draft is not None and draft_length > self.max_draft:
            expected = f"at most {self.max_draft}: the longest draft of {self.name}"
            raise InvalidRequest("draft_length", draft_length, expected)


@dataclass(frozen=True)
class Ideal(DrafterCost):
    """Drafts that cost nothing: the limit of what a drafter can bring."""

    name: str = "ideal"


@dataclass(frozen=True)
class Fraction(DrafterCost):
    """`cost` of the target's own step at one row, once per `per_block` drafted tokens.

    1 is autoregressive drafting (MTP, EAGLE); 16 a block drafter that yields 16 at once.
    """

    cost: float
    per_block: int = 1
    name: str = "fraction"
    max_draft: int | None = None

    def __post_init__(self) -> None:
        check_number("drafter.cost", self.cost, 0, 100, "a share of the target's step, 0 or more")
        check_integer("drafter.per_block", self.per_block, 1, 4096, "drafted tokens per pass")

    def passes(self, draft_length: int) -> list[DraftPass]:
        return [DraftPass(None, 1, self.cost * math.ceil(draft_length / self.per_block))]


@dataclass(frozen=True)
class Lookup(DrafterCost):
    """Copies from the text (n-grams, suffixes): `seconds` of the host per draft and request."""

    seconds: float = 0.0
    name: str = "lookup"
    max_draft: int | None = None

    def __post_init__(self) -> None:
        check_number("drafter.seconds", self.seconds, 0, 60, "seconds, 0 or more")

    @property
    def host_seconds(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Autoregressive(DrafterCost):
    """One pass of `network` per drafted token, and of `head` where it shares the target's; `once`
    per round before them (EAGLE's fusion of the target's features), over the rows just verified.

    The first pass also takes in what the last round committed; it is counted as one row. See
    `drafters.py` for how MTP layers, EAGLE heads and small models are read.
    """

    network: Architecture
    head: Architecture | None = None
    once: Architecture | None = None
    name: str = "autoregressive"
    max_draft: int | None = None

    @property
    def model(self) -> Architecture:
        return self.network

    def passes(self, draft_length: int) -> list[DraftPass]:
        passes = [DraftPass(self.network, 1, draft_length)]
        if self.head is not None:
            passes.append(DraftPass(self.head, 1, draft_length))
        if self.once is not None:
            passes.append(DraftPass(self.once, draft_length + 1, 1))
        return passes


@dataclass(frozen=True)
class Block(DrafterCost):
    """One pass that drafts the whole block (DFlash): the anchor and a mask per drafted token.

    `network` runs over draft length + 1 rows, its `head` (the target's own) over the draft length
    of them; `once` fuses the target's features of the rows just verified into the drafter's cache.
    """

    network: Architecture
    head: Architecture
    once: Architecture
    block_size: int
    name: str = "block"

    @property
    def max_draft(self) -> int:
        return self.block_size - 1

    @property
    def model(self) -> Architecture:
        return self.network

    def passes(self, draft_length: int) -> list[DraftPass]:
        rows = draft_length + 1
        return [
            DraftPass(self.network, rows, 1),
            DraftPass(self.once, rows, 1),
            DraftPass(self.head, draft_length, 1),
        ]
