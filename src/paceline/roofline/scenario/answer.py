"""The answer of a prediction, as JSON has it: `paceline predict --json` and the page read it.

Times are milliseconds, AL counts the bonus token. There are always two tiers: "ceiling" is the pure
roofline, "calibrated" has efficiencies and overheads. Lists that belong together have equal
lengths; null stands for numbers of places that do not fit the memory. "ar" is speculation off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic reads these before Python 3.12

FORMAT: Literal["paceline-prediction/1"] = "paceline-prediction/1"
Tier = Literal["ceiling", "calibrated"]
CEILING: Literal["ceiling"] = "ceiling"
CALIBRATED: Literal["calibrated"] = "calibrated"
TIERS: tuple[Tier, ...] = (CEILING, CALIBRATED)
T = TypeVar("T")
Components = dict[str, float]  # milliseconds by name
Numbers = list[float | None]  # by place; null where the place does not fit


class Tiers(TypedDict, Generic[T]):
    """One answer for each tier."""

    ceiling: T
    calibrated: T


def by_tier(answer: Callable[[Tier], T]) -> Tiers[T]:
    return {"ceiling": answer(CEILING), "calibrated": answer(CALIBRATED)}


class ModelSize(TypedDict):
    """The model; `state_bytes` are of one request's recurrent states."""

    name: str
    family: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    kv_bytes_per_token: float
    state_bytes: float


class Device(TypedDict):
    """The device, and how many of them the deployment has."""

    name: str
    devices: int
    memory: float
    memory_bandwidth: float
    source: str


class Fitting(TypedDict):
    """The most requests that fit at the scenario's context."""

    max_batch: int


class ArStep(TypedDict):
    """A step without speculation."""

    step_ms: float
    tpot_ms: float
    tokens_per_second_per_request: float
    tokens_per_second_per_device: float
    components: Components


class Throughput(TypedDict):
    """Committed tokens per second by place; one against the other is the Pareto front."""

    tokens_per_second_per_request: Numbers
    tokens_per_second_per_device: Numbers


class ArByBatch(TypedDict):
    """Throughput without speculation, over batches."""

    batch: list[int]
    ceiling: Throughput
    calibrated: Throughput


class DraftNumbers(TypedDict):
    """Numbers by draft length. `break_even_length` is the AL at which that draft length is as fast
    as AR."""

    speedup: list[float]
    step_ms: list[float]
    verify_ms: list[float]
    draft_ms: list[float]
    tpot_ms: list[float]
    tokens_per_second_per_request: list[float]
    tokens_per_second_per_device: list[float]
    break_even_length: list[float]


class Curve(TypedDict):
    """Draft lengths 0 … `max_draft`; `acceptance_length` is the toy model's speedup."""

    draft_length: list[int]
    acceptance_length: list[float]
    ceiling: DraftNumbers
    calibrated: DraftNumbers


class Optimum(TypedDict):
    """The best row of the curve; "draft" is among the components."""

    draft_length: int
    acceptance_length: float
    speedup: float
    step_ms: float
    verify_ms: float
    draft_ms: float
    tpot_ms: float
    tokens_per_second_per_request: float
    tokens_per_second_per_device: float
    break_even_length: float
    components: Components


class BestNumbers(Throughput):
    """The best draft length by place, and its numbers."""

    draft_length: list[int | None]
    acceptance_length: Numbers
    speedup: Numbers
    tpot_ms: Numbers


class Best(TypedDict):
    """The optimum by place; `max_draft` is the longest draft that fits there."""

    max_draft: list[int | None]
    ceiling: BestNumbers
    calibrated: BestNumbers


class BestByBatch(Best):
    batch: list[int]


class BestByContext(Best):
    context: list[int]


class HeatMap(TypedDict):
    """Speedups, [batch][draft_length]."""

    batch: list[int]
    draft_length: list[int]
    ceiling: list[Numbers | None]
    calibrated: list[Numbers | None]


class DrafterAnswer(TypedDict):
    """One drafter's views. `commits` is P(a round commits 1, 2, … tokens) at the calibrated
    optimum; `flags` are lines to launch "paceline", "vllm" and "sglang" with there, null where the
    engine has no such drafter."""

    name: str
    kind: str
    block: int | None
    max_draft: int
    acceptance: list[float]
    curve: Curve
    optimum: Tiers[Optimum]
    by_batch: BestByBatch
    by_context: BestByContext | None
    heat_map: HeatMap
    commits: list[float]
    flags: dict[str, str | None]


class Prediction(TypedDict):
    """The answer of a prediction. `scenario` is the question with its defaults filled in;
    `calibration` is its name and its numbers; `notes` are sentences to show beside the numbers."""

    format: Literal["paceline-prediction/1"]
    scenario: dict[str, object]
    model: ModelSize
    hardware: Device
    calibration: dict[str, str | float]
    capacity: Fitting
    ar: Tiers[ArStep]
    ar_by_batch: ArByBatch
    drafters: list[DrafterAnswer]
    notes: list[str]


def prediction_schema() -> dict[str, object]:
    """Return the JSON schema of the answer."""
    return TypeAdapter(Prediction).json_schema()
