"""Recorded runs of `paceline evaluate` and `paceline bench --record`, as a trace of acceptance and
as events to play."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TypedDict, cast

from paceline.core import InvalidRequest
from paceline.core.documents import read_json_object
from paceline.core.errors import check_integer, check_number
from paceline.roofline.timing import LONGEST_STEP, MOST_TOKENS, Event

ARRIVALS = "paceline-arrivals/1"
EVALUATION = "paceline-evaluation/1"
FULL = "drafter/full"  # always the whole block: what acceptance is measured on
TIMED = "drafter/throughput"  # as served
AR = "ar"


class EvaluatedRow(TypedDict):
    """One prompt of an evaluation. A round is [position, drafted tokens, accepted tokens]."""

    prompt: str
    counted_tokens: int
    seconds: dict[str, list[float | None]]
    rounds: dict[str, list[tuple[int, int, int]]]


class EvaluatedRun(TypedDict):
    rows: list[EvaluatedRow]


class Evaluation(TypedDict):
    """The parts of what `paceline evaluate` writes that a trace is read from."""

    drafters: dict[str, dict[str, int]]
    settings: dict[str, int]
    results: list[EvaluatedRun]


def read_trace(path: Path) -> dict[str, list[int]]:
    """Read accepted and drafted tokens of every counted round of an evaluation's JSON, as a
    scenario states an acceptance.

    Rounds after the text began to loop, and those that the limit of tokens would have cut short,
    are left out, as in the report. Raises InvalidRequest.
    """
    result = read_json_object(path, "trace")
    if result.get("format") != EVALUATION:
        expected = f"what `paceline evaluate` writes ({EVALUATION})"
        raise InvalidRequest("trace", str(path), expected)
    evaluation = cast(Evaluation, result)
    last = evaluation["settings"]["tokens"] - evaluation["drafters"]["drafter"]["block"]
    counted = [
        (stood, offered)
        for run in evaluation["results"]
        for row in run["rows"]
        for position, offered, stood in row["rounds"][FULL]
        if position < min(row["counted_tokens"], last)
    ]
    if not counted:
        raise InvalidRequest("trace", str(path), "an evaluation with rounds that count")
    accepted, drafted = zip(*counted, strict=True)
    return {"accepted": list(accepted), "drafted": list(drafted)}


def evaluated_events(row: EvaluatedRow) -> tuple[list[Event], list[Event]]:
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
    bursts = [(at, len(list(same))) for at, same in groupby(arrivals_ms)]
    return [Event(at, burst, 0, burst, 0) for at, burst in bursts]
