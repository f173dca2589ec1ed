"""Draft lengths that follow the cost: long where rows are free, none where they cost too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from paceline.core import CutReason, Request, SamplingParams
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.draft import Draft, shortened
from paceline.engine.lengths import Bound, ThroughputLengths
from paceline.engine.lengths.history import TRIAL
from paceline.engine.scheduler import Scheduled
from paceline.engine.step_cost import StepCost


def costs(*table: list) -> Costs:
    return Costs(StepCost(*table))


FREE = costs([1, 64], [1.0, 1.0])
LINEAR = costs([1, 64], [1.0, 64.0])
KNEE = costs([1, 16, 32], [1.0, 1.0, 2.0])  # free up to 16 rows, then a sixteenth each


def sevens(count: int) -> Draft:
    tokens = [7] * count
    return Draft(proposed=tokens, tokens=tokens, length=count)


def entries(count: int, draft: int) -> list[Scheduled]:
    made = []
    for index in range(count):
        request = Request(id=f"r{index}", prompt_ids=[1], params=SamplingParams(), drafter="d")
        made.append(Scheduled(request, 0, 1, draft_limit=draft, draft=sevens(draft)))
    return made


def verify(
    lengths: ThroughputLengths,
    batch: list[Scheduled],
    confidence: list[list[float]],
    *,
    rows: int,
    decoding: int,
) -> list[int]:
    for entry, values in zip(batch, confidence, strict=True):
        entry.draft = replace(entry.draft, confidence=values)
    return lengths.verify_lengths(batch, rows=rows, decoding=decoding)


def test_free_rows_are_all_used_and_costly_ones_are_not() -> None:
    (batch,) = [entries(2, 8)]
    sure = [[0.9] * 8] * 2
    assert verify(ThroughputLengths(FREE), batch, sure, rows=2, decoding=2) == [8, 8]
    assert verify(ThroughputLengths(LINEAR), batch, [[0.3] * 8] * 2, rows=2, decoding=2) == [
        0,
        0,
    ]


def test_the_likelier_draft_gets_the_rows() -> None:
    batch = entries(2, 12)
    lengths = ThroughputLengths(KNEE)
    sure, unsure = verify(lengths, batch, [[0.95] * 12, [0.3] * 12], rows=2, decoding=2)
    assert sure > unsure and 2 + sure + unsure <= 16


def test_a_joining_prompt_does_not_make_drafts_look_cheap() -> None:
    batch, confidence = entries(8, 4), [[0.6] * 4] * 8
    lengths = ThroughputLengths(costs([1, 8, 256], [1.0, 1.0, 32.0]))  # an eighth a row, past 8
    assert not any(verify(lengths, batch, confidence, rows=8, decoding=8))
    assert not any(verify(lengths, batch, confidence, rows=8 + 64, decoding=8))


def test_requests_that_do_not_draft_count_as_well() -> None:
    """A row that slows fifteen others down must bring more than one that slows nobody."""
    batch, lengths = entries(1, 4), ThroughputLengths(costs([1, 64], [1.0, 17.0]))
    alone = verify(lengths, batch, [[0.5] * 4], rows=1, decoding=1)
    among = verify(lengths, batch, [[0.5] * 4], rows=16, decoding=16)
    assert alone == [1] and among == [0]


def test_drafts_shrink_as_the_batch_grows() -> None:
    kept = []
    for count in (1, 4, 16, 32):
        batch = entries(count, 8)
        lengths = verify(
            ThroughputLengths(KNEE), batch, [[0.6] * 8] * count, rows=count, decoding=count
        )
        kept.append(sum(lengths) / count)
    assert kept == sorted(kept, reverse=True) and kept[0] == 8 and kept[-1] == 0


GOOD, BAD = [7, 7, 7, 7, 7], [8]  # what a round may commit after a proposal of sevens


def rounds(lengths: ThroughputLengths, entry: Scheduled, committed: list[list[int]]) -> list[int]:
    """Proposes sevens round after round; how many of them were verified each time."""
    history = []
    for tokens in committed:
        entry.draft = sevens(4)
        (kept,) = verify(lengths, [entry], [[0.6] * 4], rows=1, decoding=1)
        entry.draft = shortened(entry.draft, kept)
        lengths.observe(entry, tokens[: kept + 1])
        history.append(kept)
    return history


def test_drafts_that_keep_failing_stop_and_come_back_without_a_row_spent() -> None:
    (entry,) = entries(1, 4)
    lengths = ThroughputLengths(costs([1, 8], [1.0, 3.4]))
    history = rounds(lengths, entry, [BAD] * 60)
    assert history[0] > 0, "it never tried"
    assert sum(history[10:]) == 0, "it went on verifying what nobody accepts"
    assert rounds(lengths, entry, [GOOD] * 15)[-1] > 0, "it does not see that the text agrees again"


def test_a_new_request_starts_from_what_its_cohort_is_known_for() -> None:
    first, second = entries(2, 4)
    lengths = ThroughputLengths(costs([1, 8], [1.0, 3.4]))
    rounds(lengths, first, [BAD] * 40)
    lengths.forget(first.request.id)
    assert rounds(lengths, second, [BAD]) == [0]


def test_what_one_temperature_accepts_says_nothing_of_a_much_hotter_one() -> None:
    batch = entries(4, 4)
    for entry, temperature in zip(batch, (0.0, 0.7, 1.0, 0.7), strict=True):
        entry.request.params = SamplingParams(temperature=temperature)
    greedy, warm, hot, next_warm = batch
    lengths = ThroughputLengths(costs([1, 8], [1.0, 3.4]))
    rounds(lengths, warm, [BAD] * 40)
    lengths.forget(warm.request.id)
    assert rounds(lengths, greedy, [BAD])[0] > 0 and rounds(lengths, hot, [BAD])[0] > 0
    assert rounds(lengths, next_warm, [BAD]) == [0]


def test_confidence_is_taken_for_what_came_of_it() -> None:
    """A drafter that is too sure at 0.9 and too shy at 0.3: its records tell."""
    (entry,) = entries(1, 1)
    lengths = ThroughputLengths(costs([1, 2], [1.0, 1.5]))
    for turn in range(200):
        sure = turn % 2 == 0
        entry.draft = sevens(1)
        verify(lengths, [entry], [[0.9 if sure else 0.3]], rows=1, decoding=1)
        lengths.observe(entry, [8] if sure else [7, 7])

    def verified(confidence: float) -> int:
        entry.draft = sevens(1)
        return verify(lengths, [entry], [[confidence]], rows=1, decoding=1)[0]

    assert (verified(0.9), verified(0.3)) == (0, 1)


def test_drafts_that_stand_grow() -> None:
    (entry,) = entries(1, 4)
    history = rounds(ThroughputLengths(costs([1, 16], [1.0, 8.5])), entry, [GOOD] * 30)
    assert history[-1] > history[0]


def asked(lengths: ThroughputLengths, batch: list[Scheduled]) -> list[int]:
    return [bound.length for bound in bounds(lengths, batch)]


def bounds(lengths: ThroughputLengths, batch: list[Scheduled]) -> list[Bound]:
    return lengths.draft_lengths(batch, rows=len(batch), decoding=len(batch), longest=64)


def dear(seconds: float, parallel: bool = True, step: tuple = ([1, 64], [1.0, 1.0])) -> Costs:
    """A drafter `d` that takes so long for a draft of 6, or for each of its tokens."""
    made = Costs(StepCost(*step), {"d": DraftCost(parallel)})
    for requests in (1, 2):
        made.of("d").add_proposal([6] * requests, 6, seconds if parallel else 6 * seconds)
    return made


def test_a_drafter_that_costs_more_than_it_brings_is_not_asked() -> None:
    batch = entries(1, 6)
    assert asked(ThroughputLengths(KNEE), batch) == [6]  # nothing is known of its cost yet
    assert asked(ThroughputLengths(dear(0.2)), batch) == [6]
    assert asked(ThroughputLengths(dear(30.0)), batch) == [0]
    assert bounds(ThroughputLengths(dear(30.0)), batch)[0].why is CutReason.COST


def test_a_drafter_of_one_pass_pays_once_for_any_length() -> None:
    batch = entries(1, 6)
    assert asked(ThroughputLengths(dear(0.9)), batch) == [6]
    assert asked(ThroughputLengths(dear(0.6, parallel=False)), batch)[0] < 3


def test_beside_a_look_up_all_of_a_pass_is_asked_for() -> None:
    """A short draft would lose against a long one that was looked up, for no time saved."""
    step = ([1, 64], [1.0, 17.0])
    (plain,), (beside,) = entries(1, 6), entries(1, 6)
    beside.draft = replace(sevens(6), looked_up=True)
    assert 0 < asked(ThroughputLengths(dear(0.1, step=step)), [plain])[0] < 6
    assert asked(ThroughputLengths(dear(0.1, step=step)), [beside]) == [6]
    rare = ThroughputLengths(dear(30.0, step=step))
    assert asked(rare, [beside]) == [0], "where asking does not pay, it is not asked"


@pytest.mark.parametrize("proposed, better", [([7] * 6, True), ([8] * 6, False), ([], False)])
def test_a_proposal_that_is_passed_over_is_judged_like_any(
    proposed: list[int], better: bool
) -> None:
    """Its look-up stood every time: that is no failure of the drafter, and no merit."""
    (entry,) = entries(1, 6)
    lengths = ThroughputLengths(dear(0.1))
    before = lengths._survivals(entry.request, 1)
    for _ in range(8):
        asked(lengths, [entry])
        entry.draft = replace(sevens(6), looked_up=True, passed_over=proposed)
        lengths.observe(entry, GOOD)
    after = lengths._survivals(entry.request, 1)
    assert after > before if better else after < before


def fail(
    lengths: ThroughputLengths,
    batch: list[Scheduled],
    count: int,
    committed: Sequence[int] = BAD,
) -> list[list[int]]:
    """So many rounds in which nothing that is drafted stands; who was asked in each."""
    history = []
    for _ in range(count):
        history.append(asked(lengths, batch))
        for entry, length in zip(batch, history[-1], strict=True):
            entry.draft = sevens(length)
        drafted = [entry for entry in batch if entry.draft]
        kept = verify(
            lengths, drafted, [[0.6] * 6] * len(drafted), rows=len(batch), decoding=len(batch)
        )
        for entry, length in zip(drafted, kept, strict=True):
            entry.draft = shortened(entry.draft, length)
        for entry in batch:
            lengths.observe(entry, committed[: len(entry.draft) + 1])
    return history


def test_a_request_that_fails_pauses_and_tries_again_after_longer_and_longer() -> None:
    (entry,) = entries(1, 6)
    lengths = ThroughputLengths(dear(0.3))
    history = [bool(length) for (length,) in fail(lengths, [entry], 600)]
    assert history[0] and sum(history) < 50
    tries = [at for at in range(1, 600) if history[at] and not history[at - 1]]
    gaps = [b - a for a, b in pairwise(tries)]
    assert len(tries) >= 3 and gaps == sorted(gaps) and gaps[-1] > 100


def test_requests_that_pause_side_by_side_try_again_together() -> None:
    first, second = entries(2, 6)
    lengths = ThroughputLengths(dear(0.3))
    fail(lengths, [first], 5)
    history = fail(lengths, [first, second], 300)[40:]
    tries = [[bool(length) for length in asked_] for asked_ in history if any(asked_)]
    assert tries and sum(all(pair) for pair in tries) >= 0.6 * len(tries)


def test_a_drafter_with_nothing_to_say_is_asked_less() -> None:
    (entry,) = entries(1, 6)
    lengths, rounds_asked = ThroughputLengths(dear(0.3)), 0
    for _ in range(100):
        rounds_asked += asked(lengths, [entry]) != [0]
        entry.draft = sevens(0)
        lengths.observe(entry, GOOD[:1])
    assert rounds_asked < 30


def test_requests_of_a_failing_cohort_begin_with_a_pause_but_some_try() -> None:
    lengths = ThroughputLengths(dear(0.3))
    began = []
    for index in range(100):
        (entry,) = entries(1, 6)
        entry.request.id = f"r{index}"
        began.append(any(length for (length,) in fail(lengths, [entry], 8)))
        lengths.forget(entry.request.id)
    assert all(began[:1]) and 1 <= sum(began[50:]) <= 5
    (other,) = entries(1, 6)
    other.request.cohort = "another app"
    assert asked(lengths, [other]) == [6]


def test_records_of_cohorts_are_bounded_and_the_busy_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.engine.lengths.throughput.MOST_RECORDS", 20)
    lengths = ThroughputLengths(dear(0.3))

    def begin(index: int, cohort: str) -> bool:
        (entry,) = entries(1, 6)
        entry.request.id, entry.request.cohort = f"r{index}", cohort
        tried = any(length for (length,) in fail(lengths, [entry], 8))
        lengths.forget(entry.request.id)
        return tried

    tried = []
    for index in range(300):
        tried.append(begin(2 * index, "busy"))
        begin(2 * index + 1, f"passing-{index}")
    assert len(lengths._records) <= 21
    assert sum(tried[50:]) <= 25, "its failures are remembered"


def test_a_new_request_tries_although_its_cohort_is_known_for_failures() -> None:
    """The failures were one other request's: they lower what drafts seem worth, here to less than
    they cost, but say little about this one's."""
    first, second = entries(2, 6)
    lengths = ThroughputLengths(dear(0.7))
    fail(lengths, [first], 200)
    lengths.forget(first.request.id)
    assert fail(lengths, [second], 8) == [[TRIAL]] * TRIAL + [[0]] * (8 - TRIAL)


def test_all_requests_try_where_some_do_well() -> None:
    """Whether a request's drafts stand is its own: most fail here, and every third pays."""
    lengths = ThroughputLengths(dear(0.3))
    tried, used = [], []
    for index in range(60):
        (entry,) = entries(1, 6)
        entry.request.id = f"r{index}"
        good = index % 3 == 0
        history = fail(lengths, [entry], 40, GOOD if good else BAD)
        tried.append(history[0] != [0])
        used += [sum(length > 0 for (length,) in history)] if good else []
        lengths.forget(entry.request.id)
    assert all(tried)
    assert min(used) > 30, "a request whose drafts stand was kept from drafting"


def test_a_new_drafter_that_fails_is_given_up_within_a_few_rounds() -> None:
    (entry,) = entries(1, 6)
    history = fail(ThroughputLengths(dear(0.3)), [entry], 16)
    assert 1 <= sum(length > 0 for (length,) in history) <= 8


def test_time_that_went_into_drafting_makes_long_drafts_worth_more() -> None:
    """The seconds of a round are those of its drafts as well: a row is dear beside them or not."""
    kept = []
    for seconds in (0.05, 0.3):
        batch = entries(1, 6)
        lengths = ThroughputLengths(dear(seconds, step=([1, 64], [1.0, 1.0 + 63 * 0.3])))
        assert asked(lengths, batch)[0] >= 2
        kept += verify(lengths, batch, [[0.6, 0.55, 0.5, 0.5, 0.5, 0.5]], rows=1, decoding=1)
    assert kept[0] < kept[1]


def test_a_drafter_that_costs_next_to_nothing_is_always_asked() -> None:
    """A look-up that fails for long may find something in the next round."""
    (entry,) = entries(1, 6)
    assert all(length for (length,) in fail(ThroughputLengths(dear(0.02)), [entry], 100))
    assert not all(length for (length,) in fail(ThroughputLengths(dear(0.1)), [entry], 100))


def test_nobody_is_asked_or_shown_where_the_load_leaves_no_room_and_all_when_it_falls() -> None:
    lengths = ThroughputLengths(dear(0.1, step=([1, 16, 64], [1.0, 1.0, 49.0])))
    crowd, few = entries(16, 6), entries(2, 6)
    for entry in crowd:
        entry.draft = sevens(0)
    for _ in range(40):
        assert not any(asked(lengths, crowd))
        for entry in crowd:
            lengths.observe(entry, BAD)
    assert not any(lengths.sees(entry.request) for entry in crowd)
    assert asked(lengths, few) == [6, 6], "no pause: their drafts have not failed"
    assert all(lengths.sees(entry.request) for entry in crowd)


def test_the_model_cost_is_the_optimum_of_the_same_sum() -> None:
    """Against brute force over all pairs of lengths."""
    batch = entries(2, 5)
    confidence = [[0.9, 0.8, 0.7, 0.6, 0.5], [0.6, 0.9, 0.9, 0.2, 0.9]]
    got = verify(ThroughputLengths(LINEAR_THEN), batch, confidence, rows=2, decoding=2)

    def rate(lengths: tuple[int, int]) -> float:
        tokens = 2.0
        for row, length in zip(confidence, lengths, strict=True):
            survival = 1.0
            for p in row[:length]:
                survival *= p
                tokens += survival
        return tokens / LINEAR_THEN.step(2 + sum(lengths))

    best = max((rate((a, b)), (a, b)) for a in range(6) for b in range(6))
    assert rate((got[0], got[1])) == pytest.approx(best[0])


LINEAR_THEN = costs([1, 4, 16], [1.0, 1.2, 4.0])
