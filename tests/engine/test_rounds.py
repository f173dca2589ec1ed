"""Rounds explained: the counts add up to the request's, and the reasons are the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core import OutputDelta, SamplingParams, SpeculativeParams, TokenKind
from paceline.engine import admission
from paceline.engine.costs import Costs
from paceline.engine.engine import Engine
from paceline.engine.step_cost import StepCost
from tests.deltas import run_to_end, stats_of
from tests.engine.test_grammar import GRAMMARS
from tests.engine.tiny import EngineFactory
from tests.models.dflash.tiny import write_drafter

PROMPT = [5, 6, 7, 8] * 8
EXPECTED_PARTS = {"auto": {"suffix"}, "hybrid": {"suffix", "dflash"}, "ngram": set()}
ONE_BACKEND = pytest.mark.parametrize(
    "make_engine", [("torch", "float32", "cpu")], ids=["torch-float32"], indirect=True
)
pytestmark = ONE_BACKEND


def explained(engine: Engine, wish: Any = None, **options: Any) -> list[OutputDelta]:
    params = SamplingParams(**{"max_tokens": 60, "temperature": 0.0, "seed": 1, **options})
    (request,) = engine.make_requests(
        PROMPT, params, SpeculativeParams.parse(wish), request_id="r", cohort="app", explain=True
    )
    return run_to_end(engine, [request])


def test_rounds_add_up(make_engine: EngineFactory) -> None:
    for options in ({}, {"grammar": GRAMMARS["schema"]}, {"temperature": 1.0, "top_k": 4}):
        deltas = explained(make_engine("ngram,min_ngram=1,max_draft_len=6"), **options)
        stats, position = stats_of(deltas), 0
        drafted = accepted = forced = 0
        for delta in deltas:
            assert delta.round is not None and delta.explained is not None
            record, verified = delta.round, delta.explained.verified
            assert record.position == position
            position += len(delta.token_ids)
            assert record.verified == len(verified) <= 6
            assert record.proposed == len(delta.explained.drafted)
            assert record.accepted == delta.kinds.count(TokenKind.ACCEPTED)
            assert record.forced == delta.kinds.count(TokenKind.FORCED)
            stand = record.accepted + sum(i < record.accepted for i in delta.explained.forced)
            assert verified[:stand] == delta.token_ids[:stand]
            assert record.drafted == record.verified - len(delta.explained.forced)
            drafted += record.drafted
            accepted += record.accepted
            forced += record.forced
            assert record.step.requests == 1 and record.step.seconds > 0
            stream = record.stream
            assert (stream.rule, stream.cohort, stream.drafter) == ("match", "app", "ngram")
            assert stream.grammar == ("grammar" in options)
        assert position == deltas[-1].completion_tokens
        counted = stats.draft_tokens, stats.accepted_tokens, stats.forced_tokens
        assert (drafted, accepted, forced) == counted and drafted


@pytest.mark.parametrize("kind", ["auto", "hybrid", "ngram"])
def test_the_part_that_drafted_is_named(
    make_engine: EngineFactory, tmp_path: Path, kind: str
) -> None:
    folder = write_drafter(tmp_path / "d") if kind == "hybrid" else None
    deltas = explained(make_engine(kind if folder is None else f"{kind}:{folder}"))
    counted: dict[str, list[int]] = {}
    for round in (delta.round for delta in deltas if delta.round is not None):
        assert round.part is None or round.proposed
        if round.verified and round.part is not None:
            counts = counted.setdefault(round.part, [0, 0, 0])
            for index, value in enumerate((1, round.verified, round.accepted)):
                counts[index] += value
    stats = stats_of(deltas)
    assert set(counted) == EXPECTED_PARTS[kind]
    assert counted == {
        name: [part.draft_rounds, part.draft_tokens, part.accepted_tokens]
        for name, part in stats.parts.items()
    }
    if kind != "ngram":
        assert sum(counts[2] for counts in counted.values()) == stats.accepted_tokens > 0


def test_who_did_not_ask_gets_none(make_engine: EngineFactory) -> None:
    engine = make_engine("ngram")
    engine.add(engine.make_requests(PROMPT, SamplingParams(max_tokens=5), request_id="r"))
    while engine.has_work:
        assert all(delta.explained is None for delta in engine.step())


def reasons(deltas: list[OutputDelta]) -> list[str | None]:
    return [delta.round.cut_by for delta in deltas if delta.round is not None]


def test_reasons(make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(reasons(explained(make_engine("ngram"), "off"))) == {"off", "prompt"}
    assert set(reasons(explained(make_engine(None)))) == {"off", "prompt"}
    monkeypatch.setattr(admission, "drawn", lambda request_id: 0.0)
    held_back = make_engine("ngram", holdback=0.01)
    assert set(reasons(explained(held_back))) == {"held back", "prompt"}
    some = reasons(explained(make_engine("ngram,min_ngram=4"), max_tokens=80, temperature=1.0))
    assert some[0] == "prompt" and "drafter" in some
    assert reasons(explained(make_engine("ngram,min_ngram=1")))[-1] == "room", "the end is near"
    dear = make_engine("ngram,min_ngram=1", draft_policy="throughput")
    dear.drafting.use(Costs(StepCost([1, 2, 64], [1.0, 9.0, 600.0])))
    assert "cost" in reasons(explained(dear))
    engine = make_engine("ngram,min_ngram=1,max_draft_len=12")
    by_grammar = explained(engine, grammar=GRAMMARS["regex"], temperature=1.0)
    assert "grammar" in reasons(by_grammar)


def test_confidence_is_that_of_the_tokens_that_fit(make_engine: EngineFactory) -> None:
    deltas = explained(
        make_engine("suffix,max_draft_len=6"), grammar=GRAMMARS["lark"], max_tokens=90
    )
    confident = [delta for delta in deltas if delta.explained and delta.explained.confidence]
    assert confident
    for delta in confident:
        assert len(delta.explained.confidence) <= delta.round.proposed
        assert all(0 <= value <= 1 for value in delta.explained.confidence)


def test_a_draft_of_ones_own_is_shown_whole(make_engine: EngineFactory) -> None:
    deltas = explained(make_engine("suffix,min_token_prob=0"), temperature=1.0)
    assert any(len(d.explained.drafted) > d.round.accepted for d in deltas)
    for delta in deltas:
        assert len(delta.explained.drafted) == delta.round.proposed and not delta.explained.hidden
