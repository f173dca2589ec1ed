"""Who drafts, a look-up or DFlash, biases no rule of verification: by exact enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.core import DraftBatch, Request, SamplingParams
from paceline.drafters.draw import DRAWS, draw_token
from paceline.drafters.hybrid import HybridDrafter
from paceline.engine import sampler
from paceline.engine.verify import make_verifier
from tests.drafters.watched import look_up_first
from tests.engine import oracle
from tests.engine.oracle import BIASED, EXACT, GAMMA, RULES, RULES_WITH_Q, Outcomes, error, logits

SHARE = 0.48


class Part:
    feature_layers, lookback, kv, weight_bytes, reach = (), 0, None, 0, None
    version, max_draft_len, start_up_rows = "1", GAMMA, ()

    def __init__(self, draw: str | None = None) -> None:
        self.draw = draw

    def begin(self, requests: Any, held: Any) -> None: ...
    def release(self, requests: Any) -> None: ...

    def propose(self, requests: list[Request], lengths: list[int]) -> DraftBatch:
        if self.draw is None:
            # 0.64 tokens are expected of it (`sober`): fewer than of a DFlash with SHARE, and more
            # than of one whose first token was wrong.
            return DraftBatch(tokens=[[1, 0]], confidence=[[0.6, 1 / 6]])
        (request,) = requests
        drawn = []
        for index in range(GAMMA):
            row = logits(oracle.Q, (*request.output_ids, *(one.token for one in drawn)))
            drawn.append(draw_token(row, int(row.argmax()), request, index, self.draw))
        return DraftBatch(
            tokens=[[one.token for one in drawn]],
            q=[None if drawn[0].q is None else [one.q for one in drawn]],
            confidence=[[one.confidence for one in drawn]],
        )


Choose = Callable[[DraftBatch, DraftBatch], DraftBatch]


def law(
    outcomes: Outcomes, rule: str, draw: str, choose: Choose | None = None
) -> tuple[dict[tuple[int, ...], float], set[bool]]:
    """Of the first tokens, and whether look-ups and DFlash both drafted. `choose`, the control,
    decides when both drafts are there."""
    verifier, who = make_verifier(rule), set()

    def program() -> tuple[int, ...]:
        request = Request(id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7)
        hybrid = HybridDrafter("h", Part(), Part(draw), share=SHARE)  # type: ignore[arg-type]
        hybrid.begin([request], [0])
        while request.output_len < oracle.LENGTH:
            if choose is None:
                who.add(hybrid.look_up([request], [GAMMA])[1][0])
                batch = look_up_first(hybrid, [request], [GAMMA])
            else:
                parts = (hybrid.lookup, hybrid.dflash)
                batch = choose(*(part.propose([request], [GAMMA]) for part in parts))
            draft, q = batch.tokens[0], batch.q_rows(0)
            contexts = [(*request.output_ids, *draft[:i]) for i in range(len(draft) + 1)]
            rows = torch.stack([logits(oracle.P, c) for c in contexts])
            argmax, finite = rows.argmax(-1).tolist(), [True] * len(rows)
            target = sampler.TargetRows(request, rows, argmax, finite, draft)
            verdict = verifier.verify(target, draft, q)
            request.tokens += [*draft[: verdict.accepted], verdict.next_token]
        return tuple(request.output_ids[: oracle.LENGTH])

    total: dict[tuple[int, ...], float] = {}
    for weight, tokens in outcomes.paths(program):
        total[tokens] = total.get(tokens, 0.0) + weight
    return total, who


@pytest.mark.parametrize("draw", DRAWS)
@RULES
def test_the_choice_keeps_the_targets_law(outcomes: Outcomes, rule: str, draw: str) -> None:
    measured, who = law(outcomes, rule, draw)
    assert who == {True, False}, "nothing was chosen"
    assert error(measured) < EXACT


def the_surer(looked_up: DraftBatch, drafted: DraftBatch) -> DraftBatch:
    """Looks at how likely the token was that DFlash drew."""
    return drafted if drafted.q[0][0][drafted.tokens[0][0]] > 0.5 else looked_up


@RULES_WITH_Q
def test_control_a_choice_that_looks_at_the_drawn_token(outcomes: Outcomes, rule: str) -> None:
    assert error(law(outcomes, rule, "sample", the_surer)[0]) > BIASED
    assert error(law(outcomes, "match", "sample", the_surer)[0]) < EXACT
