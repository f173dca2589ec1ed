"""The engine as benchmarks drive it: alone, in a fresh scope, by other rules and other drafters."""

from __future__ import annotations

from paceline.bench.load.answers import ask_engine, fresh_requests
from paceline.core import SamplingParams, SpeculativeParams
from paceline.engine.driver import Driver
from paceline.engine.verify import make_verifier
from tests.bench.test_groups import make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [5, 17, 80, 3, 41, 9, 9, 9]


def test_requests_run_to_their_end_and_leave_nothing() -> None:
    engine = make_engine()
    deltas = list(Driver(engine).run(fresh_requests(engine, PROMPT, GREEDY, SpeculativeParams())))
    assert sum(len(delta.token_ids) for delta in deltas) == 12
    assert deltas[-1].finished and not engine.has_work
    engine.check_integrity()


def test_every_call_gets_a_scope_to_itself_unless_one_is_given() -> None:
    engine = make_engine()
    wish = SpeculativeParams()
    first, second = (fresh_requests(engine, PROMPT, GREEDY, wish)[0] for _ in range(2))
    assert first.id != second.id and first.answers_scope != second.answers_scope
    shared = [fresh_requests(engine, PROMPT, GREEDY, wish, salt=b"x")[0] for _ in range(2)]
    assert shared[0].answers_scope == shared[1].answers_scope


def test_an_answer_is_measured_by_rounds_that_commit_its_tokens() -> None:
    answer = ask_engine(make_engine(), PROMPT, GREEDY, SpeculativeParams(policy="fixed"))
    assert len(answer.token_ids) == len(answer.arrivals) == len(answer.kinds) == 12
    assert 1 + sum(1 + each.accepted for each in answer.rounds) == 12
    assert [each.position for each in answer.rounds] == sorted(
        {each.position for each in answer.rounds}
    )
    assert answer.drafted.rounds <= len(answer.rounds)
    assert answer.acceptance_length >= 1 and answer.finish_reason == "length"


def test_only_the_chosen_requests_take_a_step() -> None:
    engine = make_engine()
    chosen, other = (
        fresh_requests(engine, PROMPT, GREEDY, SpeculativeParams(off=True))[0] for _ in range(2)
    )
    engine.add([chosen, other])
    engine.step()
    before = other.output_len
    with Driver(engine).only([chosen]):
        engine.step()
    assert (chosen.output_len, other.output_len) == (before + 1, before)
    while engine.has_work:
        engine.step()
    assert chosen.output_ids == other.output_ids
    engine.check_integrity()


def test_acceptance_follows_the_plan_within_it() -> None:
    engine = make_engine(drafter="mock,max_draft_len=4", rule="synthetic", synthetic=(1.0,))
    verifier = engine.verifier
    for rate, accepted in ((1.0, 4), (0.0, 0)):
        wish = SpeculativeParams(policy="fixed")
        with Driver(engine).rule(make_verifier("synthetic", [rate] * 4)):
            answer = ask_engine(engine, PROMPT, SamplingParams(max_tokens=6, ignore_eos=True), wish)
        assert answer.rounds[0].accepted == accepted
    assert engine.verifier is verifier


def test_requests_are_queued_stepped_and_ended() -> None:
    """What other requests get is kept for those who ask for it later; close() ends the rest."""
    engine = make_engine()
    driver = Driver(engine)
    first, second = (fresh_requests(engine, PROMPT, GREEDY, SpeculativeParams()) for _ in range(2))
    driver.queue([*first, *second])
    alone = list(driver.deltas(first))
    assert alone[-1].finished and {delta.request_id for delta in alone} == {first[0].id}
    rest = driver.step()
    assert {delta.request_id for delta in rest} == {second[0].id}
    assert sum(len(delta.token_ids) for delta in rest) == 12 and driver.open == 0
    third = fresh_requests(engine, PROMPT, GREEDY, SpeculativeParams())
    driver.queue(third)
    driver.step()
    assert driver.open == 1 and driver.read_seconds() > 0
    driver.close()
    assert driver.open == 0 and not engine.has_work
    engine.check_integrity()
