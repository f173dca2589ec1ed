"""When tokens arrive: event lists that the timing pane plays, drawn from a model of acceptance.

AR gives one token a step. A speculative step gives a burst: what it accepted and the token that the
target adds, so many at once as `commits` says, each step by itself and the same for one seed.
Times are milliseconds since the request was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number

MOST_TOKENS = 100_000
LONGEST_STEP = 3_600_000.0  # ms
MOST_COMMITS = 1025
KEYS = ("tokens", "ttft_ms", "ar_step_ms", "step_ms", "commits", "seed")


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one request, as its reader sees it: `tokens` = `accepted` + `own`, at `t_ms`.

    `accepted` were drafted, `own` are the target's (the first token, the bonus token, what a
    grammar forced); of the `drafted` ones, those that were not accepted were thrown away.
    """

    t_ms: float
    tokens: int
    accepted: int
    own: int
    drafted: int


def autoregressive(tokens: int, step_ms: float, ttft_ms: float = 0.0) -> list[Event]:
    """One token every `step_ms`, the first at `ttft_ms`."""
    _check(tokens, step_ms, ttft_ms)
    return [Event(ttft_ms + step * step_ms, 1, 0, 1, 0) for step in range(tokens)]


def speculative(
    tokens: int, step_ms: float, commits: Sequence[float], *, ttft_ms: float = 0.0, seed: int = 0
) -> list[Event]:
    """The first token at `ttft_ms`, then a burst every `step_ms` until there are `tokens`.

    `commits` are the probabilities of a step to commit 1, 2, … γ + 1 tokens; the last burst ends
    where the answer does. Raises InvalidRequest.
    """
    _check(tokens, step_ms, ttft_ms)
    check_integer("seed", seed, 0, 2**63 - 1, "a whole number from 0")
    edges = np.cumsum(_shares(commits))
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


def two_panes(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Both panes as plain JSON, from plain JSON.

    Stated: `tokens` of the answer, `ttft_ms` (0), `ar_step_ms`, `step_ms` of a speculative step,
    its `commits`, `seed` (0). The answer: "ar" and "speculative", each a list of events with the
    fields of Event.
    """
    for key in stated:
        if key not in KEYS:
            raise InvalidRequest(key, stated[key], "one of " + ", ".join(KEYS))
    for key in ("tokens", "ar_step_ms", "step_ms", "commits"):
        if key not in stated:
            raise InvalidRequest(key, None, "a value: it has no default")
    tokens, ttft = stated["tokens"], stated.get("ttft_ms", 0.0)
    plain = autoregressive(tokens, stated["ar_step_ms"], ttft)
    drafted = speculative(
        tokens,
        stated["step_ms"],
        stated["commits"],
        ttft_ms=ttft,
        seed=stated.get("seed", 0),
    )
    return as_json(plain, drafted)


def as_json(plain: Sequence[Event], drafted: Sequence[Event]) -> dict[str, Any]:
    return {
        "ar": [asdict(event) for event in plain],
        "speculative": [asdict(event) for event in drafted],
    }


def _check(tokens: int, step_ms: float, ttft_ms: float) -> None:
    check_integer("tokens", tokens, 1, MOST_TOKENS, f"a whole number from 1 to {MOST_TOKENS}")
    expected = "milliseconds, above 0 and up to an hour"
    check_number("step_ms", step_ms, 0, LONGEST_STEP, expected)
    if step_ms == 0:
        raise InvalidRequest("step_ms", step_ms, expected)
    check_number("ttft_ms", ttft_ms, 0, LONGEST_STEP, "milliseconds, up to an hour")


def _shares(commits: Sequence[float]) -> np.ndarray:
    expected = "probabilities of committing 1, 2, … tokens that sum to 1"
    if isinstance(commits, str) or not isinstance(commits, Sequence):
        raise InvalidRequest("commits", commits, expected)
    if not 1 <= len(commits) <= MOST_COMMITS:
        raise InvalidRequest("commits", len(commits), f"{expected}, at most {MOST_COMMITS}")
    for share in commits:
        check_number("commits", share, 0, 1, expected)
    if abs(sum(commits) - 1) > 1e-6:
        raise InvalidRequest("commits", sum(commits), expected)
    return np.asarray(commits, dtype=float)
