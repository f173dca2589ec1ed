"""Draft policies: how they are written, who gets which, and that no stream depends on any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core import DraftPolicy, InvalidRequest, SamplingParams, SpeculativeParams
from paceline.engine.config import EngineConfig
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.drafting import COMPARABLE
from paceline.engine.engine import Engine
from paceline.engine.step_cost import StepCost
from tests.drafters.watched import watch
from tests.engine.test_streams import collect, dflash_truth, expected, jobs, run
from tests.engine.tiny import EngineFactory
from tests.models.dflash.tiny import write_drafter

one_backend = pytest.mark.parametrize(
    "make_engine", [("native", "bfloat16", "cpu")], ids=["native-bfloat16"], indirect=True
)
POLICIES = ["throughput", "fixed", "fixed:1", "fixed:3", "off"]
# Rows that are nearly free up to a point, on any machine: drafts are made, and cut.
ROWS = StepCost([1, 12, 64], [10.0, 11.0, 60.0])


def tapped_layers(engine: Engine) -> list[tuple[int, ...]]:
    """A list that gets the tapped layers of every step from now on."""
    tapped, forward = list[tuple[int, ...]](), engine.runner.forward

    def watched(rows: Any, layers: tuple[int, ...], *, logits: bool) -> Any:
        tapped.append(layers)
        return forward(rows, layers, logits=logits)

    engine.runner.forward = watched  # type: ignore[method-assign]
    return tapped


def ready(engine: Engine) -> Engine:
    engine.scheduler.cost = StepCost([1], [1.0])  # nothing is learned from this machine's steps
    engine.drafting.use(Costs(ROWS, {n: DraftCost(d.parallel) for n, d in engine.drafters.items()}))
    return engine


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("throughput", DraftPolicy("throughput")),
        ("fixed", DraftPolicy("fixed")),
        ("fixed:4", DraftPolicy("fixed", 4)),
        ("fixed:64", DraftPolicy("fixed", 64)),
        ("off", DraftPolicy("off")),
    ],
)
def test_policies_are_read(text: str, policy: DraftPolicy) -> None:
    assert DraftPolicy.parse(text) == policy
    assert EngineConfig(draft_policy=text).draft_policy == text


@pytest.mark.parametrize(
    "text", ["", "fast", "fixed:", "fixed:0", "fixed:65", "fixed:four", "ema", "off:", None, 4]
)
def test_bad_policies_are_refused_by_field_value_and_what_is_right(text: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        DraftPolicy.parse(text)
    assert refusal.value.field == "draft_policy"
    given, told = "null" if text is None else repr(text), str(refusal.value)
    assert given in told and "fixed:k" in told
    if text is not None:
        with pytest.raises(InvalidRequest, match=r"speculative\.policy"):
            SpeculativeParams.parse({"policy": text})


@one_backend
def test_a_request_may_not_ask_for_two_lengths_or_more_than_there_is(
    make_engine: EngineFactory,
) -> None:
    with pytest.raises(InvalidRequest, match=r"speculative\.max_draft_len: got 2"):
        SpeculativeParams(policy="fixed:4", max_draft_len=2)
    engine = make_engine("ngram,max_draft_len=5")
    with pytest.raises(InvalidRequest, match=r"speculative\.policy: got 'fixed:6'.*at most 5"):
        ask(engine, policy="fixed:6")
    with pytest.raises(InvalidRequest, match=r"draft_policy: got 'fixed:6'.*up to 5"):
        make_engine("ngram,max_draft_len=5", draft_policy="fixed:6")


def ask(engine: Engine, name: str = "r", **wishes: Any) -> Any:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    wish = SpeculativeParams(**wishes) if wishes else None
    (request,) = engine.make_requests([1, 2, 3] * 4, params, wish, request_id=name)
    return request


@one_backend
def test_who_gets_which_policy(make_engine: EngineFactory) -> None:
    engine = make_engine("ngram,max_draft_len=5", draft_policy="fixed:4")
    assert (ask(engine).policy, ask(engine).max_draft_len) == ("fixed", 4)
    assert ask(engine, max_draft_len=2).max_draft_len == 2
    own = ask(engine, policy="throughput")
    assert (own.policy, own.max_draft_len) == ("throughput", 5)
    assert ask(engine, policy="fixed:5").max_draft_len == 5
    assert ask(engine, policy="off").drafter is None
    off = make_engine("ngram,max_draft_len=5", draft_policy="off")
    assert ask(off).drafter is None and ask(off, policy="fixed").drafter == "ngram"


@one_backend
@pytest.mark.parametrize("together", [1, 8], ids=["alone", "batch-of-8"])
@pytest.mark.parametrize("policy", POLICIES)
def test_streams_are_equal_under_every_policy(
    make_engine: EngineFactory, policy: str, together: int
) -> None:
    work = jobs(16)
    engine = ready(make_engine("auto", draft_policy=policy))
    assert run(engine, work, together=together) == expected(make_engine, work)
    assert (engine.stats().speculation.accepted_tokens > 0) == (policy != "off")


def mixed(engine: Engine, work: list[Any], together: int) -> list[Any]:
    """Runs the jobs, each under another policy than the one before."""
    waiting, got, in_flight = list(enumerate(work)), {}, 0
    while waiting or engine.has_work:
        while waiting and in_flight < together:
            index, (prompt, params) = waiting.pop(0)
            wish = SpeculativeParams(policy=POLICIES[index % len(POLICIES)])
            made = engine.make_requests(prompt, params, wish, request_id=f"job{index}")
            got |= {request.id: [] for request in made}
            engine.add(made)
            in_flight += len(made)
        for delta in engine.step():
            got[delta.request_id].append(delta)
            in_flight -= delta.finished
    return [collect(deltas) for deltas in got.values()]


@pytest.mark.parametrize("drafter", ["auto", "dflash"])
def test_streams_are_equal_where_policies_share_a_batch(
    make_engine: EngineFactory, tmp_path: Path, drafter: str
) -> None:
    work = jobs(24, longest=90)
    truth = expected(make_engine, work)
    spec = f"d={write_drafter(tmp_path / 'd')}" if drafter == "dflash" else drafter
    engine = ready(make_engine(spec))
    if drafter == "dflash":
        watch(engine, dflash_truth(truth, work))
    assert mixed(engine, work, together=9) == truth
    assert engine.stats().speculation.accepted_tokens > 0


@one_backend
def test_a_dflash_drafter_that_does_not_pay_is_not_fed_and_starts_again(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """While nobody may draft no layer is tapped and nothing injected; later it drafts from what it
    has seen since, and the text is the same."""
    engine = make_engine(f"d={write_drafter(tmp_path / 'd')}", draft_policy="throughput")
    engine.scheduler.cost = StepCost([1], [1.0])
    drafter, tapped = engine.drafters["d"], tapped_layers(engine)
    costs = Costs(ROWS, {"d": DraftCost(True)})
    for count in (1, 2):
        costs.of("d").add_proposal([7] * count, 7, 100.0)
    engine.drafting.use(costs)
    params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    (request,) = engine.make_requests([5, 9, 2, 8], params, request_id="r")
    engine.add([request])
    while request.output_len < 60:
        engine.step()
    assert not any(tapped[30:]) and engine.stats().speculation.draft_tokens == 0
    costs.drafters.clear()
    costs.drafters.update(Costs(ROWS, {"d": DraftCost(True)}).drafters)  # it became cheap
    while engine.has_work:
        engine.step()
    assert any(tapped[60:]) and engine.stats().speculation.draft_tokens > 0
    assert drafter._states == {}
    plain = make_engine(None, prefix_cache=False)
    (same,) = plain.make_requests([5, 9, 2, 8], params, request_id="r")
    plain.add([same])
    while plain.has_work:
        plain.step()
    assert request.output_ids == same.output_ids


@one_backend
def test_a_context_past_the_drafters_reach_stops_drafting_and_tapping(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    engine = make_engine(f"d={write_drafter(tmp_path / 'd', max_position_embeddings=48)}")
    tapped = tapped_layers(engine)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (request,) = engine.make_requests(list(range(30)), params, request_id="r")
    engine.add([request])
    while engine.has_work:
        engine.step()
    assert engine.stats().speculation.draft_tokens > 0 and request.output_len == 60
    assert tapped[0] and not any(tapped[-8:])


@one_backend
def test_only_steps_that_draft_tell_what_a_draft_costs_beside_itself(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they tell is no part of what a plain step costs."""
    engine = make_engine(f"d={write_drafter(tmp_path / 'd')}")
    told: list[tuple[float, ...]] = []
    observed: list[float] = []
    monkeypatch.setattr(DraftCost, "add_step", lambda self, *seconds: told.append(seconds))
    monkeypatch.setattr(StepCost, "observe", lambda self, rows, *rest: observed.append(rest[0]))

    def steps(policy: str) -> int:
        """Answer a request; return the steps of which the drafter's cost was subtracted."""
        engine.drafting.costs.of("d").beside = 1e6
        told.clear()
        observed.clear()
        engine.add([ask(engine, policy, policy=policy)])
        while engine.has_work:
            engine.step()
        return sum(seconds < 0 for seconds in observed)

    assert steps("off") == 0 and not told
    drafted = steps("fixed:2")
    assert 0 < drafted < len(observed), "the prompt's step drafts nothing"
    assert len(told) == min(drafted, COMPARABLE), "a slow machine would look like a dear drafter"
    assert engine.baseline.ar_seconds < 1e5


@one_backend
def test_a_holdback_is_drawn_from_those_without_a_wish(make_engine: EngineFactory) -> None:
    engine = make_engine("ngram", holdback=0.25)
    silent = [ask(engine, f"r{index}") for index in range(400)]
    held = [request.held_back for request in silent]
    assert 60 < sum(held) < 140
    assert all((request.drafter is None) == request.held_back for request in silent)
    assert held == [ask(engine, f"r{index}").held_back for index in range(400)]
    assert {ask(engine, f"r{i}", policy="fixed").held_back for i in range(40)} == {None}
    assert ask(make_engine("ngram")).held_back is None
    with pytest.raises(InvalidRequest, match=r"holdback: got 0\.9"):
        EngineConfig(holdback=0.9)
