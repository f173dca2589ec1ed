"""JSON that the page alone asks for, as TypedDicts: the page's types are made from them."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from paceline.dataset.run_log import RunState
from paceline.roofline.scenario import Preset

# -- /ui/state and /ui/serving ---------------------------------------------------------------------


class Tab(TypedDict):
    """A tab of the page. One that is not available has the reason, and the command that starts
    what the tab needs."""

    name: str
    title: str
    available: bool
    reason: NotRequired[str]
    command: NotRequired[str]


class PageState(TypedDict):
    version: str
    key_needed: bool
    opens_on: str
    tabs: list[Tab]


class TrainingRuns(TypedDict):
    """The runs of training that the page shows. `errors` are those of runs whose log cannot be
    read, by folder."""

    runs: list[RunState]
    errors: dict[str, str]


class ServedDrafter(TypedDict):
    name: str
    version: str
    max_draft_len: int


class ServingFacts(TypedDict):
    """Describes the server to the page."""

    models: list[str]
    max_model_len: int
    drafters: list[ServedDrafter]
    default_drafter: str | None
    draft_policy: str
    rule: str
    holdback: float
    max_num_seqs: int


class SeenAcceptance(TypedDict):
    """Sums up what Live has seen of a drafter: `acceptance_length` includes the bonus token."""

    rounds: int
    acceptance_length: float
    draft_length: float


class NamedConfig(TypedDict):
    config: dict[str, object]
    name: str


class ServedAcceptance(TypedDict):
    """States acceptance as a scenario does: `alpha`, or `al` at a draft length."""

    alpha: float | None
    al: float | None
    draft_length: int | None


class ServedCost(TypedDict):
    """A drafter's measured cost, as a scenario states it: a share of an AR step, or seconds."""

    name: str
    kind: str
    cost: float | None
    block: int | None
    seconds: float | None
    acceptance: ServedAcceptance


class ServedMachine(TypedDict):
    """The machine, as a scenario states a device."""

    name: str
    kind: str
    memory_bandwidth: float
    peak: dict[str, float]
    memory: float
    source: str


class ServedScenario(TypedDict):
    """Describes what runs here, as parts of a scenario. `median_error` is that of the calibration
    at the steps that it was fitted to; `seen` has the drafters that have drafted, by name."""

    model: NamedConfig
    hardware: ServedMachine
    precision: str
    calibration: dict[str, float]
    median_error: float
    drafters: list[ServedCost]
    seen: dict[str, SeenAcceptance]
    context: int


# -- /ui/live --------------------------------------------------------------------------------------


class LiveGauges(TypedDict):
    running: int
    waiting: int
    kv_usage: float


class Quantiles(TypedDict):
    """Seconds at quantiles of the requests that ended."""

    p50: float
    p90: float
    p99: float


class Latency(TypedDict):
    """Latencies of the streams that ended; null where no stream has the number."""

    streams: int
    queue: Quantiles | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    total: Quantiles | None


class PositionCount(TypedDict):
    drafted: int
    accepted: int


class RoundCounts(TypedDict):
    """Counts of rounds. `acceptance_length` includes the bonus token."""

    rounds: int
    draft_rounds: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_length: float | None
    draft_length: float | None
    rounds_by_draft_length: list[int]


class LiveRounds(RoundCounts):
    positions: list[PositionCount]


class LiveSpeculation(LiveRounds):
    """Counts of rounds, and those of each part of a composed drafter."""

    forced_tokens: int
    parts: dict[str, LiveRounds]


class LiveGroup(TypedDict):
    """The requests of one drafter and cohort; `drafter` is null for requests without drafts."""

    drafter: str | None
    cohort: str
    tokens: int
    speedup_vs_ar: float | None
    speculation: LiveSpeculation
    latency: Latency


class LivePoint(LiveGauges):
    """One point of the curves: gauges at `time`, the rest over the seconds before."""

    time: float
    tokens_per_second: float
    acceptance_length: float | None
    draft_length: float | None
    speedup_vs_ar: float | None


class Holdback(TypedDict):
    """Median TPOT of requests held back from drafting ÷ that of the others, and their numbers."""

    speedup: float
    held_back: int
    others: int


class WindowNumbers(TypedDict):
    """Numbers over the window, all requests together."""

    tokens_per_second: float
    prompt_tokens_per_second: float
    generation_tokens: int
    prefix_hit_rate: float | None
    preemptions: int
    speedup_vs_ar: float | None
    speculation: LiveSpeculation


class LiveSnapshot(WindowNumbers):
    """The numbers of the Live tab. `time` is in seconds since the epoch."""

    time: float
    window: float
    now: LiveGauges
    latency: Latency
    holdback: Holdback | None
    groups: list[LiveGroup]
    history: list[LivePoint]


# -- /ui/requests ---------------------------------------------------------------------------------


class RecentRequest(TypedDict):
    """A request whose rounds are kept. A choice that still runs has no finish reason yet;
    `acceptance_length` includes the bonus token, and is null where nothing was drafted."""

    id: str
    created: int
    model: str
    finish_reasons: list[str | None]
    tokens: int
    rounds: int
    acceptance_length: float | None


class RecentRequests(TypedDict):
    """The latest requests whose rounds the server keeps, the newest first."""

    requests: list[RecentRequest]


# -- /ui/models, /ui/hardware, /ui/measured, /ui/timing --------------------------------------------


class ModelFacts(TypedDict):
    """A listed model; `max_context` is 0 where its config states none."""

    name: str
    max_context: int
    parameters: int
    active_parameters: int
    weight_bytes: float


class ModelLists(TypedDict):
    models: list[ModelFacts]
    precisions: list[str]
    drafters: list[str]
    presets: list[Preset]


class ListedHardware(TypedDict):
    """Hardware with bytes, bytes per second, and FLOP/s by number format."""

    name: str
    memory: float
    memory_bandwidth: float
    peak: dict[str, float]
    source: str


class HardwareLists(TypedDict):
    hardware: list[ListedHardware]
    calibrations: dict[str, dict[str, object]]


class ShownPoint(TypedDict):
    """A measured speedup over AR. `acceptance_length` includes the bonus token; `draft_length` and
    `batch` are null where they differ within it."""

    acceptance_length: float
    speedup: float
    draft_length: int | None
    batch: int | None
    note: str


class MeasuredPoints(TypedDict):
    points: list[ShownPoint]


class TimedEvent(TypedDict):
    """One step of a request as its reader sees it: `tokens` = `accepted` + `own`, at `t_ms`."""

    t_ms: float
    tokens: int
    accepted: int
    own: int
    drafted: int


class TimedRun(TypedDict):
    """Events of both panes. `acceptance_length` includes the bonus token, and is null where it is
    not known; `rows` names the rows of a file to choose from."""

    ar: list[TimedEvent]
    speculative: list[TimedEvent]
    acceptance_length: float | None
    rows: list[str]
