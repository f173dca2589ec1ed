"""The workload of a forward, the options it runs with, and the work of its components.

Uniform routing of T tokens with top k of E experts touches D(T) = E·(1 − (1 − k/E)^T) of them.
Tokens of one text choose alike, so T is taken as T_eff = (1 + (B−1)·ρ_width) · (1 + (q−1)·ρ_depth),
where B requests bring q consecutive tokens each.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.errors import InvalidRequest, check_integer, check_number
from paceline.roofline.device import KINDS

CHOICES = {
    "snapshots": ("per-token", "replay"),
    "communication": ("ring", "in-network", "ignored"),
    "state_precision": (None, "bf16", "fp32"),
}
# Distinct experts among N tokens that Qwen3.6-35B-A3B (256 experts, 8 per token) was seen to choose
# on SPEED-Bench: N consecutive tokens of one text, and N tokens of as many texts.
_EXPERTS, _ACTIVE = 256, 8
_DEPTH = {2: 12.87, 3: 17.19, 4: 21.13, 6: 28.16, 8: 34.35, 12: 44.90, 16: 53.58}
_WIDTH = {2: 15.56, 3: 22.73, 4: 29.44, 6: 41.94, 8: 53.25, 12: 72.93, 16: 89.32}

Table = tuple[tuple[int, float], ...]
Share = float | Table


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """Expected distinct experts that `tokens` independent tokens touch, `active` each."""
    left_out: float = (1.0 - active / experts) ** tokens
    return experts * (1.0 - left_out)


@dataclass(frozen=True, slots=True)
class Correlation:
    """The weight of a further request (`width`) and of a further token of a request (`depth`).

    Each is a share (1 is independent, 0 the same experts again) or a table of (tokens, share),
    linear in log tokens between its lines and level beyond them.
    """

    width: Share = 1.0
    depth: Share = 1.0

    def __post_init__(self) -> None:
        for field, share in (("width", self.width), ("depth", self.depth)):
            if share == ():
                raise InvalidRequest(f"correlation.{field}", share, "a share or a table of them")
            for _, value in _table(share):
                check_number(f"correlation.{field}", value, 0, 1, "a share, 0 to 1")

    def tokens(self, batch: float, rows_per_request: float) -> float:
        """T_eff of a forward."""
        wide = 1.0 + (batch - 1) * _share(self.width, batch)
        return wide * (1.0 + (rows_per_request - 1) * _share(self.depth, rows_per_request))


def _table(share: Share) -> Table:
    return share if isinstance(share, tuple) else ((1, share),)


def _share(share: Share, count: float) -> float:
    table = _table(share)
    if count <= table[0][0]:
        return table[0][1]
    for (low, start), (high, end) in itertools.pairwise(table):
        if count <= high:
            return start + (end - start) * math.log(count / low) / math.log(high / low)
    return table[-1][1]


def _measured(distinct: dict[int, float]) -> Table:
    """The table that touches as many experts as were seen: D(T_eff) inverted."""
    lines = []
    for count, seen in distinct.items():
        tokens = math.log(1.0 - seen / _EXPERTS) / math.log(1.0 - _ACTIVE / _EXPERTS)
        lines.append((count, (tokens - 1.0) / (count - 1.0)))
    return tuple(lines)


UNIFORM = Correlation()
MEASURED = Correlation(width=_measured(_WIDTH), depth=_measured(_DEPTH))


@dataclass(frozen=True, slots=True)
class Workload:
    """A forward of `batch` requests, `rows_per_request` query rows each (1 decodes, γ+1 verifies),
    over `context` tokens that each request has in the cache already."""

    batch: int = 1
    rows_per_request: int = 1
    context: int = 4096

    def __post_init__(self) -> None:
        check_integer("batch", self.batch, 1, 10**7, "a whole number of requests, 1 or more")
        rows = "a whole number of rows, 1 or more"
        check_integer("rows_per_request", self.rows_per_request, 1, 10**7, rows)
        check_integer("context", self.context, 0, 10**9, "a whole number of tokens, 0 or more")

    @property
    def rows(self) -> int:
        return self.batch * self.rows_per_request


@dataclass(frozen=True, slots=True)
class Options:
    """The options that a forward runs with; calibrations are apart (`device.Calibration`).

    tensor_parallel    devices that share each matrix
    data_parallel      groups of them that share the batch out and each hold the attention weights;
                       the experts lie across all devices
    expert_parallel    devices among which whole experts are dealt; 1 cuts each expert up instead
    expert_imbalance   load of the busiest device over the mean, where experts are dealt
    correlation        how alike the experts of neighbouring tokens are
    snapshots          copies of a recurrent state that a verify forward writes: one per row
                       ("per-token", SGLang and vLLM today) or one in all ("replay")
    state_precision    format of that state; None is the config's
    selection_overlap  share of the sparse-attention entries that the rows of one request have in
                       common: 1 reads one selection per request, 0 one per row
    communication      "ring", "in-network" (the switch reduces), or "ignored"
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    expert_imbalance: float = 1.0
    correlation: Correlation = UNIFORM
    snapshots: str = "per-token"
    state_precision: str | None = None
    selection_overlap: float = 1.0
    communication: str = "ring"

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "data_parallel", "expert_parallel"):
            check_integer(name, getattr(self, name), 1, 4096, "a whole number of devices")
        if self.devices % self.expert_parallel:
            expected = f"a divisor of the {self.devices} devices"
            raise InvalidRequest("expert_parallel", self.expert_parallel, expected)
        check_number("expert_imbalance", self.expert_imbalance, 1, 1000, "1 or more")
        check_number("selection_overlap", self.selection_overlap, 0, 1, "a share, 0 to 1")
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise InvalidRequest(name, value, f"one of {', '.join(map(str, allowed))}")

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.data_parallel


class Work(NamedTuple):
    """The work of one component on one device in one forward.

    `flops` run at the peak of `precision`, `bytes` move at the memory's bandwidth; `rows` is the
    number of rows of a matmul. `seconds` is further time, as on a link between devices.
    """

    name: str
    kind: str
    flops: float
    bytes: float
    precision: str = "bf16"
    rows: float = 1.0
    seconds: float = 0.0

    @property
    def kind_index(self) -> int:
        return KINDS.index(self.kind)
