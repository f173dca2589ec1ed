"""Speedup by draft length, and where its optimum lies.

speedup(γ) = AL(γ) · t(1) / (t(γ+1) + draft(γ)), where t(q) is the target's forward at q rows per
request and AL(γ), the acceptance length, counts the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.core.errors import check_integer
from paceline.roofline.acceptance import AcceptanceModel
from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment
from paceline.roofline.cost.drafters import DrafterCost
from paceline.roofline.device import IDEAL, Calibration

MAX_DRAFT = 16


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
    deployment: Deployment,
    drafter: DrafterCost,
    acceptance: AcceptanceModel,
    load: Workload,
    calibration: Calibration = IDEAL,
    *,
    max_draft: int | None = None,
) -> list[SpeedupRow]:
    """One row per draft length, 0 (AR) to `max_draft` (16, or the longest draft of the drafter).

    The plain twin of the numbers in `scenario.views`. `step_seconds` includes the draft. Raises
    InvalidRequest for a `max_draft` that the drafter cannot propose.
    """
    if max_draft is None:
        max_draft = MAX_DRAFT if drafter.max_draft is None else min(MAX_DRAFT, drafter.max_draft)
    check_integer("max_draft", max_draft, 0, 4096, "a whole number of tokens, 0 or more")
    plain = deployment.forward_time(replace(load, rows_per_request=1), calibration).total

    def row(length: int) -> SpeedupRow:
        verify = replace(load, rows_per_request=length + 1)
        draft = drafter.time(length, deployment, load, calibration)
        step = deployment.forward_time(verify, calibration).total + draft
        accepted = acceptance.expected_length(length) if length else 1.0
        return SpeedupRow(
            draft_length=length,
            acceptance_length=accepted,
            step_seconds=step,
            draft_seconds=draft,
            speedup=accepted * plain / step,
            tokens_per_second_per_request=accepted / step,
            tokens_per_second_per_device=load.batch * accepted / step / deployment.devices,
            tpot=step / accepted,
            break_even_length=step / plain,
        )

    return [row(length) for length in range(max_draft + 1)]
