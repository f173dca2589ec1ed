"""Recorded runs of `paceline evaluate` and `paceline bench --record`, as a trace of acceptance and
as events to play."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.documents import read_json_object
from paceline.core.errors import check_integer, check_number
from paceline.roofline.acceptance import Trace
from paceline.roofline.timing import LONGEST_STEP, MOST_TOKENS, Event

ARRIVALS = "paceline-arrivals/1"
EVALUATION = "paceline-evaluation/1"
FULL = "drafter/full"  # always the whole block: what acceptance is measured on
TIMED = "drafter/throughput"  # as served
AR = "ar"


def read_trace(path: Path) -> Trace:
    """Read accepted and drafted tokens of every counted round of an evaluation's JSON.

    Rounds after the text began to loop, and those that the limit of tokens would have cut short,
    are left out, as in the report. Raises InvalidRequest.
    """
    result = read_evaluation(path)
    block, tokens = result["drafters"]["drafter"]["block"], result["settings"]["tokens"]
    accepted, drafted = [], []
    for row in _rows(result):
        end = min(row["counted_tokens"], tokens - block)
        for position, offered, stood in row["rounds"][FULL]:
            if position < end:
                drafted.append(offered)
                accepted.append(stood)
    if not accepted:
        raise InvalidRequest("trace", str(path), "an evaluation with rounds that count")
    return Trace(tuple(accepted), tuple(drafted))


def read_evaluation(path: Path) -> Mapping[str, Any]:
    """Read the JSON that `paceline evaluate` writes. Raises InvalidRequest."""
    result = read_json_object(path, "trace")
    if result.get("format") != EVALUATION:
        expected = f"what `paceline evaluate` writes ({EVALUATION})"
        raise InvalidRequest("trace", str(path), expected)
    return result


def _rows(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for run in result["results"]:
        yield from run["rows"]


def evaluated_events(row: Mapping[str, Any]) -> tuple[list[Event], list[Event]]:
    """Return the events of one prompt of an evaluation: AR, and the drafter as it would serve.

    The row has the tokens of each round, and the seconds of all rounds together: rounds are spread
    evenly over them. It lacks the time to the first token, which is 0 here.
    """
    counted = row["counted_tokens"]
    plain, drafted = row["seconds"][AR][0], row["seconds"][TIMED][0]
    expected = f"a row of 2 to {MOST_TOKENS} counted tokens"
    check_integer("counted_tokens", counted, 2, MOST_TOKENS, expected)
    if plain is None or drafted is None:
        raise InvalidRequest("row", row.get("prompt"), "a row that was timed")
    for seconds in (plain, drafted):
        check_number("seconds", seconds, 0, LONGEST_STEP, "seconds of an answer, 0 or more")
    step = 1e3 * plain / (counted - 1)
    alone = [Event(step * index, 1, 0, 1, 0) for index in range(counted)]
    rounds = [entry for entry in row["rounds"][TIMED] if entry[0] < counted]
    if not rounds:
        raise InvalidRequest("rounds", row.get("prompt"), "at least one round that counts")
    ends = [position for position, *_ in rounds[1:]] + [counted]
    events = [Event(0.0, 1, 0, 1, 0)]
    for number, ((position, offered, stood), end) in enumerate(zip(rounds, ends, strict=True), 1):
        tokens = end - position
        accepted = min(stood, tokens)
        at = 1e3 * drafted * number / len(rounds)
        events.append(Event(at, tokens, accepted, tokens - accepted, offered))
    return alone, events


def arrival_events(arrivals_ms: Sequence[float]) -> list[Event]:
    """Return the events of one streamed answer, from each token's time in ms since the request was
    sent. Tokens with the same time came in one burst; a reader cannot tell who drafted them."""
    events: list[Event] = []
    for at in arrivals_ms:
        if events and events[-1].t_ms == at:
            burst = events.pop().tokens + 1
            events.append(Event(at, burst, 0, burst, 0))
        else:
            events.append(Event(at, 1, 0, 1, 0))
    return events
