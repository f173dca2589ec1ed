"""The one rule: computed catches up with what is known, within budget and memory."""

from __future__ import annotations

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.draft import Draft
from paceline.engine.kv_cache import KVCache
from paceline.engine.prompt_share import PromptShare
from paceline.engine.scheduler import Plan, Scheduled, Scheduler, looking_back
from paceline.engine.step_cost import StepCost
from paceline.models.batch import BLOCK_SIZE


def scheduler(blocks: int = 64, seqs: int = 8, budget: int = 64, **goals: float) -> Scheduler:
    share = PromptShare(max_stretch=1.5, **goals)
    cost = StepCost([1], [1.0])
    return Scheduler(
        KVCache(blocks), cost=cost, max_num_seqs=seqs, token_budget=budget, share=share
    )


def busy_scheduler(decoding: int, **goals: float) -> Scheduler:
    """So many requests decode, at one second a step up to 8 rows and 1/16 more for each row past
    16."""
    s = scheduler(budget=200, **goals)
    for index in range(decoding):
        s.add(request(f"decoding{index}", 3))
    run(s, s.plan(no_draft))
    s.cost = StepCost([1, 8, 16, 64], [1.0, 1.0, 1.5, 4.5])
    return s


def counts(plan: Plan) -> dict[str, int]:
    return {e.request.id: e.count for e in plan.scheduled if "decoding" not in e.request.id}


def request(name: str, length: int) -> Request:
    ids = [hash((name, i)) % 50000 for i in range(length)]
    params = SamplingParams()
    return Request(id=name, prompt_ids=ids, params=params, max_tokens=100, max_draft_len=16)


def run(s: Scheduler, plan: Plan) -> None:
    """Pretends to compute the plan: every row is right, one token is committed where one is due."""
    for entry in plan.scheduled:
        entry.request.computed += entry.count
        if entry.samples:
            entry.request.tokens.append(1)
        s.cache.commit(entry.request)


def no_draft(_: Request) -> int:
    return 0


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    s = scheduler(budget=64)
    s.add(r := request("a", 150))
    counts = []
    for _ in range(4):
        plan = s.plan(no_draft)
        counts.append((plan.scheduled[0].count, plan.scheduled[0].samples))
        run(s, plan)
    assert counts == [(64, False), (64, False), (22, True), (1, True)]
    assert r.computed == len(r.tokens) - 1


def test_decoding_requests_go_first_and_a_prompt_takes_what_is_left() -> None:
    s = scheduler(budget=10)
    for name in "ab":
        s.add(request(name, 3))
    run(s, s.plan(no_draft))
    s.add(request("long", 100))
    plan = s.plan(no_draft)
    assert [(e.request.id, e.count) for e in plan.scheduled] == [("a", 1), ("b", 1), ("long", 8)]


@pytest.mark.parametrize(("decoding", "seconds"), [(1, 2.0), (4, 1.5)])
def test_a_long_prompt_and_those_who_decode_share_the_time(decoding: int, seconds: float) -> None:
    s = busy_scheduler(decoding)
    s.add(request("long", 500))
    plan = s.plan(no_draft)
    assert s.cost(sum(e.count for e in plan.scheduled)) == seconds
    run(s, plan)
    for entry in s.running[:decoding]:
        s.remove(entry)
    assert s.plan(no_draft).scheduled[0].count == 200  # nobody waits for a token any more


def test_a_short_prompt_is_computed_in_one_step_and_passes_a_long_one() -> None:
    s = busy_scheduler(4)
    s.add(request("long", 500))
    s.add(request("short", 90))
    plan = s.plan(no_draft)
    assert counts(plan) == {"long": 12, "short": 90}
    run(s, plan)
    s.add(request("shorter", 50))
    s.add(request("next", 60))  # with it the step would take more than 8 seconds
    assert counts(s.plan(no_draft)) == {"short": 1, "long": 12, "shorter": 50}


def test_the_rest_of_a_long_prompt_stays_in_chunks() -> None:
    s = busy_scheduler(4)
    s.add(long := request("long", 130))
    while not long.decoding:
        run(s, plan := s.plan(no_draft))
        assert s.cost(sum(e.count for e in plan.scheduled)) <= 1.5


def test_chunks_get_smaller_as_they_look_back_on_more() -> None:
    s = busy_scheduler(4)
    s.cost.per_pair = 2e-4
    s.add(long := request("long", 400))
    rows, steps = [], []
    while not long.decoding:
        plan = s.plan(no_draft)
        rows.append(counts(plan)["long"])
        back = sum(s.cost.attending(e.start, e.count) for e in plan.scheduled)
        steps.append(s.cost(sum(e.count for e in plan.scheduled), 1, back))
        run(s, plan)
    assert rows[0] > 10 and rows[-2] < 7
    assert max(steps) <= 1.5


def test_rows_give_way_to_what_must_be_read_down_to_half() -> None:
    rows = []
    for start, per_key in ((0, 0.0), (160, 0.7e-3), (160, 3.0e-3), (160, 9.0e-3)):
        s = busy_scheduler(4)
        s.cost = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=per_key)
        long = request("long", 400)
        long.computed, long.cached_tokens = start, 0
        s.running.append(long)
        s.cache.allocate(long, start)
        rows.append(counts(s.plan(no_draft))["long"])
    assert rows == [5, 5, 2, 2], "1.5 s; 1.61 s; then rows for a quarter in any case"


def test_a_goal_for_tpot_counts_what_is_read() -> None:
    s = busy_scheduler(4, tpot_goal=2.06)  # 0.06 s: the four look back on three tokens each
    s.cost = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=5.0e-3)
    long = request("long", 400)
    long.computed, long.cached_tokens = 160, 0
    s.running.append(long)
    s.cache.allocate(long, 160)
    assert counts(s.plan(no_draft)) == {"long": 2}  # 0.8 s to read, 0.2 s for two rows


def test_a_row_that_is_too_dear_is_computed_all_the_same() -> None:
    s = busy_scheduler(4)
    s.cost = StepCost([1, 4, 5], [1.0, 1.0, 9.0])
    s.add(request("long", 50))
    s.add(request("longer", 60))
    assert counts(s.plan(no_draft)) == {"long": 1}


def test_prompts_leave_room_for_the_drafts_of_others() -> None:
    s = busy_scheduler(4)
    plan = s.plan(lambda _: 5)
    for entry in plan.scheduled:
        entry.draft = Draft(tokens=[7] * 5, length=5)
    for _ in range(40):
        s.observe_drafts(plan)
    s.add(request("long", 500))
    (count,) = counts(s.plan(lambda _: 5)).values()
    assert s.cost(4 + 20 + count) == pytest.approx(1.5 * s.cost(4 + 20), rel=0.05)


def test_with_a_goal_for_tpot_prompts_make_steps_that_long() -> None:
    s = busy_scheduler(4, tpot_goal=3.0)
    s.add(request("long", 500))
    s.add(request("short", 90))
    plan = s.plan(no_draft)
    assert s.cost(sum(e.count for e in plan.scheduled)) == 3.0


def test_a_prompt_that_would_miss_its_goal_gets_more() -> None:
    s = busy_scheduler(4, ttft_goal=1000.0)
    s.add(long := request("long", 500))
    plan = s.plan(no_draft)
    assert counts(plan) == {"long": 12}
    run(s, plan)
    long.arrival -= 950.0
    assert counts(s.plan(no_draft))["long"] > 100


def test_drafts_get_slots_and_give_way_when_memory_is_short() -> None:
    s = scheduler(blocks=3)
    s.add(r := request("a", BLOCK_SIZE * 2))
    run(s, s.plan(no_draft))
    assert s.plan(lambda _: 10).scheduled[0].draft_limit == 10
    assert len(r.blocks) == 3
    r.tokens += [1] * (BLOCK_SIZE - 2)
    r.computed = len(r.tokens) - 1
    plan = s.plan(lambda _: 10)
    assert plan.scheduled[0].draft_limit < 3 and not plan.preempted


def test_a_draft_never_takes_another_requests_row_or_slot() -> None:
    s = scheduler(budget=16)
    for name in "abcdefgh":
        s.add(request(name, 3))
    run(s, s.plan(no_draft))
    run(s, s.plan(no_draft))
    s.waiting.append(request("long", 100))
    plan = s.plan(lambda _: 15)
    assert [e.count for e in plan.scheduled] == [1] * 8  # eight seats: `long` waits for one
    assert [e.draft_limit for e in plan.scheduled] == [1] * 8
    s.remove(s.running[-1])
    plan = s.plan(lambda _: 15)
    assert plan.scheduled[-1].count == 9 and sum(e.draft_limit for e in plan.scheduled) == 0

    tight = scheduler(blocks=2)
    for name in "ab":
        tight.add(request(name, BLOCK_SIZE - 2))
    run(tight, tight.plan(no_draft))
    plan = tight.plan(lambda _: 15)
    assert [(e.count, e.draft_limit) for e in plan.scheduled] == [(1, 1), (1, 1)]
    assert not plan.preempted


def test_what_one_draft_cannot_use_goes_to_the_others() -> None:
    s = scheduler(budget=14)
    for name in "ab":
        s.add(request(name, 3))
    run(s, s.plan(no_draft))
    rooms = [e.draft_limit for e in s.plan(lambda r: 2 if r.id == "a" else 15).scheduled]
    assert rooms == [2, 10]


def test_the_youngest_is_preempted_and_comes_back_with_its_tokens() -> None:
    s = scheduler(blocks=4, budget=128)
    old, young = request("old", BLOCK_SIZE * 2 - 1), request("young", BLOCK_SIZE)
    s.add(old)
    s.add(young)
    run(s, s.plan(no_draft))
    tokens = list(young.tokens)
    preempted = []
    for _ in range(BLOCK_SIZE * 2):
        run(s, plan := s.plan(no_draft))
        preempted += plan.preempted
        s.cache.check_integrity(s.running)
    assert preempted == [young] and young.preemptions == 1
    assert young.tokens[: len(tokens)] == tokens
    s.remove(old)
    plan = s.plan(no_draft)
    assert plan.admitted == [young] and young in s.running


def test_newcomers_wait_for_a_place_in_order() -> None:
    s = scheduler(seqs=2)
    for name in "abc":
        s.add(request(name, 3))
    assert [r.id for r in s.plan(no_draft).admitted] == ["a", "b"]
    s.remove(s.running[0])
    assert [r.id for r in s.plan(no_draft).admitted] == ["c"]


def test_other_choices_wait_for_the_first_to_compute_their_prompt() -> None:
    s = scheduler(budget=64)
    first, second = request("p", 100), request("p", 100)
    second.id, second.leader = "p2", first
    s.add(first)
    s.add(second)
    run(s, plan := s.plan(no_draft))
    assert plan.admitted == [first]
    run(s, s.plan(no_draft))
    plan = s.plan(no_draft)
    assert plan.admitted == [second] and second.cached_tokens == 100 // BLOCK_SIZE * BLOCK_SIZE


def test_step_cost_is_linear_between_and_beyond_and_never_falls() -> None:
    cost = StepCost([1, 8, 16], [1.0, 0.9, 2.0])
    assert cost(1) == cost(8) == 1.0
    assert cost(12) == 1.5 and abs(cost(32) - 4.0) < 1e-9
    assert cost.rows_within(1.5 * cost(8), 8, most=56) == 4
    assert cost.rows_within(1.0001 * cost(60), 60, most=4) == 0


def test_many_rows_cost_what_more_tiles_cost_and_not_what_a_row_of_the_last_one_does() -> None:
    """Rows 49 to 64 share a tile on AMX: along their line a prompt of 512 tokens would be free."""
    tiles = [1, 16, 17, 32, 33, 48, 49, 64], [1.0, 1.1, 1.3, 1.4, 1.7, 1.8, 2.1, 2.2]
    assert StepCost(*tiles)(512) == pytest.approx(2.2 + 448 * 0.8 / 32)
    dearer = StepCost(*tiles)
    dearer.observe(64, 2.6)
    assert dearer(512) < 1.25 * StepCost(*tiles)(512)


def test_what_a_step_looks_back_on_costs_time_and_is_learned_apart() -> None:
    cost = StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5)
    back = cost.looking_back(4096, 51)
    assert back == pytest.approx(4096e-4 + 50 * (4096 + 25.5) * 1e-5)
    assert cost(51, 1, back) == pytest.approx(cost(51) + back)
    assert cost.rows_within(2.0, 1, 63, start=0) == 20
    assert 8 < cost.rows_within(2.0, 1, 63, start=4096) < 13, "to read the keys is not counted"


def test_rows_and_what_they_look_back_on_are_learned_each_by_its_share() -> None:
    cost, true = (StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5) for _ in range(2))
    cost.per_key, cost.per_pair = 0.5e-4, 0.5e-5
    for _ in range(300):
        for start, count in ((0, 1), (4096, 1), (2048, 8)):
            seconds = true(count, 1, true.looking_back(start, count))
            cost.observe(count, seconds, 1, cost.looking_back(start, count))
    for start, count in ((0, 1), (4096, 1), (2048, 8)):
        found = cost(count, 1, cost.looking_back(start, count))
        assert found == pytest.approx(true(count, 1, true.looking_back(start, count)), rel=0.1)
    assert cost.per_key == pytest.approx(1e-4, rel=0.25), "half of it was known before"


def test_a_slower_machine_is_told_by_steps_that_look_back_too() -> None:
    cost = StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5)
    for _ in range(50):
        cost.observe(1, 2 * 1.4096, 1, cost.looking_back(4096, 1))
    assert cost(1) == pytest.approx(2.0, rel=0.2)
    assert cost(1, 1, cost.looking_back(4096, 1)) == pytest.approx(2 * 1.4096, rel=0.01)


def test_a_decoding_requests_context_is_no_cost_of_the_prompt_beside_it() -> None:
    """Contexts grow while a long prompt is computed. Its chunks must not get the blame: they would
    shrink, and the prompt take even longer."""
    cost = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=1e-4)
    true = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=1e-4)
    requests = [request(f"decoding{index}", 4000) for index in range(4)]
    for context in range(0, 4000, 10):
        entries = [Scheduled(each, context, 1) for each in requests]
        entries.append(Scheduled(request("long", 8000), 4000, 2, chunk=True))
        seconds = true(6, 5) + (4 * context + 4000) * 1e-4
        cost.observe(6, seconds, 5, looking_back(cost, entries))
    assert cost.reading(4096) == pytest.approx(0.4096)


def test_sizes_of_a_step_are_learned_though_they_come_in_long_phases() -> None:
    """Costs that were timed on a busy machine, where large steps hardly cost more than small ones:
    decoding alone, and then beside a long prompt, again and again. Were the second phase taken for
    a slower machine, the chunks would stay too large for ever."""
    true = StepCost([1, 4, 32], [1.0, 1.0, 2.0], per_key=1e-4)
    cost = StepCost([1, 4, 32], [1.0, 1.0, 1.2], per_key=1e-4)
    for _ in range(12):
        for rows, requests, start in [(4, 4, 0)] * 100 + [(32, 5, 20 * i) for i in range(200)]:
            back = true.looking_back(start, 1)
            seconds = true(rows, requests, back)
            cost.observe(rows, seconds, requests, cost.looking_back(start, 1))
    assert cost(32) / cost(4) == pytest.approx(2.0, rel=0.1)
    assert cost.reading(2000) / cost(4) == pytest.approx(0.2, rel=0.2)


def test_step_cost_learns_from_steps_without_forgetting_its_shape() -> None:
    cost = StepCost([1, 8, 16], [1.0, 1.0, 2.0])
    for _ in range(100):
        cost.observe(1, 3.0)  # a longer context, a slower machine: everything is dearer
    assert cost(1) == pytest.approx(3.0, rel=0.01) and cost(16) / cost(1) > 1.5
    for _ in range(500):
        cost.observe(1, 3.0)
        cost.observe(8, 6.0)  # dearer than was thought
    assert cost(8) / cost(1) == pytest.approx(2.0, rel=0.1)
    assert cost(1) < cost(4) < cost(8) <= cost(16)
    cost.observe(1000, 1e9)  # a prompt's step says nothing about drafts
    cost.observe(1, 1e9)  # a neighbour took the machine for a while
    assert cost(1) < 4.0
