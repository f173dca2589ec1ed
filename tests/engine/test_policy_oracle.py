"""Every rule under every draft policy, by the exact enumeration of test_lossless_oracle.py.

The real controllers choose the lengths, through the real Drafting with its guard: a policy may look
at all that has happened, and at drawn tokens where that is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core import DraftBatch, Request, SamplingParams
from paceline.drafters.draft_model import _Draft
from paceline.drafters.draw import DRAWS, draft_batch, draw_token
from paceline.engine import sampler
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.drafting import Drafting
from paceline.engine.lengths import LengthController, ThroughputLengths
from paceline.engine.scheduler import Scheduled
from paceline.engine.step_cost import StepCost
from paceline.engine.verify import make_verifier
from tests.engine.oracle import (
    BIASED,
    EXACT,
    GAMMA,
    LENGTH,
    RULES,
    RULES_WITH_Q,
    Outcomes,
    P,
    Q,
    error,
    logits,
)


class Drafter:
    """Draws from Q, one token after another, as a draft model does."""

    feature_layers: tuple[int, ...] = ()
    parallel, reach, max_draft_len = True, None, GAMMA

    def __init__(self, draw: str, tells: str) -> None:
        """Its confidence is the largest probability, or that of the token that was `drawn`."""
        self.draw, self.tells = draw, tells

    def propose(self, requests: list[Request], lengths: list[int]) -> DraftBatch:
        (request,), (length,) = requests, lengths
        making = _Draft(request, length)
        while len(making.drawn) < length:
            row = logits(Q, (*request.output_ids, *making.tokens))
            making.append(
                draw_token(row, int(row.argmax()), request, len(making.drawn), self.draw), 0.0
            )
        confidence = [drawn.confidence for drawn in making.drawn]
        if self.tells == "drawn":
            contexts = [
                (*request.output_ids, *making.tokens[:i]) for i in range(len(making.tokens))
            ]
            pairs = zip(contexts, making.tokens, strict=True)
            confidence = [float(Q[context][token]) for context, token in pairs]
        return DraftBatch([making.tokens], [draft_batch([making.drawn]).q_rows(0)], [confidence])


def law(
    outcomes: Outcomes,
    rule: str,
    draw: str,
    policy: Callable[[], LengthController],
    length: int = GAMMA,
    tells: str = "largest",
) -> tuple[dict[tuple[int, ...], float], set[int]]:
    """Distribution of the first LENGTH tokens, and the draft lengths that were verified."""
    verifier, seen = make_verifier(rule), set()

    def program() -> tuple[int, ...]:
        request = Request(
            id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7, drafter="d"
        )
        cache: Any = None  # nobody looks at KV here
        grammars: Any = SimpleNamespace(of=lambda request: None)
        drafting = Drafting(
            {"d": Drafter(draw, tells)},  # type: ignore[dict-item]
            cache,
            grammars,
            Costs(StepCost([1], [1.0])),
            needs_q=verifier.needs_q,
        )
        drafting.lengths = policy()
        while request.output_len < LENGTH:
            entry = Scheduled(request, len(request.tokens) - 1, 1, draft_limit=length)
            drafting.draft([entry])
            draft = entry.draft.verified
            seen.add(len(entry.draft))
            ends = [(*request.output_ids, *draft[:i]) for i in range(len(draft) + 1)]
            rows = torch.stack([logits(P, context) for context in ends])
            argmax, finite = rows.argmax(-1).tolist(), [True] * len(rows)
            target = sampler.TargetRows(request, rows, argmax, finite, draft)
            verdict = verifier.verify(target, draft, entry.draft.q)
            committed = [*draft[: verdict.accepted], verdict.next_token]
            request.tokens += committed
            drafting.lengths.observe(entry, committed)
        return tuple(request.output_ids[:LENGTH])

    total: dict[tuple[int, ...], float] = {}
    for weight, tokens in outcomes.paths(program):
        total[tokens] = total.get(tokens, 0.0) + weight
    return total, seen


def throughput(cuts: bool) -> ThroughputLengths:
    """So dear that one failed round makes the next draft shorter, or none; and cuts are made."""
    costs = Costs(StepCost([1, 2, 4], [1.0, 1.4, 2.2]), {"d": DraftCost(True)})
    for requests in (1, 2):
        costs.of("d").add_proposal([GAMMA] * requests, GAMMA, 0.05 + 0.01 * requests)
    return ThroughputLengths(costs, cuts)


POLICIES: dict[str, Callable[[bool], LengthController]] = {
    "throughput": throughput,
    "fixed": lambda cuts: LengthController(),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("draw", DRAWS)
@RULES
def test_rule_keeps_the_targets_law_under_every_policy(
    outcomes: Outcomes,
    rule: str,
    draw: str,
    policy: str,
) -> None:
    cuts = rule == "match"
    measured, lengths = law(outcomes, rule, draw, lambda: POLICIES[policy](cuts))
    assert error(measured) < EXACT
    assert policy == "fixed" or len(lengths) > 1, "always one length: nothing was tested"


@pytest.mark.parametrize("length", [0, 1])
@RULES
def test_rule_keeps_the_targets_law_at_fixed_lengths(
    outcomes: Outcomes,
    rule: str,
    length: int,
) -> None:
    measured, lengths = law(outcomes, rule, "sample", LengthController, length)
    assert error(measured) < EXACT and lengths == {length}


class Unsaid(ThroughputLengths):
    """Looks at the drawn tokens' confidence, and does not say so: the guard lets it."""

    anticipating = False


def unsaid() -> Unsaid:
    return Unsaid(Costs(StepCost([1, 2, 4], [1.0, 1.4, 2.2])))


@RULES_WITH_Q
def test_control_a_policy_that_cuts_on_the_drawn_token(
    outcomes: Outcomes,
    rule: str,
) -> None:
    biased, _ = law(outcomes, rule, "sample", unsaid, tells="drawn")
    assert error(biased) > BIASED
    said, _ = law(outcomes, rule, "sample", lambda: throughput(False), tells="drawn")
    assert error(said) < EXACT


@pytest.mark.parametrize("draw", DRAWS)
def test_cutting_on_the_drawn_token_is_harmless_under_match(
    outcomes: Outcomes,
    draw: str,
) -> None:
    measured, lengths = law(outcomes, "match", draw, unsaid, tells="drawn")
    assert error(measured) < EXACT and len(lengths) > 1
