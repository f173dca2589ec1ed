"""The probability that a draft position is accepted, learned online from past drafts.

A logistic regression over the drafter's shift confidence, with a bias for each position and one for
each request. Measured against sequential temperature scaling (a temperature per position cannot
bring an estimate above 1/2 below it, and drafters are over-confident off their ground) and against
records by confidence bin: see docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = 0.6  # of a position of which a drafter says nothing, before anything is known
SURE = 6.0  # a confidence's log-odds count up to this: 0.9975
KEPT = 0.99  # what a judged position leaves of those before it
PRIOR = 1.0  # curvature of a position's prior: some 4 judgements
REQUEST_PRIOR = 2.0  # precision of a request's shift bias, in log-odds
REQUEST_KEPT = 0.97
FLATTEST = 0.02  # curvature that a judgement has at least: none may overturn all before it


def log_odds(probability: float) -> float:
    if probability <= 0:
        return -SURE
    if probability >= 1:
        return SURE
    return max(-SURE, min(SURE, math.log(probability / (1 - probability))))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -30 else 0.0


class PositionAcceptance:
    """P(accepted | those before it were) = sigmoid(w logit(confidence) + b[position] + u[request])

    Fitted by Newton steps along the diagonal, one for each judged position, with decayed curvature:
    it follows traffic that changes, and costs microseconds. Without confidence only the biases are
    left: the running acceptance of each position.
    """

    def __init__(self, confident: bool) -> None:
        """`confident` says that drafts come with confidence."""
        self.confident = confident
        self.judged = 0  # drafts
        self._slope, self._slope_curvature = 1.0, 4 * PRIOR
        self._biases: list[float] = []
        self._curvatures: list[float] = []
        self._requests: dict[str, tuple[float, float]] = {}  # bias, precision

    def predict(
        self, request_id: str, length: int, confidence: Sequence[float] = ()
    ) -> list[float]:
        """Return the acceptance of each position, given that those before it were accepted."""
        shift, _ = self._requests.get(request_id, (0.0, 0.0))
        known = self._biases[:length]
        biases = [bias + shift for bias in (*known, *[self._bias(length)] * (length - len(known)))]
        if not self.confident:
            return [sigmoid(bias) for bias in biases]
        slope = self._slope
        return [
            sigmoid(slope * log_odds(sure) + bias)
            for sure, bias in zip(confidence, biases, strict=False)
        ]

    def at(self, request_id: str, position: int, confidence: float) -> float:
        """Return the acceptance of a token of this confidence at a position, given that those
        before it were accepted."""
        shift, _ = self._requests.get(request_id, (0.0, 0.0))
        return sigmoid(self._slope * log_odds(confidence) + self._bias(position) + shift)

    def learn(
        self, request_id: str, accepted: int, judged: int, confidence: Sequence[float] = ()
    ) -> None:
        """The first `accepted` of a draft's `judged` positions stood; at most one did not."""
        shift, precision = self._requests.get(request_id, (0.0, REQUEST_PRIOR))
        self.judged += 1
        self._reach(judged)
        for position in range(judged):
            stands = position < accepted
            feature = log_odds(confidence[position]) if self.confident else 0.0
            usual = self._slope * feature + self._biases[position]
            guess, curvature = _guess(usual + shift)
            precision = REQUEST_KEPT * precision + (1 - REQUEST_KEPT) * REQUEST_PRIOR + curvature
            shift += (stands - guess) / precision
            # What all requests share is fitted without what is particular to this request: a new
            # request starts from there.
            guess, curvature = _guess(usual)
            if self.confident:
                self._slope_curvature = _decayed(self._slope_curvature, 4 * PRIOR)
                self._slope_curvature += curvature * feature * feature
                self._slope += (stands - guess) * feature / self._slope_curvature
            self._curvatures[position] = _decayed(self._curvatures[position], PRIOR) + curvature
            self._biases[position] += (stands - guess) / self._curvatures[position]
        self._requests[request_id] = shift, precision

    def doubt(self, request_id: str) -> None:
        """Let what comes next count for more: what is known of the request is old."""
        shift, _ = self._requests.get(request_id, (0.0, REQUEST_PRIOR))
        self._requests[request_id] = shift, REQUEST_PRIOR

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def _bias(self, position: int) -> float:
        """A position that was never judged is as good as the last one that was."""
        if self._biases:
            return self._biases[min(position, len(self._biases) - 1)]
        return 0.0 if self.confident else log_odds(UNKNOWN)

    def _reach(self, length: int) -> None:
        """Begin to judge positions up to `length`."""
        while len(self._biases) < length:
            self._biases.append(self._bias(len(self._biases)))
            self._curvatures.append(PRIOR)


def _guess(odds: float) -> tuple[float, float]:
    """A probability, and how much a judgement of it tells."""
    guess = sigmoid(odds)
    return guess, max(guess * (1 - guess), FLATTEST)


def _decayed(curvature: float, prior: float) -> float:
    return KEPT * curvature + (1 - KEPT) * prior
