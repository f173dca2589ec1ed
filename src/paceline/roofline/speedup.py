"""Speedup by draft length, and where its optimum lies: by batch, by context, as a map, as a front.

speedup(γ) = AL(γ) · t(1) / (t(γ+1) + draft(γ)), where t(q) is the target's forward at q rows per
request and AL(γ), the acceptance length, counts the bonus token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.core.errors import InvalidRequest, check_integer
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
    """(batch, optimum) for each batch: the U of a mixture of experts, the fall of a dense model."""
    loads = [Workload(batch, 1, context) for batch in _listed("batches", batches)]
    curves = _curves(architecture, hardware, drafter, acceptance, loads, max_draft, options)
    return [(load.batch, optimum(curve)) for load, curve in zip(loads, curves, strict=True)]


def by_context(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    contexts: Sequence[int],
    *,
    batch: int = 1,
    max_draft: int | None = None,
    options: Options | None = None,
) -> list[tuple[int, SpeedupRow]]:
    """(context, optimum) for each context."""
    loads = [Workload(batch, 1, context) for context in _listed("contexts", contexts)]
    curves = _curves(architecture, hardware, drafter, acceptance, loads, max_draft, options)
    return [(load.context, optimum(curve)) for load, curve in zip(loads, curves, strict=True)]


def heat_map(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    batches: Sequence[int],
    *,
    context: int = 4096,
    max_draft: int | None = None,
    options: Options | None = None,
) -> list[list[float]]:
    """Speedups: a row per batch, a column per draft length from 0."""
    loads = [Workload(batch, 1, context) for batch in _listed("batches", batches)]
    curves = _curves(architecture, hardware, drafter, acceptance, loads, max_draft, options)
    return [[row.speedup for row in curve] for curve in curves]


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A batch and a draft length that no other beats on both speeds (tokens per second)."""

    batch: int
    draft_length: int
    per_request: float
    per_device: float


def pareto(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    batches: Sequence[int],
    *,
    context: int = 4096,
    max_draft: int | None = None,
    options: Options | None = None,
) -> list[ParetoPoint]:
    """The front of tokens per second, per request against per device, from the quickest request to
    the fullest device. With `max_draft=0`, plain decoding's."""
    loads = [Workload(batch, 1, context) for batch in _listed("batches", batches)]
    curves = _curves(architecture, hardware, drafter, acceptance, loads, max_draft, options)
    points = [
        ParetoPoint(
            load.batch,
            row.draft_length,
            row.tokens_per_second_per_request,
            row.tokens_per_second_per_device,
        )
        for load, curve in zip(loads, curves, strict=True)
        for row in curve
    ]
    points.sort(key=lambda point: (-point.per_request, -point.per_device, point.draft_length))
    front: list[ParetoPoint] = []
    for point in points:
        if not front or point.per_device > front[-1].per_device:
            front.append(point)
    return front


def _curves(
    architecture: Architecture,
    hardware: Hardware,
    drafter: DrafterCost,
    acceptance: Acceptance,
    loads: list[Workload],
    max_draft: int | None,
    options: Options | None,
) -> list[list[SpeedupRow]]:
    return [
        speedup_curve(
            architecture,
            hardware,
            drafter,
            acceptance,
            load,
            max_draft=max_draft,
            options=options,
        )
        for load in loads
    ]


def _listed(field: str, values: Sequence[int]) -> Sequence[int]:
    if not values:
        raise InvalidRequest(field, values, "at least one")
    return values
