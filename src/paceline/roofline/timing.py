"""The arrival times of tokens: event lists that the timing pane plays, drawn from an acceptance.

AR gives one token a step. A speculative step gives a burst: the accepted tokens and the one that
the target adds, so many at once as `commits` says, each step by itself and the same for one seed.
Times are milliseconds since the request was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.field_types import Between, Expected, OneOfTypes

MOST_TOKENS = 100_000
LONGEST_STEP = 3_600_000.0  # ms
MOST_COMMITS = 1025
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
    """The first token at `ttft_ms`, then a burst every `step_ms` until there are `tokens`.

    `commits` are the probabilities of a step to commit 1, 2, … γ + 1 tokens; the last burst ends
    where the answer does.
    """
    edges = np.cumsum(np.asarray(commits, dtype=float))
    rng = np.random.default_rng(seed)
    events = [Event(ttft_ms, 1, 0, 1, 0)]
    left = tokens - 1
    for step in count(1):
        if not left:
            break
        drawn = 1 + int(np.searchsorted(edges, rng.random(), side="right"))
        committed = min(drawn, len(edges), left)
        accepted = min(drawn - 1, len(edges) - 1, committed)
        at = ttft_ms + step * step_ms
        events.append(Event(at, committed, accepted, committed - accepted, len(edges) - 1))
        left -= committed
    return events


def two_panes(stated: Mapping[str, object]) -> dict[str, object]:
    """Compute both panes as plain JSON, "ar" and "speculative": lists of events with the fields of
    Event. `StatedTiming` lists what can be stated. Raises InvalidRequest."""
    timing = StatedTiming.read(dict(stated))
    plain = autoregressive(timing.tokens, timing.ar_step_ms, timing.ttft_ms)
    drafted = speculative(
        timing.tokens, timing.step_ms, timing.commits, ttft_ms=timing.ttft_ms, seed=timing.seed
    )
    return as_json(plain, drafted)


def as_json(plain: Sequence[Event], drafted: Sequence[Event]) -> dict[str, object]:
    return {
        "ar": [event._asdict() for event in plain],
        "speculative": [event._asdict() for event in drafted],
    }
