"""The rows of traces, and how they become columns."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple, Self

from paceline.core.cohorts import Cohort
from paceline.core.packages import MissingPackage
from paceline.core.rounds import Round, acceptance_length

FORMAT = "paceline-traces/1"
REQUESTS, ROUNDS = "requests", "rounds"  # kinds of files, and their folders
KINDS = (REQUESTS, ROUNDS)
SHARED, OWN = "shared", "own"  # scopes of token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """One answer to one prompt. Times are in seconds, `time` and `expires` since the epoch.

    time          when it ended
    key           the name of its API key; "" on an open server
    scope         whose drafters may learn from its token ids: of all (shared) or of its key alone
                  (own); "" where it has none
    session       a digest of the session, keyed with a secret of the folder
    route         why it had its drafter: "default", "named", or a rule of the routes
    spec_off      whether it asked for no drafts, or its server has none
    held_back     whether it was kept from drafting, to compare with; None: it was not drawn for
    rounds        all rounds, `draft_rounds` of them with a draft; `drafted` tokens were verified,
                  `accepted` of them stand; `forced` tokens were left no choice by a grammar
    drafted_by_position, accepted_by_position   rounds that drafted, and accepted, draft token k
    seconds       of its steps; `ar_seconds` of as many steps without drafts, by the cost table
    draft_bound   longest draft that it could have had
    prompt_ids, output_ids, expires   None without consent, or when they have expired
    forced_places   places in `output_ids` where a grammar left no choice; None where nobody knows
    """

    id: str
    time: float
    model: str
    app: str
    language: str
    region: str
    key: str = ""
    scope: str = ""
    session: str = ""
    drafter: str | None = None
    version: str | None = None
    route: str = "default"
    spec_off: bool = False
    held_back: bool | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    finish: str = ""
    temperature: float = 0.0
    grammar: bool = False
    rule: str = ""
    rounds: int = 0
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    drafted_by_position: Sequence[int] = ()
    accepted_by_position: Sequence[int] = ()
    seconds: float = 0.0
    ar_seconds: float = 0.0
    draft_bound: int = 0
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None
    forced_places: Sequence[int] | None = None
    expires: float | None = None
    engine: str = "paceline"

    @property
    def cohort(self) -> Cohort:
        return Cohort(self.model, self.app, self.language, self.region)

    @property
    def acceptance_length(self) -> float | None:
        """AL of the rounds that drafted, incl. bonus; None where nothing was drafted."""
        return acceptance_length(self.accepted, self.draft_rounds)


class RoundTrace(NamedTuple):
    """One round of a request, as in core.rounds.Round. Of an engine elsewhere only the first four
    fields are known."""

    request: str
    position: int
    drafted: int
    accepted: int
    bonus: bool = True
    forced: int = 0
    part: str | None = None
    cut_by: str | None = None
    step_requests: int | None = None
    step_rows: int | None = None
    draft_seconds: float | None = None
    step_seconds: float | None = None

    @classmethod
    def of(cls, request: str, round: Round) -> Self:
        """Return the row of a round of our engine."""
        cut_by = None if round.cut_by is None else round.cut_by.value
        head = (request, round.position, round.drafted, round.accepted, round.bonus, round.forced)
        step = round.step
        if step is None:
            return cls(*head, round.part, cut_by)
        took = step.draft_seconds, step.seconds
        return cls(*head, round.part, cut_by, step.requests, step.rows, *took)


Traced = tuple[RequestTrace, Sequence[RoundTrace]]  # an answer and its rounds
_TEXT, _FLAG, _COUNT, _REAL, _IDS = "string", "bool", "int32", "float64", "list<int32>"
COLUMNS: dict[str, dict[str, str]] = {
    REQUESTS: {
        **dict.fromkeys((field.name for field in fields(RequestTrace)), _TEXT),
        **dict.fromkeys(("spec_off", "held_back", "grammar"), _FLAG),
        **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens"), _COUNT),
        **dict.fromkeys(("rounds", "draft_rounds", "drafted", "accepted", "forced"), _COUNT),
        "draft_bound": _COUNT,
        **dict.fromkeys(("time", "ttft", "tpot", "total", "temperature"), _REAL),
        **dict.fromkeys(("seconds", "ar_seconds", "expires"), _REAL),
        **dict.fromkeys(("drafted_by_position", "accepted_by_position"), _IDS),
        **dict.fromkeys(("prompt_ids", "output_ids", "forced_places"), _IDS),
    },
    ROUNDS: {
        **dict.fromkeys(RoundTrace._fields, _COUNT),
        **dict.fromkeys(("request", "part", "cut_by"), _TEXT),
        "bonus": _FLAG,
        **dict.fromkeys(("draft_seconds", "step_seconds"), _REAL),
    },
}
TOKEN_COLUMNS = ("prompt_ids", "output_ids", "forced_places")


def trace_package(module: str, package: str) -> Any:
    """Import a module of a package of the extra `autospec`, when it is needed. Raises
    MissingPackage."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage("traces need", package) from error


def arrow_module() -> Any:
    return trace_package("pyarrow", "pyarrow")


def parquet_module() -> Any:
    return trace_package("pyarrow.parquet", "pyarrow")


def schema(kind: str) -> Any:
    """Return the Arrow schema of a kind of files."""
    arrow = arrow_module()
    types = {
        _TEXT: arrow.string(),
        _FLAG: arrow.bool_(),
        _COUNT: arrow.int32(),
        _REAL: arrow.float64(),
        _IDS: arrow.list_(arrow.int32()),
    }
    columns = [(name, types[kind_of]) for name, kind_of in COLUMNS[kind].items()]
    return arrow.schema(columns, metadata={"paceline.format": FORMAT})


def batch(kind: str, rows: Sequence[RequestTrace] | Sequence[RoundTrace]) -> Any:
    """Return rows as an Arrow record batch, column by column: half of what rows as dicts take."""
    arrow, columns = arrow_module(), schema(kind)
    arrays = [
        arrow.array(list(map(attrgetter(field.name), rows)), type=field.type) for field in columns
    ]
    return arrow.RecordBatch.from_arrays(arrays, schema=columns)


def request_rows(table: Any) -> Iterable[RequestTrace]:
    """Yield the rows of a table of requests that has all columns."""
    for record in table.to_pylist():
        yield RequestTrace(**record)


def without_tokens(table: Any, gone: Any) -> Any:
    """Return a table of requests without the token ids of the rows that `gone` marks, nor what is
    said about them."""
    arrow = arrow_module()
    compute = trace_package("pyarrow.compute", "pyarrow")
    gone = compute.fill_null(gone, False)
    empty = {**dict.fromkeys((*TOKEN_COLUMNS, "expires")), "scope": ""}
    for name in empty.keys() & set(table.column_names):
        index, field = table.schema.get_field_index(name), table.schema.field(name)
        value = arrow.scalar(empty[name], type=field.type)
        table = table.set_column(index, field, compute.if_else(gone, value, table[name]))
    return table
