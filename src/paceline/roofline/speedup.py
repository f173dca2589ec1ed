"""Speedup by draft length, and where its optimum lies.

speedup(γ) = AL(γ) · t(1) / (t(γ+1) + draft(γ)), where t(q) is the target's forward at q rows per
request and AL(γ), the acceptance length, counts the bonus token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.core.errors import check_integer
from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Options, Workload, forward_time
from paceline.roofline.drafting import DrafterCost
from paceline.roofline.hardware import Hardware

MAX_DRAFT = 16


class Acceptance(Protocol):
    """How long drafts live. `acceptance.py` has the kinds."""

    def expected_length(self, draft_length: int) -> float:
        """AL of drafts of that length, incl. the bonus token."""


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """One draft length. Times in seconds; tokens per second of committed tokens.

    `break_even_length` is the AL below which this draft length is slower than AR.
    """

    draft_length: int
    acceptance_length: float
    step_seconds: float
    draft_seconds: float
    speedup: float
    tokens_per_second_per_request: float
    tokens_per_second_per_device: float
    tpot: float
    break_even_length: float


def speedup_curve(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    workload: Workload | None = None,
    *,
    max_draft: int | None = None,
    options: Options | None = None,
) -> list[SpeedupRow]:
    """One row per draft length, 0 (AR) to `max_draft` (16, or what the drafter can propose).

    `step_seconds` includes the draft. Raises InvalidRequest for a `max_draft` that the drafter
    cannot propose.
    """
    if max_draft is None:
        max_draft = MAX_DRAFT if drafter.max_draft is None else min(MAX_DRAFT, drafter.max_draft)
    check_integer("max_draft", max_draft, 0, 4096, "a whole number of tokens, 0 or more")
    workload = replace(workload or Workload(), rows_per_request=1)
    options = options or Options()
    plain = forward_time(architecture, hardware, workload, options).total
    rows = []
    for length in range(max_draft + 1):
        verify = replace(workload, rows_per_request=length + 1)
        draft = drafter.time(length, architecture, hardware, workload, options)
        step = forward_time(architecture, hardware, verify, options).total + draft
        accepted = acceptance.expected_length(length) if length else 1.0
        rows.append(
            SpeedupRow(
                draft_length=length,
                acceptance_length=accepted,
                step_seconds=step,
                draft_seconds=draft,
                speedup=accepted * plain / step,
                tokens_per_second_per_request=accepted / step,
                tokens_per_second_per_device=workload.batch * accepted / step / options.devices,
                tpot=step / accepted,
                break_even_length=step / plain,
            )
        )
    return rows


def optimum(curve: Iterable[SpeedupRow]) -> SpeedupRow:
    """The fastest row; of equals the shortest draft."""
    return max(curve, key=lambda row: (row.speedup, -row.draft_length))


def by_batch(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    batches: Sequence[int],
    *,
    context: int = 4096,
    max_draft: int | None = None,
    options: Options | None = None,
) -> list[tuple[int, SpeedupRow]]:
    """(batch, optimum) for each batch: the U of a mixture of experts, the fall of a dense model.

    The plain twin of what `views` computes for all batches at once.
    """
    options, found = options or Options(), []
    for batch in batches:
        load = Workload(batch, 1, context)
        curve = speedup_curve(
            architecture,
            hardware,
            drafter,
            acceptance,
            load,
            max_draft=max_draft,
            options=options,
        )
        found.append((batch, optimum(curve)))
    return found
