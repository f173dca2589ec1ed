"""The draft lengths of a batch that bring the most tokens per second, by known survivals and costs.

(requests + sum of survivals) / seconds is maximised over the whole batch, after vLLM's adaptive
verification; before drafting, over who is asked as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.costs import DraftCost
from paceline.engine.step_cost import StepCost

SLACK = 1  # tokens to ask for beyond those that are likely to be kept
ROUNDS = 4  # of asking who pays at the speed that the others allow
NOTHING = DraftCost()


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A step without drafts: its rows, the requests that get a token, and what drafts would cost.

    A prompt's rows make every further row dearer, but they are no price of these tokens. The
    requests look back for `back`, and each row of a draft for `row_back`, as StepCost counts it.
    """

    rows: int
    decoding: int
    cost: StepCost
    price: DraftCost = NOTHING
    back: float = 0.0
    row_back: float = 0.0

    @property
    def speed(self) -> float:
        return self.decoding / self.cost(self.decoding, self.decoding, self.back)

    def seconds(self, more: int) -> list[float]:
        """With up to `more` rows of drafts: [more + 1]."""
        found = self.cost.upwards(self.rows, more, self.decoding, self.back, self.row_back)
        if self.rows == self.decoding:
            return found
        prompts = found[0] - self.cost(self.decoding, self.decoding, self.back)
        return [seconds - prompts for seconds in found]

    def row_seconds(self, count: int) -> float:
        """Return what each of `count` rows of drafts adds, on average."""
        return self.cost.row_seconds(self.rows, count, self.row_back)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens per second, how much of each draft is likely to be kept, and how much to ask for: a
    little more, since the drafts' confidence will tell which are the good ones."""

    speed: float
    kept: list[int]
    asked: list[int]


def best_lengths(
    step: PlainStep, survivals: Sequence[Sequence[float]], drafting: float = 0.0
) -> tuple[float, list[int]]:
    """Tokens per second of the best lengths, and those. Drafting has taken `drafting` seconds.

    Survival falls along a draft, so the likeliest tokens of the batch are prefixes of its drafts.
    """
    order = sorted(
        ((survival, -index) for index, row in enumerate(survivals) for survival in row),
        reverse=True,
    )
    seconds, price = step.seconds(len(order)), step.price.marginal_row
    gain, speed, kept = 0.0, step.decoding / (seconds[0] + drafting), 0
    for count, (survival, _) in enumerate(order, 1):
        gain += survival
        now = (step.decoding + gain) / (seconds[count] + drafting + price * gain)
        if now > speed:
            speed, kept = now, count
    lengths = [0] * len(survivals)
    for _, index in order[:kept]:
        lengths[-index] += 1
    return speed, lengths


def best_drafts(step: PlainStep, survivals: Sequence[Sequence[float]]) -> Drafts:
    """Choose the requests that draft, and how much, before the confidence of drafts is known.

    After Dinkelbach: at a given speed a request is asked when the tokens it brings are worth the
    time it takes; those that are asked make a higher speed; and again, until nothing changes.
    """
    none = [0] * len(survivals)
    best = Drafts(step.speed, none, none)
    row = step.row_seconds(len(survivals))
    lengths = none
    for _ in range(ROUNDS):
        before, lengths = lengths, [_worth(step, curve, best.speed, row) for curve in survivals]
        if lengths == before and any(lengths):
            return best
        among = [index for index, length in enumerate(lengths) if length]
        if not among:
            return best
        found = _drafts(step, survivals, among, lengths)
        row = step.row_seconds(sum(found.kept))
        if found.speed <= best.speed:
            if any(best.kept):
                return best
            continue  # the rows of so many may be too dear where those of a few are not
        best = found
    return best


def _drafts(
    step: PlainStep, survivals: Sequence[Sequence[float]], among: list[int], lengths: list[int]
) -> Drafts:
    """Return the best drafts of the requests `among`, of up to `lengths` tokens."""
    curves = [survivals[index][: lengths[index]] for index in among]
    longest = max(map(len, curves))
    # Each token of the longest draft is a pass, unless one pass drafts all: then what is asked
    # costs, and what is kept of the whole says how much to ask.
    limits = [longest] if step.price.parallel else range(1, longest + 1)
    speed, kept, asked = 0.0, [0] * len(among), [0] * len(among)
    for limit in limits:
        wanted = [min(len(curve), limit) for curve in curves]
        if step.price.parallel:
            _, likely = best_lengths(step, curves)
            wanted = [min(w, n + SLACK) for w, n in zip(wanted, likely, strict=True)]
        drafting = step.price.draft_seconds(wanted) + step.price.observe_seconds(len(among))
        now, found = best_lengths(
            step, [curve[:n] for curve, n in zip(curves, wanted, strict=True)], drafting
        )
        if now <= speed:
            break
        speed, kept, asked = now, found, wanted
    whole, whole_asked = [0] * len(survivals), [0] * len(survivals)
    for index, length, most in zip(among, kept, asked, strict=True):
        whole[index], whole_asked[index] = length, most if length else 0
    return Drafts(speed, whole, whole_asked)


def _worth(step: PlainStep, curve: Sequence[float], speed: float, row: float) -> int:
    """Return how many tokens are worth their time; 0 where they are not worth the request's own."""
    each = speed * (step.price.marginal_slot + row)
    gain = best = -speed * step.price.marginal_request
    wanted = 0
    for length, survival in enumerate(curve, 1):
        gain += survival - each
        if gain > best:
            best, wanted = gain, length
    return wanted if best > 0 else 0
