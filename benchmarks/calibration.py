"""How well estimates of acceptance fit real rounds: what the throughput policy is built on.

    python benchmarks/calibration.py MODEL DRAFTER [DRAFTER …]

Every drafter drafts as long as it can for chat, code, copy and random prompts, at T=0 and T=0.7;
each estimator sees a round's confidences, is scored on what became of it, and then learns it. The
first 100 rounds are left out: log loss of a position given those before it, and the expected
calibration error (15 bins) of the survival of all positions.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from itertools import accumulate
from operator import mul
from typing import Any

from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.core import SpeculativeParams
from paceline.engine.lengths.acceptance import PositionAcceptance, log_odds, sigmoid

TOKENS, SKIPPED, BINS = 96, 100, 15
Round = tuple[str, list[float], int]  # request, confidence, accepted


class Stated:
    """The drafter's own confidence."""

    def predict(self, request: str, confidence: list[float]) -> list[float]:
        return confidence

    def learn(self, request: str, confidence: list[float], accepted: int) -> None: ...


class Temperatures(Stated):
    """Sequential temperature scaling (DSpark, arXiv 2607.05147): left to right, each position's
    temperature minimises the calibration error of the survival up to it; over the last 400 rounds.
    """

    GRID = tuple(10 ** (power / 20 - 1) for power in range(41))

    def __init__(self) -> None:
        self._temperatures: list[float] = []
        self._rounds: deque[tuple[list[float], int]] = deque(maxlen=400)
        self._count = 0

    def predict(self, request: str, confidence: list[float]) -> list[float]:
        known = self._temperatures + [1.0] * (len(confidence) - len(self._temperatures))
        return [sigmoid(log_odds(c) / t) for c, t in zip(confidence, known, strict=False)]

    def learn(self, request: str, confidence: list[float], accepted: int) -> None:
        self._rounds.append((confidence, accepted))
        self._count += 1
        if self._count % 50 == 0:
            self._fit()

    def _fit(self) -> None:
        self._temperatures, survival = [], [1.0] * len(self._rounds)
        for position in range(max(len(confidence) for confidence, _ in self._rounds)):
            rows = [
                (index, log_odds(confidence[position]), accepted > position)
                for index, (confidence, accepted) in enumerate(self._rounds)
                if len(confidence) > position
            ]
            if len(rows) < 30:
                return
            errors = {
                t: calibration_error([(survival[i] * sigmoid(odds / t), y) for i, odds, y in rows])
                for t in self.GRID
            }
            best = min(errors, key=lambda t: errors[t])
            self._temperatures.append(best)
            for index, odds, _ in rows:
                survival[index] *= sigmoid(odds / best)


class Records(Stated):
    """Acceptance by confidence, in ten bins."""

    def __init__(self) -> None:
        self._accepted, self._judged = [0.0] * 10, [0.0] * 10

    def predict(self, request: str, confidence: list[float]) -> list[float]:
        bins = [(min(9, int(10 * c)), c) for c in confidence]
        return [(self._accepted[b] + 4 * c) / (self._judged[b] + 4) for b, c in bins]

    def learn(self, request: str, confidence: list[float], accepted: int) -> None:
        for position, sure in enumerate(confidence[: accepted + 1]):
            bin_ = min(9, int(10 * sure))
            self._accepted[bin_] = 0.995 * self._accepted[bin_] + (position < accepted)
            self._judged[bin_] = 0.995 * self._judged[bin_] + 1


class Served(Stated):
    """What the engine uses."""

    def __init__(self) -> None:
        self._model = PositionAcceptance(confident=True)

    def predict(self, request: str, confidence: list[float]) -> list[float]:
        return self._model.predict(request, len(confidence), confidence)

    def learn(self, request: str, confidence: list[float], accepted: int) -> None:
        judged = min(accepted + 1, len(confidence))
        self._model.learn(request, accepted, judged, confidence)


ESTIMATORS = {"as stated": Stated, "temperatures": Temperatures, "bins": Records, "served": Served}


def calibration_error(pairs: list[tuple[float, bool]]) -> float:
    gaps = [0.0] * BINS
    for guess, true in pairs:
        gaps[min(BINS - 1, int(BINS * guess))] += guess - true
    return sum(map(abs, gaps)) / len(pairs)


def score(rounds: list[Round], estimator: Stated) -> tuple[float, float]:
    """Log loss and calibration error, each round judged before it is learned."""
    losses: list[float] = []
    survivals: list[tuple[float, bool]] = []
    for turn, (request, confidence, accepted) in enumerate(rounds):
        guesses = [min(0.9999, max(1e-4, g)) for g in estimator.predict(request, confidence)]
        if turn >= SKIPPED:
            judged = enumerate(guesses[: accepted + 1])
            losses += [-math.log(g if i < accepted else 1 - g) for i, g in judged]
            survivals += [(s, accepted > i) for i, s in enumerate(accumulate(guesses, mul))]
        estimator.learn(request, confidence, accepted)
    return sum(losses) / len(losses), calibration_error(survivals)


def record(llm: LLM, drafter: str, temperature: float) -> list[Round]:
    """Rounds of 20 requests at once, set by set."""
    engine, told, rounds = llm.engine, {}, []
    rng = random.Random(0)
    prompts: list[list[list[int]]] = [
        encoded(llm.tokenizer, s) for s in ("chat", "code", "tune_copy")
    ]
    prompts.append([[rng.randrange(1000, 20000) for _ in range(40)] for _ in range(8)])
    propose, observe = engine.drafters[drafter].propose, engine.drafting.lengths.observe

    def watched(requests: Any, lengths: Any) -> Any:
        drafts = propose(requests, lengths)
        told.update({r.id: c for r, c in zip(requests, drafts.confidence, strict=True)})
        return drafts

    def observed(entry: Any, committed: Any) -> None:
        if entry.draft:
            right = (a == b for a, b in zip(entry.draft.verified, committed, strict=False))
            accepted = sum(accumulate(right, min))
            rounds.append((entry.request.id, told[entry.request.id][: len(entry.draft)], accepted))
        observe(entry, committed)

    engine.drafters[drafter].propose, engine.drafting.lengths.observe = watched, observed
    for number, batch in enumerate(prompts):
        for index, prompt in enumerate(batch[:20]):
            params = SamplingParams(
                temperature=temperature, seed=index, max_tokens=TOKENS, ignore_eos=True
            )
            name = f"{drafter}-{temperature}-{number}-{index}"
            wish = SpeculativeParams(drafter=drafter)
            engine.add(
                engine.make_requests(prompt, params, wish, request_id=name, salt=name.encode())
            )
        while engine.has_work:
            engine.step()
    engine.drafters[drafter].propose, engine.drafting.lengths.observe = propose, observe
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("drafters", nargs="+", help="as `paceline serve --drafter` takes them")
    args = parser.parse_args()
    llm = LLM(args.model, args.drafters, prefix_cache=False, draft_policy="fixed",
              max_model_len=2048, kv_memory=2**30)  # fmt: skip
    rows = []
    for drafter in llm.engine.drafters:
        for temperature in (0.0, 0.7):
            rounds = record(llm, drafter, temperature)
            scores = [score(rounds, make()) for make in ESTIMATORS.values()]
            cells = [f"{loss:.3f} / {100 * error:.1f}%" for loss, error in scores]
            rows.append((drafter, f"{temperature:g}", len(rounds), *cells))
    table(f"log loss / calibration error of acceptance ({machine()})",
          ["drafter", "T", "rounds", *ESTIMATORS], rows)  # fmt: skip


if __name__ == "__main__":
    main()
