"""What a drafter looks up goes on whatever its other drafts cost, and is counted apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core import CutReason
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.engine import Engine
from paceline.engine.lengths import Bound
from paceline.engine.lengths.levels import Level, Levels
from paceline.engine.step_cost import StepCost
from paceline.models.batch import BLOCK_SIZE
from tests.drafters import watched as dflash_tests
from tests.drafters.watched import check_drafts, watch_dflash
from tests.engine import test_grammar_streams as grammars
from tests.engine.test_streams import dflash_truth, expected, jobs, run
from tests.engine.tiny import EngineFactory
from tests.models.dflash.tiny import write_drafter

one_backend = pytest.mark.parametrize(
    "make_engine", [("native", "bfloat16", "cpu")], ids=["native-bfloat16"], indirect=True
)


def ready(engine: Engine, seconds: float = 0.0) -> Engine:
    """Rows that are nearly free up to a point; `seconds` for a pass of any drafter. Nothing is
    learned from this machine's steps."""
    step = StepCost([1, 12, 64], [10.0, 11.0, 60.0])
    engine.scheduler.cost = StepCost([1], [1.0])
    costs = Costs(step, {n: DraftCost(d.parallel) for n, d in engine.drafters.items()})
    for name in engine.drafters if seconds else ():
        for count in (1, 8):
            costs.of(name).add_proposal([15] * count, 15, seconds)
        costs.of(name).proposed = lambda *_: None  # type: ignore[method-assign]
    engine.drafting.use(costs)
    return engine


def hybrid_engine(make_engine: EngineFactory, folder: Path, **options: Any) -> Engine:
    spec = f"h=hybrid:{write_drafter(folder / 'd')}"
    return make_engine(spec, draft_policy="throughput", **options)


@one_backend
def test_look_ups_go_on_while_asking_does_not_pay(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    work = jobs(12, longest=120)
    truth = expected(make_engine, work)
    accepted: dict[str, int] = {}
    for name in ("auto", "hybrid", "only when asked"):
        if name == "auto":
            engine = ready(make_engine("auto", draft_policy="throughput"))
        else:
            engine = ready(hybrid_engine(make_engine, tmp_path), seconds=20.0)
            hybrid = engine.drafters["h"]
            asked, propose = [], hybrid.dflash.propose
            hybrid.dflash.propose = lambda *a, p=propose, n=asked: (n.append(1), p(*a))[1]
            if name == "only when asked":
                engine.drafting.lengths.looks_up = lambda request: False
        assert run(engine, work, together=4) == truth
        accepted[name] = engine.stats().speculation.accepted_tokens
        if name == "hybrid":
            assert 0 < len(asked) < engine.stats().steps / 4, "tried, and given up"
    assert accepted["hybrid"] > 0.9 * accepted["auto"] > 100
    assert accepted["only when asked"] < 0.5 * accepted["auto"], "the control"


@pytest.mark.parametrize("kind", ["hybrid", "dflash"])
@one_backend
def test_levels_of_drafting_change_no_text(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They change in the middle of requests: DFlash has holes in its context, look-ups catch up."""
    work = jobs(12, longest=60)
    truth = expected(make_engine, work)
    spec = f"d={kind}:{write_drafter(tmp_path / 'd')}"
    engine = ready(make_engine(spec, draft_policy="throughput"))
    drafter, rng, levels = engine.drafters["d"], random.Random(4), [Level.ALL]
    choices = list(Level) if kind == "hybrid" else [Level.NONE, Level.ALL]
    dflash = drafter.dflash if kind == "hybrid" else drafter
    done: dict[Level, set[str]] = {level: set() for level in Level}
    failed: list[str] = []

    def level(self: Levels, decoding: int, cohorts: object) -> Level:
        if rng.random() < 0.2:
            levels.append(rng.choice(choices))
        return levels[-1]

    def watch(part: Any, method: str, name: str) -> None:
        plain = getattr(part, method)
        monkeypatch.setattr(
            part, method, lambda *a, **k: (done[levels[-1]].add(name), plain(*a, **k))[1]
        )

    monkeypatch.setattr(Levels, "level", level)
    monkeypatch.setattr(engine.drafting, "give_up", lambda request: failed.append(request.id))
    if kind == "hybrid":
        watch(drafter.lookup, "propose", "look up")
    watch(dflash, "propose", "ask")
    watch(dflash.network, "inject", "see features")
    assert run(engine, work, together=4) == truth
    assert not failed
    assert set(levels) == set(choices)
    look_ups = {"look up"} if kind == "hybrid" else set()
    assert done[Level.NONE] == set()
    assert done[Level.LOOK_UPS] == look_ups
    assert done[Level.ALL] == look_ups | {"ask", "see features"}


@one_backend
def test_what_was_looked_up_is_counted_apart(make_engine: EngineFactory, tmp_path: Path) -> None:
    work = [
        (prompt, replace(params, n=1, temperature=min(params.temperature, 0.8)))
        for prompt, params in jobs(48)
    ]
    truth = expected(make_engine, work)
    engine = ready(hybrid_engine(make_engine, tmp_path))
    watch_dflash(engine, {}, rate=0.0)  # random weights: next to nothing stands
    assert run(engine, work, together=4) == truth
    records = engine.drafting.lengths._controllers["throughput"]._records
    first = {looked_up: [] for looked_up in (False, True)}
    for (_, _, _, looked_up), record in records.items():
        first[looked_up].append(record.by_position.predict("another", 1)[0])
    assert 3 * max(first[False]) < min(first[True]), first
    assert max(first[True]) < 0.5, "learnt: before anything is known it is 0.6"


@one_backend
@pytest.mark.parametrize("policy", ["throughput", "fixed"])
def test_what_is_asked_for_and_timed_is_dflashs_alone(
    make_engine: EngineFactory, tmp_path: Path, policy: str
) -> None:
    """No draft longer than its block is hoped for, and no look-up makes it look cheap."""
    engine = ready(hybrid_engine(make_engine, tmp_path))
    hybrid, price = engine.drafters["h"], engine.drafting.costs.of("h")
    hybrid.share = 0.3  # little is expected of random weights
    block, asked, timed = hybrid.dflash.max_draft_len, [], []
    propose = hybrid.dflash.propose
    hybrid.dflash.propose = lambda r, n: (asked.append(list(n)), propose(r, n))[1]
    price.add_proposal = lambda n, *_: timed.append(list(n))
    run(engine, [(p * 2, params) for p, params in jobs(8)], together=4, policy=policy)
    assert asked == timed and len(asked) > 20
    assert max(map(max, asked)) <= block < hybrid.max_draft_len
    assert sum(map(len, asked)) < engine.stats().speculation.draft_rounds, "nothing was looked up"


def test_dflash_sees_what_was_looked_up_before_it_drafts_again(tmp_path: Path) -> None:
    """Rows of rounds in which it was not asked wait for it: none is missing when it is."""
    folder = write_drafter(tmp_path / "d")
    work = [(p[:60] * 2, params) for p, params in dflash_tests.jobs(10)]
    plain = dflash_tests.make_engine(None, prefix_cache=False)
    outputs = dflash_tests.run(plain, work, together=1)
    truth = {tuple(p): out for (p, _), out in zip(work, outputs, strict=True)}
    engine = ready(dflash_tests.make_engine(f"h=hybrid:{folder}", draft_policy="throughput"))
    watched, waited = watch_dflash(engine, truth, 0.5), []
    take = engine.drafting._backlog.take
    engine.drafting._backlog.take = lambda ids: [waited.append(r) or r for r in take(ids)]
    assert dflash_tests.run(engine, work, together=5) == outputs
    assert len(waited) > 20 and len(watched.drafts) > 100
    check_drafts(watched)


@one_backend
@pytest.mark.parametrize("rule", ["match", "token", "block"])
def test_a_grammar_is_kept_whether_drafts_are_looked_up_or_drawn(
    make_engine: EngineFactory, tmp_path: Path, rule: str
) -> None:
    """What was forced into a look-up must not be taken for forced in the draft that replaces it."""
    engine = ready(hybrid_engine(make_engine, tmp_path, rule=rule))
    lengths = engine.drafting.lengths
    lengths.draft_lengths = lambda batch, **_: [Bound(e.draft_limit) for e in batch]
    draft, replaced = engine.drafting.draft, []

    def checked_draft(scheduled):
        draft(scheduled)
        for entry in scheduled:
            if entry.draft.q is not None:
                replaced.append(entry)
                assert not entry.draft.forced and not entry.draft.looked_up

    engine.drafting.draft = checked_draft
    work = grammars.jobs()
    finished = grammars.run(engine, work, together=6)
    if rule == "match":
        assert finished == grammars.expected(make_engine, work)
    checked = 0
    for (_, params), stream in zip(grammars.each_choice(work), finished, strict=True):
        checked += grammars.conforms(params.grammar, stream.text, stream.end[0], params.stop)
    assert checked > 10 and engine.stats().speculation.accepted_tokens > 0
    assert (len(replaced) > 50) == (rule != "match")


@one_backend
@pytest.mark.parametrize("together", [1, 8], ids=["alone", "batch-of-8"])
def test_streams_are_equal(make_engine: EngineFactory, tmp_path: Path, together: int) -> None:
    work = jobs(16)
    truth = expected(make_engine, work)
    engine = ready(hybrid_engine(make_engine, tmp_path))
    watch_dflash(engine, dflash_truth(truth, work), 0.5)
    assert run(engine, work, together=together) == truth
    assert engine.stats().speculation.accepted_tokens > 100


@one_backend
def test_a_step_without_drafts_asks_nothing_of_the_drafter(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That took 3% of a step of 32. Prompts are shown all the same, for drafts to come."""
    work = jobs(12, longest=60)
    truth = expected(make_engine, work)
    engine = ready(hybrid_engine(make_engine, tmp_path))
    hybrid, shown, asked, held = engine.drafters["h"], [], [], []
    observe = engine.drafting.observe
    monkeypatch.setattr(Levels, "level", lambda self, decoding, cohorts: Level.NONE)
    monkeypatch.setattr(engine.drafting, "observe", lambda r: (shown.extend(r), observe(r)))
    monkeypatch.setattr(hybrid, "held_tokens", lambda request: held.append(request) or 0)
    for method in ("look_up", "propose"):
        monkeypatch.setattr(hybrid, method, lambda *a, name=method: asked.append(name))
    rounds, make = [], engine._rounds.make
    monkeypatch.setattr(
        engine._rounds, "make", lambda *a: (rounds.append(made := make(*a)), made)[1]
    )
    assert run(engine, work, together=4) == truth
    assert asked == []
    assert {rows.count >= BLOCK_SIZE for rows in shown} == {True}
    assert len(held) == len(shown), "asked for its KV where it has seen something new"
    reasons = Counter(round.cut_by for round in rounds)
    assert set(reasons) == {CutReason.PROMPT, CutReason.COST, CutReason.ROOM}
    assert reasons[CutReason.COST] > len(rounds) / 2
