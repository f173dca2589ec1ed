"""The arrival times of tokens: event lists that the timing pane plays, drawn from an acceptance or
out of recorded runs (`paceline evaluate`, `paceline bench --record`).

AR gives one token a step. A speculative step gives a burst: the accepted tokens and the one that
the target adds. Bursts are drawn from `commits` by a seed, under the condition that all of them
together have the mean of `commits`: every seed then keeps the stated pace.
Times are milliseconds since the request was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, ConfigDict, Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document, read_json_object
from paceline.core.errors import check_integer, check_number
from paceline.core.field_types import Between, Expected, OneOfTypes

ARRIVALS = "paceline-arrivals/1"
EVALUATION = "paceline-evaluation/1"
FULL = "drafter/full"  # always the whole block: what acceptance is measured on
TIMED = "drafter/throughput"  # as served
AR = "ar"
MOST_TOKENS = 100_000
LONGEST_STEP = 3_600_000.0  # ms
MOST_COMMITS = 1025
DRAWS = 2048  # tries to draw bursts whose total fits
COMMITS = f"1 to {MOST_COMMITS} probabilities of committing 1, 2, … tokens that sum to 1"


def _check_sum(commits: list[float]) -> list[float]:
    if not 1 <= len(commits) <= MOST_COMMITS or abs(sum(commits) - 1) > 1e-6:
        raise ValueError(COMMITS)
    return commits


Step = Annotated[
    float, Field(gt=0, le=LONGEST_STEP), Expected("milliseconds, above 0 and up to an hour")
]
Wait = Annotated[float, Field(ge=0, le=LONGEST_STEP), Expected("milliseconds, up to an hour")]
Commits = Annotated[
    list[Annotated[float, Field(ge=0, le=1), Expected("a probability from 0 to 1")]],
    OneOfTypes((list,), COMMITS),
    AfterValidator(_check_sum),
]


class StatedTiming(Document):
    """An answer whose tokens are to be timed, without speculation and with it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    tokens: Annotated[int, Between(1, MOST_TOKENS)]
    """tokens of the answer"""
    ar_step_ms: Step
    """milliseconds of a step without speculation"""
    step_ms: Step
    """milliseconds of a speculative step"""
    commits: Commits
    """probabilities of a step to commit 1, 2, … γ + 1 tokens"""
    ttft_ms: Wait = 0.0
    """milliseconds to the first token"""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), Expected("a whole number from 0")] = 0
    """seed of the draws"""


class Event(NamedTuple):
    """One step of one request, as its reader sees it: `tokens` = `accepted` + `own`, at `t_ms`.

    `accepted` tokens were drafted, `own` tokens are the target's (the first token, the bonus token,
    forced tokens of a grammar); `drafted` counts the accepted and the rejected ones.
    """

    t_ms: float
    tokens: int
    accepted: int
    own: int
    drafted: int


def autoregressive(tokens: int, step_ms: float, ttft_ms: float = 0.0) -> list[Event]:
    """One token every `step_ms`, the first at `ttft_ms`."""
    return [Event(ttft_ms + step * step_ms, 1, 0, 1, 0) for step in range(tokens)]


def speculative(
    tokens: int, step_ms: float, commits: Sequence[float], *, ttft_ms: float = 0.0, seed: int = 0
) -> list[Event]:
    """Return the first token at `ttft_ms`, then a burst each step until there are `tokens`.

    `commits` are the probabilities of a step to commit 1, 2, … γ + 1 tokens. The answer ends after
    (tokens - 1) / mean of `commits` · `step_ms`, for every seed. Its steps are whole and of one
    length, so a step of a short answer may differ from `step_ms`.
    """
    shares = np.asarray(commits, dtype=float)
    shares = shares / shares.sum()
    mean = float(shares @ np.arange(1, len(shares) + 1))
    bursts = drawn_bursts(tokens - 1, shares, mean, seed) if tokens > 1 else []
    most = len(shares)
    events = [Event(ttft_ms, 1, 0, 1, 0)]
    left = tokens - 1
    lasting = left / mean * step_ms  # milliseconds from the first token to the last
    for number, drawn in enumerate(bursts, 1):
        committed = min(drawn, left)
        accepted = min(drawn - 1, committed)
        at = ttft_ms + lasting * number / len(bursts)
        events.append(Event(at, committed, accepted, committed - accepted, most - 1))
        left -= committed
    return events


def drawn_bursts(tokens: int, shares: npt.NDArray[np.float64], mean: float, seed: int) -> list[int]:
    """Return bursts that are drawn independently from `shares`, under the condition that
    tokens / mean of them, rounded, have `tokens` in all.

    Draws the number of bursts of each size until a total fits, then their order: independent draws
    with the same sizes are equally likely in every order. Where no total fits (100 tokens in bursts
    of 8), the last burst is larger than what is left of the answer.
    """
    rng = np.random.default_rng(seed)
    sizes = np.arange(1, len(shares) + 1)
    rounds = max(1, round(tokens / mean))
    while True:
        counts = rng.multinomial(rounds, shares, size=DRAWS)
        beyond = counts @ sizes - tokens
        if (beyond >= 0).any():
            break
        rounds += 1
    best = counts[np.argmin(np.where(beyond >= 0, beyond, np.iinfo(beyond.dtype).max))]
    bursts = rng.permutation(np.repeat(sizes, best))
    if best @ sizes > tokens:  # a large burst is the one that the end of the answer cuts
        largest = int(np.argmax(bursts))
        bursts[[largest, -1]] = bursts[[-1, largest]]
    before = np.cumsum(bursts) - bursts
    return [int(burst) for burst in bursts[before < tokens]]


def two_panes(stated: Mapping[str, object]) -> tuple[list[Event], list[Event]]:
    """Compute the events without and with speculation. `StatedTiming` lists what can be stated.
    Raises InvalidRequest."""
    timing = StatedTiming.read(dict(stated))
    plain = autoregressive(timing.tokens, timing.ar_step_ms, timing.ttft_ms)
    drafted = speculative(
        timing.tokens, timing.step_ms, timing.commits, ttft_ms=timing.ttft_ms, seed=timing.seed
    )
    return plain, drafted


# -- recorded runs ---------------------------------------------------------------------------------


class TimedPrompt(TypedDict):
    """One prompt of an evaluation. A round is [position, drafted tokens, accepted tokens]."""

    prompt: str
    counted_tokens: int
    seconds: dict[str, list[float | None]]
    rounds: dict[str, list[tuple[int, int, int]]]


class TimedPrompts(TypedDict):
    rows: list[TimedPrompt]


class RecordedEvaluation(TypedDict):
    """The parts of what `paceline evaluate` writes that a trace is read from."""

    drafters: dict[str, dict[str, int]]
    settings: dict[str, int]
    results: list[TimedPrompts]


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
    evaluation = cast(RecordedEvaluation, result)
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


def evaluated_events(row: TimedPrompt) -> tuple[list[Event], list[Event]]:
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
