"""Lossy by budget: the distance is what was promised, by enumeration; no budget, no change."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from paceline.core import (
    Grammar,
    InvalidRequest,
    Request,
    SamplingParams,
    SpeculativeParams,
    Verdict,
)
from paceline.engine import judging
from paceline.engine.sampler import TargetRows
from paceline.engine.verify import MatchVerifier, TokenVerifier
from tests.deltas import run_to_end, stats_of
from tests.engine.oracle import EXACT, LENGTH, VOCAB, P, Q, error
from tests.engine.test_lossless_oracle import law
from tests.engine.test_streams import collect, expected, jobs, run
from tests.engine.tiny import EngineFactory

BUDGETS = [0.01, 0.1, 0.3, 1.0]
HARDLY = 1e-30  # a budget that runs all of a budget's arithmetic and buys nothing


class Counting:
    """Runs a rule and sums up what it says it used, weighted by nothing: the law does that."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.most = rule, 0.0

    def verify(self, rows: Any, draft: Any, q: Any) -> Verdict:
        verdict = self.rule.verify(rows, draft, q)
        judged = min(len(draft), verdict.accepted + 1)
        assert 0 <= verdict.distance <= self.rule.epsilon * judged + 1e-12
        self.most = max(self.most, verdict.distance)
        return verdict


def first_token(measured: dict[tuple[int, ...], float]) -> list[float]:
    return [sum(w for tokens, w in measured.items() if tokens[0] == t) for t in range(VOCAB)]


def distance(one: Any, other: Any) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2


@pytest.mark.parametrize("epsilon", BUDGETS)
def test_a_certain_draft_uses_its_budget_exactly(outcomes: Any, epsilon: float) -> None:
    rule = Counting(MatchVerifier(epsilon))
    measured = law(outcomes, "match", "argmax", verifier=rule)
    drafted = int(Q[()].argmax())
    promised = min(epsilon, 1 - P[()][drafted])
    assert distance(first_token(measured), P[()]) == pytest.approx(promised, abs=EXACT)
    assert EXACT < error(measured) <= epsilon * LENGTH
    assert rule.most > 0


@pytest.mark.parametrize("epsilon", BUDGETS)
def test_a_sampled_draft_uses_its_budget_exactly(outcomes: Any, epsilon: float) -> None:
    rule = Counting(TokenVerifier(epsilon))
    measured = law(outcomes, "token", "sample", verifier=rule)
    promised = min(epsilon, distance(P[()], Q[()]))
    assert distance(first_token(measured), P[()]) == pytest.approx(promised, abs=EXACT)
    assert EXACT < error(measured) <= epsilon * LENGTH


@pytest.mark.parametrize("epsilon", BUDGETS)
def test_a_coupled_draft_stays_within_its_budget(outcomes: Any, epsilon: float) -> None:
    measured = law(outcomes, "match", "coupled", verifier=MatchVerifier(epsilon))
    assert distance(first_token(measured), P[()]) <= min(epsilon, 1.0) + EXACT
    assert error(measured) <= epsilon * LENGTH + EXACT


@pytest.mark.parametrize(("rule", "draw"), [(MatchVerifier, "argmax"), (TokenVerifier, "sample")])
def test_hardly_any_budget_keeps_the_law(outcomes: Any, rule: Any, draw: str) -> None:
    assert error(law(outcomes, "any", draw, verifier=rule(HARDLY))) < EXACT


def decision(verdict: Verdict) -> tuple[int, int]:
    return verdict.accepted, verdict.next_token


def target_rows(seed: int, draft: list[int], **options: Any) -> TargetRows:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(draft) + 1, 50, generator=generator)
    params = SamplingParams(**{"temperature": 0.8, **options})
    request = Request(id="r", prompt_ids=[1], params=params, seed=seed)
    return TargetRows(request, logits, logits.argmax(-1).tolist(), [True] * len(logits), draft)


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0}, {"logit_bias": {3: -9}}])
def test_hardly_any_budget_is_the_lossless_rule_to_the_bit(options: dict[str, Any]) -> None:
    for seed in range(60):
        probe = target_rows(seed, [0, 0, 0, 0], **options)
        draft = [probe.token(i) if (seed + i) % 5 else i for i in range(4)]
        rows = target_rows(seed, draft, **options)
        assert decision(MatchVerifier(HARDLY).verify(rows, draft)) == decision(
            MatchVerifier().verify(rows, draft)
        )
        flat = [torch.full((50,), 0.02, dtype=torch.float64)] * 4
        if options.get("temperature") != 0:
            theirs = decision(TokenVerifier().verify(rows, draft, flat))
            assert decision(TokenVerifier(HARDLY).verify(rows, draft, flat)) == theirs


def test_streams_with_hardly_any_budget_are_lossless_to_the_bit(
    make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = expected(make_engine, jobs(8))
    monkeypatch.setattr(judging, "verifier_for", lambda request, rule: MatchVerifier(HARDLY))
    assert run(make_engine("suffix"), jobs(8), together=4) == truth


def test_what_is_ruled_out_never_stands() -> None:
    filtered = target_rows(2, [49, 49], top_k=3)
    assert filtered.prob(0, 49) == 0
    banned = target_rows(1, [7, 7], min_tokens=9, stop_token_ids=(7,))
    for rows in (filtered, banned):
        verdict = MatchVerifier(1.0).verify(rows, rows.draft)
        assert verdict.accepted == 0 and verdict.distance == 0
        assert MatchVerifier(1.0).verify(target_rows(1, [7, 7]), [7, 7]).accepted == 2


def lossy_stream(engine: Any, epsilon: float, **options: Any) -> tuple[Any, Any]:
    params = SamplingParams(max_tokens=80, seed=3, **options)
    wish = SpeculativeParams(lossy=epsilon)
    deltas = run_to_end(engine, engine.make_requests([5, 6, 7] * 6, params, wish, request_id="r"))
    return collect(deltas), stats_of(deltas)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_budget_accepts_more_and_tells_what_it_used(
    make_engine: EngineFactory, temperature: float
) -> None:
    engine = make_engine("ngram,min_ngram=1")
    used = []
    for epsilon in (0.0, 0.2, 1.0):
        stream, stats = lossy_stream(engine, epsilon, temperature=temperature, ignore_eos=True)
        assert len(stream.tokens) == 80
        assert stats.distance <= epsilon * (stats.accepted_tokens + stats.draft_rounds) + 1e-9
        assert (stats.replaced_tokens > 0) == (epsilon > 0)
        used.append((stats.acceptance_rate, stats.distance))
    assert used[0][0] < used[1][0] < used[2][0] == 1.0
    assert used[0][1] == 0 < used[1][1] < used[2][1]


def test_a_budget_never_leaves_the_grammar(make_engine: EngineFactory) -> None:
    engine = make_engine("ngram,min_ngram=1")
    grammar = Grammar("regex", "(ab|cd|e){5,20}!")
    stream, stats = lossy_stream(engine, 1.0, temperature=1.0, grammar=grammar)
    assert re.fullmatch(grammar.source, stream.text) and stats.replaced_tokens > 0


def test_refusals(make_engine: EngineFactory) -> None:
    for bad in (-0.1, 1.5, True, "a"):
        with pytest.raises(InvalidRequest, match=r"speculative\.lossy"):
            SpeculativeParams.parse({"lossy": bad})
    engine = make_engine("ngram", rule="block")
    with pytest.raises(InvalidRequest, match=r"speculative\.lossy.*rule is block"):
        engine.make_requests([1], SamplingParams(), SpeculativeParams(lossy=0.1), request_id="r")
