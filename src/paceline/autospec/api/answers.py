"""Bodies of /v1/autospec, of requests and answers. The page's types are made from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from paceline.core.documents import Document

LONGEST_TEXT = 500  # characters
State = Literal["registered", "trained", "scored", "shadow", "canary", "live", "retired"]
By = Literal["minute", "hour", "day"]
Goal = Literal["scored", "shadow", "canary", "live"]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]


class DecidingLoop(TypedDict):
    """The process that decides for the store, and has servers do what it says."""

    purpose: str
    host: str
    since: float


class ReadTraces(TypedDict):
    """State of the reading of traces: `none` where the server writes none, `reading` while that
    lasts, `failed` with a `message`; `until` is the time up to which requests are counted."""

    state: Literal["none", "reading", "read", "failed"]
    until: float | None
    message: str | None


class CohortCurve(TypedDict):
    """AL incl. bonus of a cohort, an item for each minute, hour or day with requests: `time` is
    when it began, `low` and `high` are the 95% interval, `expected` is what is usual then."""

    time: list[float]
    al: list[float]
    low: list[float | None]
    high: list[float | None]
    expected: list[float | None]
    requests: list[int]


class CohortDrift(TypedDict):
    """Comparison of the last `days` with what is usual: by the last turn of the loop (`by_loop`),
    or by the default policy where none has looked. `expected` and the relative `change` are null
    where the days of reference are too few; `error` is the change's standard error, where known."""

    by_loop: bool
    reference_days: int
    days: float
    expected: float | None
    seen: float | None
    change: float | None
    error: float | None


class CohortMark(TypedDict):
    """Something that happened to a cohort's drafter."""

    time: float
    kind: Literal["live", "tried", "stopped"]
    version: str


class ShownCohort(TypedDict):
    """A cohort, `model|app|language|region`; "" stands for all requests.

    `live` drafts for it, by itself if `is_own`; with `shares` its requests are shared out among
    versions, for the reason in `shared_because`. A rollback is possible where `has_rollback`, and
    brings `back` a version, or with null ends the cohort's own service. `requests` and `share` (of
    rounds) are of the last week.
    """

    cohort: str
    live: str | None
    is_own: bool
    shares: dict[str, float]
    shared_because: str
    has_rollback: bool
    back: str | None
    requests: int
    share: float
    curve: CohortCurve | None
    drift: CohortDrift | None
    marks: list[CohortMark]


class ShownVersion(TypedDict):
    """A version of a drafter. `lineage` has its ancestors, its parent first; `goals` are the states
    that it can be promoted to; `changed`, `actor` and `reason` are of its last step."""

    name: str
    state: State
    serves: list[str]
    kind: str | None
    spec: str | None
    checksum: str | None
    target: str | None
    lineage: list[str]
    created: float
    note: str
    goals: list[Goal]
    changed: float
    actor: str
    reason: str


class ScoredAl(TypedDict):
    """AL incl. bonus with its 95% interval, as a version was scored on a cohort's answers."""

    al: float
    low: float
    high: float
    rounds: int
    time: float
    source: str


class SeenAl(TypedDict):
    """Sums of a version over a cohort's requests of the last week; `speedup` is over decoding
    without drafts, by the server's cost table."""

    al: float
    low: float | None
    high: float | None
    requests: int
    speedup: float | None


class AlCell(TypedDict):
    """A cell of the matrix of versions and cohorts."""

    version: str
    cohort: str
    scored: ScoredAl | None
    seen: SeenAl | None


class CanaryArm(TypedDict):
    """The requests of one side of a canary so far; tokens per round include the bonus token."""

    requests: int
    tokens_per_round: float | None


class ShownChange(TypedDict):
    """An attempt to replace a cohort's drafter; `percent` of its requests get the new one, and
    `hold` is what it waits for: room on the server, or what the canary still lacks."""

    id: int
    cohort: str
    origin: Literal["drift", "growth", "renewal", "weights", "pushed"]
    version: str
    replaces: str
    stage: Literal["building", "training", "scoring", "loading", "canary", "live", "stopped"]
    percent: float
    score: str
    hold: list[str]
    new: CanaryArm | None
    old: CanaryArm | None
    created: float
    changed: float
    ended: float | None
    reason: str


class ShownDecision(TypedDict):
    """A decision, and why nothing else was decided. `gain` and `cost` are in the currency of the
    policy, null where nothing is bought. It was made first when `noted`, last when `seen`."""

    id: int
    kind: str
    action: str
    cohorts: list[str]
    start: float
    gain: float | None
    cost: float | None
    why: list[str]
    why_not: list[str]
    noted: float
    seen: float
    ended: float | None


class LeftOut(TypedDict):
    """How many more there are; `columns` are versions that the matrix leaves out."""

    cohorts: int
    versions: int
    columns: int
    changes: int
    decisions: int


class StoreOverview(TypedDict):
    """What a store says, beside the traffic of its cohorts."""

    time: float
    by: By
    loop: DecidingLoop | None
    cohorts: list[ShownCohort]
    versions: list[ShownVersion]
    matrix: list[AlCell]
    changes: list[ShownChange]
    decisions: list[ShownDecision]
    left_out: LeftOut


class AutospecOverview(StoreOverview):
    """All that the page's tab Autospec shows. Times are in seconds since the epoch."""

    traces: ReadTraces


class PromotionBody(Document):
    """A version and where it goes."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Text
    """The version's name."""
    to: Goal | None = None
    """The state that it gets; null: the next one."""
    cohort: Text = ""
    """With `live`: the cohort that it serves, `model|app|language|region`; "" is all requests that
    no other cohort matches."""
    reason: Text = ""
    """Why; it is kept in the history."""


class RollbackBody(Document):
    """A cohort that gets back the version that it had before."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cohort: Text = ""
    """`model|app|language|region`; "" is all requests that no other cohort matches."""
    name: Text | None = None
    """The version that comes back. If another one would, the rollback is refused: somebody was
    faster. Null takes any."""
    reason: Text = ""
    """Why; it is kept in the history."""


class DrafterChange(TypedDict):
    """What has changed in the store: the cohort's live version, and those that were retired for it.
    `loop` has servers follow; without one they do not."""

    cohort: str | None
    live: str | None
    retired: list[str]
    loop: DecidingLoop | None
