"""The price of a draft, by kind of drafter: the passes that it makes, and the time of these passes.

A pass is either a share of the target's own step, or a forward of the drafter's own network, which
is computed with the same formulas, options and calibration as the target. The target alone pays the
overhead of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def _no_passes(draft_length: int) -> list[DraftPass]:
    return []


@dataclass(frozen=True)
class DrafterCost:
    """A drafter as the roofline sees it. Its drafts are free, unless it says otherwise.

    passes        the passes of a draft of so many tokens, 1 or more
    host_seconds  seconds of the host per draft and request
    model         the network that it keeps in memory beside the target, None for nothing
    max_draft     the longest draft that it can propose, None for no limit of its own
    """

    name: str
    passes: Callable[[int], list[DraftPass]] = _no_passes
    host_seconds: float = 0.0
    model: Architecture | None = None
    max_draft: int | None = None

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


def free_drafts() -> DrafterCost:
    """Price drafts that cost nothing: the limit of what a drafter can bring."""
    return DrafterCost("ideal")


def share_of_step(cost: float, per_block: int = 1, max_draft: int | None = None) -> DrafterCost:
    """Price passes at `cost` of the target's own step at one row, one per `per_block` tokens.

    1 is autoregressive drafting (MTP, EAGLE); 16 a block drafter that yields 16 at once.
    """
    check_number("drafter.cost", cost, 0, 100, "a share of the target's step, 0 or more")
    check_integer("drafter.per_block", per_block, 1, 4096, "drafted tokens per pass")

    def passes(draft_length: int) -> list[DraftPass]:
        return [DraftPass(None, 1, cost * math.ceil(draft_length / per_block))]

    return DrafterCost("fraction", passes, max_draft=max_draft)


def look_up(seconds: float = 0.0) -> DrafterCost:
    """Price copies from the text (n-grams, suffixes): `seconds` of the host per request."""
    check_number("drafter.seconds", seconds, 0, 60, "seconds, 0 or more")
    return DrafterCost("lookup", host_seconds=seconds)


def token_by_token(
    name: str,
    network: Architecture,
    head: Architecture | None = None,
    once: Architecture | None = None,
) -> DrafterCost:
    """Price one pass of `network` per drafted token, and of `head` where it shares the target's;
    `once` per round before them (EAGLE's fusion of the target's features), over the rows just
    verified.

    The first pass also takes in what the last round committed; it is counted as one row.
    """

    def passes(draft_length: int) -> list[DraftPass]:
        by_token = [part for part in (network, head) if part is not None]
        listed = [DraftPass(part, 1, draft_length) for part in by_token]
        return listed if once is None else [*listed, DraftPass(once, draft_length + 1, 1)]

    return DrafterCost(name, passes, model=network)


def whole_block(
    name: str, network: Architecture, head: Architecture, once: Architecture, block_size: int
) -> DrafterCost:
    """Price one pass that drafts the whole block (DFlash): the anchor and a mask per drafted token.

    `network` runs over draft length + 1 rows, its `head` (the target's own) over the draft length
    of them; `once` fuses the target's features of the rows just verified into the drafter's cache.
    """

    def passes(draft_length: int) -> list[DraftPass]:
        rows = draft_length + 1
        return [
            DraftPass(network, rows, 1),
            DraftPass(once, rows, 1),
            DraftPass(head, draft_length, 1),
        ]

    return DrafterCost(name, passes, model=network, max_draft=block_size - 1)
