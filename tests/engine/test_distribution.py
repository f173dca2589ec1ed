"""`token` and `block` through the real engine: another stream, the same distribution.

A chi-square test of the first two output tokens over many seeds against the law that the
network's own logits give. Thresholds are at 1e-9: a correct engine never fails, the control always.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from paceline.core import DraftBatch, SamplingParams, SpeculativeParams
from paceline.drafters.base import TargetInfo, register
from paceline.engine.engine import Engine
from paceline.kernels import ops
from tests.engine.tiny import EngineFactory

DRAWS = 3000
PROMPT = [5, 9, 200, 31, 7]
PARAMS = {"temperature": 1.0, "top_k": 6, "max_tokens": 3, "ignore_eos": True}


class FlatDrafter:
    """Draws from a flat law over a few tokens, and says so; or claims another q (the control)."""

    name, version, max_draft_len, feature_layers, kv, lookback = "flat", "1", 2, (), None, 0
    weight_bytes = 0

    def __init__(self, tokens: list[int], honest: bool = True) -> None:
        self.tokens, self.honest = tokens, honest

    def attach(self, target: TargetInfo) -> None: ...
    def begin(self, requests, held) -> None: ...
    def observe(self, rows) -> None: ...
    def release(self, requests) -> None: ...

    def propose(self, requests, lengths) -> DraftBatch:
        tokens, q = [], []
        for request, length in zip(requests, lengths, strict=True):
            row = torch.zeros(256, dtype=torch.float64)
            row[self.tokens] = 1 / len(self.tokens)
            drawn = [
                ops.gumbel_argmax(
                    row.log().float(),
                    inv_temperature=1.0,
                    seed=request.seed,
                    choice=request.choice,
                    position=request.position + i,
                    round_start=request.position,
                    role=ops.ROLE_DRAFT,
                )
                for i in range(length)
            ]
            claimed = row if self.honest else torch.full((256,), 1 / 256, dtype=torch.float64)
            tokens.append(drawn)
            q.append([claimed] * length)
        return DraftBatch(tokens, q)


def likely(engine: Engine, context: list[int]) -> dict[int, float]:
    """The processed law after `context`: what one step of the engine itself would draw from."""
    params = SamplingParams(**{**PARAMS, "max_tokens": 1, "logprobs": 20})
    (request,) = engine.make_requests(
        context, params, SpeculativeParams(off=True), request_id=f"law{context}"
    )
    engine.add([request])
    (delta,) = engine.step()
    top = delta.logprobs[0].top[: PARAMS["top_k"]]
    weights = np.exp([p for _, p in top])
    return dict(zip([t for t, _ in top], (weights / weights.sum()).tolist(), strict=True))


def p_value(engine: Engine) -> float:
    """Of the first two tokens' counts over DRAWS seeds."""
    first = likely(engine, PROMPT)
    truth = {
        (a, b): pa * pb for a, pa in first.items() for b, pb in likely(engine, [*PROMPT, a]).items()
    }
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, DRAWS, 50):
        got: dict[str, list[int]] = {}
        for seed in range(start, start + 50):
            params = SamplingParams(**PARAMS, seed=seed)
            requests = engine.make_requests(PROMPT, params, request_id=str(seed))
            got[requests[0].id] = []
            engine.add(requests)
        while engine.has_work:
            for delta in engine.step():
                got[delta.request_id] += delta.token_ids
        counts.update(tuple(tokens[:2]) for tokens in got.values())
    assert set(counts) <= set(truth), "a token outside the kept set was drawn"
    common = [pair for pair, p in truth.items() if p * DRAWS >= 5]
    seen = [counts[pair] for pair in common] + [DRAWS - sum(counts[p] for p in common)]
    wanted = [truth[pair] * DRAWS for pair in common]
    wanted.append(DRAWS - sum(wanted))
    cells = [(s, w) for s, w in zip(seen, wanted, strict=True) if w > 1e-9]
    statistic = sum((s - w) ** 2 / w for s, w in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.fixture(autouse=True)
def flat(monkeypatch: pytest.MonkeyPatch):
    register("flat")(lambda spec: FlatDrafter([1, 2, 3, 4]))


def engine_with(make_engine: EngineFactory, rule: str, honest: bool) -> Engine:
    engine = make_engine("flat", rule=rule, max_num_seqs=50, token_budget=2048)
    first = list(likely(engine, PROMPT))
    # Drafts among the target's own candidates, so that a good share is accepted.
    second = list(itertools.chain(*(likely(engine, [*PROMPT, a]) for a in first[:3])))
    engine.drafters["flat"].tokens = list(dict.fromkeys(first[:4] + second))[:8]
    engine.drafters["flat"].honest = honest
    return engine


@pytest.mark.parametrize("rule", ["match", "token", "block"])
def test_distribution_is_the_targets(make_engine: EngineFactory, rule: str) -> None:
    engine = engine_with(make_engine, rule, honest=True)
    assert p_value(engine) > 1e-9
    stats = engine.stats()
    assert stats.spec_accepted_tokens > 0.02 * stats.spec_draft_tokens


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_draft_that_lies_about_its_q_is_rejected(
    make_engine: EngineFactory, rule: str
) -> None:
    assert p_value(engine_with(make_engine, rule, honest=False)) < 1e-9
