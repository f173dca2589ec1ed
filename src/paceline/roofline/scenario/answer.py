"""The answer of a prediction, as JSON has it: `paceline predict --json` and the page read it.

Times are milliseconds, AL counts the bonus token. There are always two tiers: "roofline" is the
datasheet's bandwidth and arithmetic alone, and no engine passes its tokens per second; "calibrated"
has an engine's efficiencies and overheads. Its speedup may be the larger one, for overheads slow
steps without drafts as well. Lists that belong together have equal lengths. What does not fit the
memory is a state of its own (`Fits`): its numbers are null, never those of speculation off. "ar" is
speculation off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic reads these before Python 3.12

FORMAT: Literal["paceline-prediction/2"] = "paceline-prediction/2"
Tier = Literal["roofline", "calibrated"]
ROOFLINE: Literal["roofline"] = "roofline"
CALIBRATED: Literal["calibrated"] = "calibrated"
TIERS: tuple[Tier, ...] = (ROOFLINE, CALIBRATED)
T = TypeVar("T")
Components = dict[str, float]  # milliseconds by name
Numbers = list[float | None]  # by place or draft length; null where it does not fit
Fits = Literal["drafts", "no draft", "nothing"]  # what the memory of a place holds


class Tiers(TypedDict, Generic[T]):
    """One answer for each tier."""

    roofline: T
    calibrated: T


def by_tier(answer: Callable[[Tier], T]) -> Tiers[T]:
    return {"roofline": answer(ROOFLINE), "calibrated": answer(CALIBRATED)}


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
    roofline: Throughput
    calibrated: Throughput


class DraftNumbers(TypedDict):
    """Numbers by draft length; null for drafts that do not fit. `break_even_length` is the AL at
    which that draft length is as fast as AR."""

    speedup: Numbers
    step_ms: Numbers
    verify_ms: Numbers
    draft_ms: Numbers
    tpot_ms: Numbers
    tokens_per_second_per_request: Numbers
    tokens_per_second_per_device: Numbers
    break_even_length: Numbers


class Curve(TypedDict):
    """Every draft length looked at, and whether it `fits`; `acceptance_length` is the toy model's
    speedup."""

    draft_length: list[int]
    fits: list[bool]
    acceptance_length: list[float]
    roofline: DraftNumbers
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
    """The optimum by place, null where no draft `fits`; `max_draft` is the longest that does."""

    fits: list[Fits]
    max_draft: list[int | None]
    roofline: BestNumbers
    calibrated: BestNumbers


class BestByBatch(Best):
    batch: list[int]


class BestByContext(Best):
    context: list[int]


class HeatMap(TypedDict):
    """Speedups, [batch][draft_length]; null exactly where the draft does not fit."""

    batch: list[int]
    draft_length: list[int]
    roofline: list[Numbers]
    calibrated: list[Numbers]


class Evidence(TypedDict):
    """States how far calibrated numbers may be off: what is measured lies between `low` and `high`
    times them, as far as published measurements tell; null where nothing was measured."""

    low: float | None
    high: float | None
    text: str


class PublishedPoint(TypedDict):
    """A published measurement of this model on these devices. `tokens_per_second` and `batch` are
    of all requests; null where the source does not tell."""

    source: str
    url: str | None
    set: str
    kind: str | None
    batch: int
    draft_length: int
    acceptance_length: float
    tokens_per_second: float | None
    speedup: float | None


class LaunchLine(TypedDict):
    """A command that launches an engine; `missing` says what the engine lacks where there is
    none."""

    command: str | None
    missing: str | None


class DrafterAnswer(TypedDict):
    """One drafter's views. Where no draft `fits`, the optimum is null. `commits` is P(a round
    commits 1, 2, … tokens) at the calibrated optimum; `flags` are lines to launch "paceline",
    "vllm" and "sglang" with there."""

    name: str
    kind: str
    block: int | None
    fits: Fits
    max_draft: int
    acceptance: list[float]
    curve: Curve
    optimum: Tiers[Optimum] | None
    evidence: Evidence
    by_batch: BestByBatch
    by_context: BestByContext | None
    heat_map: HeatMap
    commits: list[float]
    flags: dict[str, LaunchLine]


class Prediction(TypedDict):
    """The answer of a prediction. `scenario` is the question with its defaults filled in, the
    number of devices too;
    `calibration` is its name and its numbers, `evidence` that of plain decoding; `published` are
    measurements of others; `notes` are sentences to show beside the numbers."""

    format: Literal["paceline-prediction/2"]
    scenario: dict[str, object]
    model: ModelSize
    hardware: Device
    calibration: dict[str, str | float]
    evidence: Evidence
    published: list[PublishedPoint]
    capacity: Fitting
    ar: Tiers[ArStep]
    ar_by_batch: ArByBatch
    drafters: list[DrafterAnswer]
    notes: list[str]


def prediction_schema() -> dict[str, object]:
    """Return the JSON schema of the answer."""
    return TypeAdapter(Prediction).json_schema()
