"""The workload of a forward, the options it runs with, and the work of its components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.errors import InvalidRequest, check_integer, check_number
from paceline.roofline.architecture.correlation import UNIFORM, Correlation
from paceline.roofline.device.calibration import KINDS

SNAPSHOTS = ("per-token", "replay")
COMMUNICATION = ("ring", "in-network", "ignored")
STATE_FORMATS = (None, "bf16", "fp32")


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
        _one_of("snapshots", self.snapshots, SNAPSHOTS)
        _one_of("communication", self.communication, COMMUNICATION)
        _one_of("state_precision", self.state_precision, STATE_FORMATS)

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


def _one_of(name: str, value: object, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(name, value, f"one of {', '.join(map(str, allowed))}")
