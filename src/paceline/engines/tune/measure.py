"""Measures an engine: its rounds by requests and draft length, and what they accept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.core import InvalidRequest
from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.tune.acceptance import Acceptance, rounds_of
from paceline.engines.tune.costs import DrafterSeconds, RoundCosts, separated
from paceline.engines.tune.law import Point, StepLaw
from paceline.engines.tune.probes import (
    SHORT,
    DrafterSteps,
    ProbeBatch,
    Prober,
    Wave,
    context_text,
    drafter_steps,
)
from paceline.engines.tune.steps import Numbers, mean_seconds

DRAWS = 400
SIZES = (1, 2, 4, 8, 16, 32, 64)
GROWTH = 1.7  # a size takes so many times as long as the one before, at most
PART = 0.25  # share of the time that measuring the drafter's part may take
VISITS = 2  # of the end of the context, by requests at once
ALONE = ProbeBatch(1, 0)
MOST_BESIDE, COPIES = 8, 4  # requests at once that show how the drafter's part grows
SHARE = (0.08, 0.35)  # of a round that the drafter takes, where it cannot be measured
PROMPT_ROWS = (1, 4, 16, 64, 256)  # lengths of prompts that show what rows cost


@dataclass(slots=True)
class TuneMeasurement:
    """What was learned of an engine. `present` are seconds per token of one request with the
    engine's present setting, by requests, as draws."""

    draft_len: int
    acceptance: Acceptance
    costs: RoundCosts
    present: dict[int, Numbers]
    answers: list[EngineAnswer]
    seconds: float
    asked: int
    notes: list[str] = field(default_factory=list)


def check_drafting(draft_len: int | None, url: str) -> int:
    """Return the draft length of a running engine. Raises InvalidRequest where it has none."""
    if not draft_len:
        raise InvalidRequest("url", url, "an engine that runs with a drafter")
    return draft_len


def sizes_up_to(most: int) -> list[int]:
    """Return the numbers of requests that are measured: 1, 2, 4, … and `most`."""
    return sorted({size for size in SIZES if size < most} | {most})


class Pool:
    """Rounds of all waves by prompt."""

    def __init__(self, draft_len: int) -> None:
        self._draft_len = draft_len
        self._by_prompt: dict[int, list[EngineAnswer]] = {}

    def add(self, wave: Wave) -> None:
        for prompt, answer in zip(wave.prompts, wave.answers, strict=True):
            self._by_prompt.setdefault(prompt, []).append(answer)

    @property
    def answers(self) -> list[EngineAnswer]:
        return [answer for answers in self._by_prompt.values() for answer in answers]

    def acceptance(self) -> Acceptance:
        rounds = [
            [each for answer in answers for each in rounds_of(answer, self._draft_len)]
            for answers in self._by_prompt.values()
        ]
        return Acceptance.of(rounds, self._draft_len)


def measure_whole(
    prober: Prober, sizes: Sequence[int], draft_len: int, tokens: int
) -> TuneMeasurement:
    """Measure an engine whose drafts have one length for all requests, as vLLM's."""
    pool, notes = Pool(draft_len), list[str]()
    rounds, undrafted = dict[Point, Numbers](), dict[int, Numbers]()
    cuts = True
    for requests in _within(prober, sizes):
        wave = prober.wave(requests, tokens)
        pool.add(wave)
        if not wave.steps:
            continue
        rounds[Point(requests, draft_len)] = mean_seconds(wave.steps, DRAWS)
        steps = prober.without_drafts(requests) if cuts else None
        if steps:
            undrafted[requests] = mean_seconds(steps, DRAWS, seed=2)
        cuts = steps is not None
    _check_rounds(rounds)
    drafter = _drafter_cost(prober, rounds, pool, draft_len, notes)
    if not cuts:
        notes.append("steps without drafts are estimated from how prompts of a few rows take")
        undrafted = _without_rows(prober, rounds, pool)
    acceptance = pool.acceptance()
    length = acceptance.lengths(DRAWS)[:, draft_len]
    return TuneMeasurement(
        draft_len,
        acceptance,
        separated(rounds, undrafted, drafter),
        {point.requests: draws / length for point, draws in rounds.items()},
        pool.answers,
        prober.spent,
        prober.asked,
        notes,
    )


def measure_by_request(
    prober: Prober, sizes: Sequence[int], draft_len: int, tokens: int
) -> TuneMeasurement:
    """Measure an engine that takes a draft length with each request, as Paceline's server."""
    pool = Pool(draft_len)
    plain, drafted = dict[int, Numbers](), dict[Point, Numbers]()
    present = dict[int, Numbers]()
    lengths = sorted({1, math.ceil(draft_len / 2), draft_len}, reverse=True)
    for requests in _within(prober, sizes):
        wave = prober.wave(requests, tokens, draft_len)
        pool.add(wave)
        today = prober.again(wave, tokens)
        off = prober.wave(requests, SHORT, draft_len=0)
        if not (wave.steps and today.steps and off.steps):
            continue
        drafted[Point(requests, draft_len)] = mean_seconds(wave.steps, DRAWS)
        plain[requests] = mean_seconds(off.steps, DRAWS, seed=2)
        faster = _per_token(today) / _per_token(wave)
        present[requests] = drafted[Point(requests, draft_len)] * faster
        for shorter in lengths[1:]:
            steps = prober.wave(requests, SHORT, shorter).steps
            if steps:
                drafted[Point(requests, shorter)] = mean_seconds(steps, DRAWS, seed=shorter)
    _check_rounds(drafted)
    acceptance = pool.acceptance()
    length = acceptance.lengths(DRAWS)[:, draft_len]
    return TuneMeasurement(
        draft_len,
        acceptance,
        RoundCosts(plain, drafted),
        {requests: draws / length for requests, draws in present.items()},
        pool.answers,
        prober.spent,
        prober.asked,
    )


def _within(prober: Prober, sizes: Sequence[int]) -> Iterator[int]:
    """Yield sizes while there is time for another: each takes longer than the one before."""
    last = 0.0
    for requests in sizes:
        if last and GROWTH * last > (1 - PART) * prober.left:
            return
        begun = prober.spent
        yield requests
        last = prober.spent - begun


def _per_token(wave: Wave) -> float:
    return sum(step.seconds for step in wave.steps) / sum(step.tokens for step in wave.steps)


def _check_rounds(rounds: Mapping[Point, Numbers]) -> None:
    if not rounds:
        expected = "more time: no step of a single request could be timed"
        raise InvalidRequest("seconds", 0, expected)


def _drafter_cost(
    prober: Prober, rounds: Mapping[Point, Numbers], pool: Pool, draft_len: int, notes: list[str]
) -> DrafterSeconds:
    """Measure the drafter's part of a round; take a usual share where that is not possible."""
    most = min(MOST_BESIDE, max(point.requests for point in rounds))
    mixed, copied = ProbeBatch(1, most - 1), ProbeBatch(min(COPIES, most), 0)
    visits = _visits(prober, [ALONE, mixed, copied], pool, draft_len)
    if ALONE not in visits:
        low, high = (round(100 * share) for share in SHARE)
        notes.append(f"the drafter's part of a round is taken as {low} to {high}%: not measured")
        shares = np.random.default_rng(3).uniform(*SHARE, DRAWS)
        return DrafterSeconds.of({point: draws * shares for point, draws in rounds.items()})
    seconds = {batch: _difference(steps) for batch, steps in visits.items()}
    measured = {Point(b.requests, draft_len): seconds[b] for b in (ALONE, mixed) if b in seconds}
    if len(measured) == 1 or copied not in seconds:
        return DrafterSeconds.of(measured)
    grown = (seconds[mixed] - seconds[ALONE]) * (copied.long - 1) / mixed.short
    per_text = (seconds[copied] - seconds[ALONE] - grown) / (copied.long - 1)
    return DrafterSeconds.of(measured, np.clip(per_text, 0.0, seconds[ALONE]))


def _visits(
    prober: Prober, batches: Sequence[ProbeBatch], pool: Pool, draft_len: int
) -> dict[ProbeBatch, list[DrafterSteps]]:
    """Measure the drafter's part at the end of the context: of one request, of several of which one
    is there, and of several that all are there. What a long text adds follows from all three."""
    visits = dict[ProbeBatch, list[DrafterSteps]]()
    longest = prober.client.description.max_model_len
    answers = pool.answers
    # a prompt's seconds per token, as far as short prompts tell it
    pace = min(a.ttft / (a.prompt_tokens or 1) for a in answers if a.arrivals)
    if longest is None or pace * longest > PART * prober.limit:
        return visits
    text, few = context_text(answers), math.ceil(4 * pool.acceptance().mean_lengths[-1]) + 5
    if not text:
        return visits
    each = 0.0  # seconds of a visit of one request
    for batch in list(dict.fromkeys(batches)) * VISITS:
        if each * batch.requests > prober.left:
            break
        begun = prober.spent
        steps = drafter_steps(prober, text, batch, draft_len, longest, few)
        each = (prober.spent - begun) / batch.requests
        if steps is not None:
            visits.setdefault(batch, []).append(steps)
    return visits


def _difference(visits: Sequence[DrafterSteps]) -> Numbers:
    drafted = [step for visit in visits for step in visit.drafted]
    undrafted = [step for visit in visits for step in visit.undrafted]
    difference = mean_seconds(drafted, DRAWS, seed=4) - mean_seconds(undrafted, DRAWS, seed=5)
    seconds: Numbers = np.maximum(0.0, difference)
    return seconds


def _without_rows(
    prober: Prober, rounds: Mapping[Point, Numbers], pool: Pool
) -> dict[int, Numbers]:
    """Return rounds without the time of their drafts' rows, which prompts of as many rows show."""
    text = context_text(pool.answers)
    times = dict[Point, float]()
    for index, rows in enumerate(PROMPT_ROWS):
        asks = [EngineAsk(text[start : start + rows], 1) for start in range(index, index + 3)]
        asks = [ask for ask in asks if len(ask.prompt) == rows]
        if asks:
            answers = prober.ask_all(asks, 1)
            times[Point(1, rows - 1)] = min(answer.ttft for answer in answers)
    law = StepLaw.fit(times)
    return {
        point.requests: draws - (law(Point(1, point.rows - 1)) - law(Point(1, point.requests - 1)))
        for point, draws in rounds.items()
    }
