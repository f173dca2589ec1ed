"""The timing pane's events: from stated speeds, from an evaluation, or from recorded arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.errors import check_integer, check_number
from paceline.core.field_types import AtMost, Between, Whole
from paceline.roofline.acceptance import acceptance_of
from paceline.roofline.timing import (
    ARRIVALS,
    EVALUATION,
    LONGEST_STEP,
    MOST_TOKENS,
    Event,
    arrival_events,
    evaluated_events,
    two_panes,
)
from paceline.server.fields import JsonObject
from paceline.server.page_answers import TimedEvent, TimedRun
from paceline.server.responses import picked
from paceline.server.ui_measured import MALFORMED, run_name

LONGEST_DRAFT = 64
FASTEST = 1e6  # tokens per second
FASTEST_WORDS = f"tokens per second of one request, above 0 and up to {FASTEST:g}"
Speed = Annotated[float, Between(0, FASTEST, open=True, words=FASTEST_WORDS)]
Times = Annotated[list[float], AtMost(MOST_TOKENS, "tokens")]


class Speeds(Document):
    """Speeds of one request without and with speculation, and how its bursts come: as `commits`,
    or as `acceptance` (as in a scenario) with `draft_length`."""

    tokens: Annotated[Whole, Between(1, MOST_TOKENS)]
    ttft_ms: float = 0.0
    seed: int = 0
    ar_tokens_per_second: Speed
    tokens_per_second: Speed
    acceptance: JsonObject | None = None
    draft_length: Annotated[Whole, Between(0, LONGEST_DRAFT)] | None = None
    commits: list[float] | None = None

    def panes(self) -> TimedRun:
        commits = self._shares() if self.commits is None else self.commits
        panes = {
            **self.model_dump(include={"tokens", "ttft_ms", "seed"}),
            "ar_step_ms": 1e3 / self.ar_tokens_per_second,
            "commits": commits,
        }
        # a first look with any step: `commits` is checked before it is added up
        two_panes({**panes, "tokens": 1, "step_ms": 1.0})
        length = sum(count * share for count, share in enumerate(commits, 1))
        events = two_panes({**panes, "step_ms": 1e3 * length / self.tokens_per_second})
        return timed_run(*events, length)

    def _shares(self) -> list[float]:
        """Return the share of rounds that commit 1, 2, ... tokens."""
        if self.acceptance is None:
            raise InvalidRequest("acceptance", None, 'an object such as {"al": 3.5, …}')
        if self.draft_length is None:
            expected = f"a whole number of tokens from 0 to {LONGEST_DRAFT}"
            raise InvalidRequest("draft_length", None, expected)
        return [*map(float, acceptance_of(self.acceptance).commit_probabilities(self.draft_length))]


class EvaluatedRow(Document):
    """One row of what `paceline evaluate` wrote."""

    evaluation: JsonObject
    row: int = 0

    def panes(self) -> TimedRun:
        if self.evaluation.get("format") != EVALUATION:
            expected = f"what `paceline evaluate` writes ({EVALUATION})"
            raise InvalidRequest("evaluation", self.evaluation.get("format"), expected)
        try:
            rows, names = [], []
            for index, result in enumerate(self.evaluation["results"]):
                run = run_name(f"evaluation.results[{index}]", result)
                rows += result["rows"]
                names += [f"{run}: {row['prompt']}" for row in result["rows"]]
            _check_row(self.row, len(rows))
            plain, drafted = evaluated_events(rows[self.row])
        except InvalidRequest:
            raise
        except MALFORMED as error:
            expected = f"all that `paceline evaluate` writes ({error!r} is missing or wrong)"
            raise InvalidRequest("evaluation", "its results", expected) from error
        rounds = drafted[1:]
        length = sum(event.tokens for event in rounds) / len(rounds) if rounds else None
        return timed_run(plain, drafted, length, names)


class ArrivalTimes(Document):
    """Arrival of each token in milliseconds since the request, without and with speculation."""

    ar: Times
    speculative: Times


class Arrivals(Document):
    """Arrivals that were measured elsewhere."""

    arrivals_ms: ArrivalTimes

    def panes(self) -> TimedRun:
        times = self.arrivals_ms
        for name in ("ar", "speculative"):
            _check_rising(f"arrivals_ms.{name}", getattr(times, name))
        return timed_run(arrival_events(times.ar), arrival_events(times.speculative))


class RecordedRow(Document):
    """The lines that `paceline bench --record` wrote: a prompt's run without speculation and the
    same run with it are a row."""

    recorded: list[object]
    row: int = 0

    def panes(self) -> TimedRun:
        expected = f"the lines that `paceline bench --record` wrote ({ARRIVALS})"
        runs: dict[tuple[str, str], dict[str, object]] = {}
        for index, line in enumerate(self.recorded):
            if not isinstance(line, dict) or line.get("format") != ARRIVALS:
                raise InvalidRequest(f"recorded[{index}]", line, expected)
            run = runs.setdefault((str(line.get("prompt")), str(line.get("run"))), {})
            run[str(line.get("speculation"))] = line.get("arrivals_ms")
        pairs = {key: run for key, run in runs.items() if run.keys() >= {"off", "on"}}
        if not pairs:
            raise InvalidRequest("recorded", len(self.recorded), f"{expected}, off and on of a run")
        _check_row(self.row, len(pairs))
        run = list(pairs.values())[self.row]
        times = {"ar": run["off"], "speculative": run["on"]}
        names = [f"{prompt}, run {count}" for prompt, count in pairs]
        answer = Arrivals.read({"arrivals_ms": times}).panes()
        answer["rows"] = names
        return answer


Form = type[Speeds | EvaluatedRow | RecordedRow | Arrivals]
FORMS: dict[str, Form] = {
    "evaluation": EvaluatedRow,
    "recorded": RecordedRow,
    "arrivals_ms": Arrivals,
}


def timing(stated: JsonObject) -> TimedRun:
    """Return the events of both panes, from one of FORMS or from Speeds. Raises InvalidRequest."""
    form = next((form for name, form in FORMS.items() if name in stated), Speeds)
    return form.read(stated).panes()


def timed_run(
    plain: Sequence[Event],
    drafted: Sequence[Event],
    acceptance_length: float | None = None,
    rows: Sequence[str] = (),
) -> TimedRun:
    """Return the events without and with speculation as the page reads them."""
    return {
        "ar": [_timed(event) for event in plain],
        "speculative": [_timed(event) for event in drafted],
        "acceptance_length": acceptance_length,
        "rows": list(rows),
    }


def _timed(event: Event) -> TimedEvent:
    return picked(TimedEvent, event)


def _check_row(row: int, count: int) -> None:
    check_integer("row", row, 0, count - 1, f"a row from 0 to {count - 1}")


def _check_rising(field: str, times: Sequence[float]) -> None:
    expected = "times in ms since the request, at least one, that never fall"
    if not times:
        raise InvalidRequest(field, times, expected)
    for before, at in zip([0, *times], times, strict=False):
        check_number(field, at, before, LONGEST_STEP, expected)
