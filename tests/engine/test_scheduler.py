"""The one rule: computed catches up with what is known, within budget and memory."""

from __future__ import annotations

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.draft import Draft
from paceline.engine.kv_cache import KVCache
from paceline.engine.prompt_share import PromptShare
from paceline.engine.scheduler import Plan, Scheduler
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


def drafting_scheduler(drafters: int, plain: int, budget: int = 512) -> Scheduler:
    """So many requests verify 15 draft tokens a step, and so many may not draft. All decode."""
    s = scheduler(blocks=400, seqs=64, budget=budget)
    for index in range(drafters + plain):
        s.add(each := request(f"decoding{index}", 3))
        if index >= drafters:
            each.max_draft_len = 0
    run(s, s.plan(no_draft))
    for _ in range(40):
        plan = s.plan(full_draft)
        for entry in plan.scheduled:
            entry.draft = Draft(tokens=[7] * entry.draft_limit, length=entry.draft_limit)
        s.observe_drafts(plan)
        run(s, plan)
    return s


def full_draft(request: Request) -> int:
    return min(request.max_draft_len, 15)


@pytest.mark.parametrize(
    ("drafters", "plain", "budget"),
    [(1, 31, 512), (32, 0, 512), (40, 0, 512), (4, 0, 64), (4, 0, 6)],
)
def test_drafts_leave_rows_to_prompts(drafters: int, plain: int, budget: int) -> None:
    s = drafting_scheduler(drafters, plain, budget)
    prompts = [request(name, 3) for name in ("first", "second")]
    for each in prompts:
        s.add(each)
    for _ in range(6):
        run(s, s.plan(full_draft))
    assert all(each.output_len for each in prompts)


def test_rows_are_kept_for_requests_that_may_draft_alone() -> None:
    s = drafting_scheduler(1, 0)
    s.remove(s.running[0])
    for index in range(40):
        s.add(each := request(f"decoding{index}", 3))
        each.max_draft_len = 0
    for _ in range(2):
        run(s, s.plan(full_draft))
    s.add(request("long", 400))
    assert counts(s.plan(full_draft)) == {"long": 400}


def test_rows_are_kept_for_drafts_as_lately_made() -> None:
    """The drafts of a request that has ended say nothing about those of a later one."""
    s = drafting_scheduler(1, 1)
    assert s.draft_rows > 14
    s.remove(s.running[0])
    for _ in range(20):
        plan = s.plan(full_draft)
        s.observe_drafts(plan)
        run(s, plan)
    assert s.draft_rows < 1


def test_drafts_that_found_no_room_are_remembered() -> None:
    """Else a long prompt, which takes their rows, would take them for good."""
    s = drafting_scheduler(4, 0)
    before = s.draft_rows
    s.observe_drafts(s.plan(no_draft))
    assert s.draft_rows == before


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
