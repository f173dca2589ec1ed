"""A hybrid chooses the part that drafts by what it expects of each, and learns from both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core import DraftBatch, ModelError, Request
from paceline.drafters.hybrid import (
    PRIOR,
    USUAL,
    HybridDrafter,
    Pending,
    Standing,
    StoodShare,
    sober,
    trained_share,
)
from paceline.drafters.spec import build, parse_spec
from tests.drafters.watched import look_up_first
from tests.models.dflash.tiny import write_drafter


class Fake:
    """A part that drafts what it is told, by the request's first token."""

    feature_layers, lookback, kv, weight_bytes, reach = (0,), 0, None, 0, 100
    version, max_draft_len = "1", 4

    sampled = True  # its drafts, from a q

    def __init__(self, drafts: dict[int, tuple[list[int], list[float]]]) -> None:
        self.drafts, self.asked, self.start_up_rows = drafts, [], []

    def begin(self, requests: Any, held: Any) -> None: ...
    def release(self, requests: Any) -> None: ...

    def propose(self, requests: Any, lengths: Any) -> DraftBatch:
        self.asked += [request.tokens[0] for request in requests]
        found = [self.drafts.get(request.tokens[0], ([], [])) for request in requests]
        return DraftBatch(
            tokens=[list(tokens) for tokens, _ in found],
            confidence=[list(sure) for _, sure in found],
            q=[([None] * len(tokens) or None) if self.sampled else None for tokens, _ in found],
        )


STRONG, WEAK, NONE, BEST = 1, 2, 3, 4
LOOKUP = {
    STRONG: ([10, 11, 12], [0.9, 0.9, 0.9]),  # 2.4 tokens promised, 1.7 expected
    WEAK: ([20], [0.5]),
    BEST: ([40], [0.996]),  # 0.940; DFlash is expected to bring 1/2 + 1/4 + 1/8 + 1/16
}
DFLASH = {key: ([30 + key] * 4, [0.6] * 4) for key in (STRONG, WEAK, NONE, BEST)}  # 1.3 tokens


def parts(
    dflash: Any = DFLASH, lookup: Any = LOOKUP, share: float = 0.5
) -> tuple[HybridDrafter, Fake, Fake]:
    looking_up, model = Fake(lookup), Fake(dflash)
    hybrid = HybridDrafter("h", looking_up, model, share=share)  # type: ignore[arg-type]
    return hybrid, looking_up, model


def started(hybrid: HybridDrafter, requests: list[Request]) -> list[Request]:
    hybrid.begin(requests, [0] * len(requests))
    return requests


def test_a_strong_look_up_spares_dflash_its_forward_and_a_weak_one_does_not(make_request):
    hybrid, _, model = parts()
    requests = started(hybrid, [make_request([key, 9]) for key in (STRONG, WEAK, NONE, BEST)])
    batch = look_up_first(hybrid, requests, [4] * 4)
    assert batch.tokens == [[10, 11, 12], [32] * 4, [33] * 4, [40]]
    assert model.asked == [WEAK, NONE]
    assert batch.confidence == [[0.9] * 3, [0.6] * 4, [0.6] * 4, [0.996]]
    assert [batch.q_rows(i) is None for i in range(4)] == [True, False, False, True]
    found, enough = hybrid.look_up(requests, [4] * 4)
    assert enough == [True, False, False, True] and found.tokens[WEAK - 1] == [20]


def test_a_short_draft_is_compared_with_a_short_draft(make_request):
    hybrid, _, model = parts()
    requests = started(hybrid, [make_request([WEAK, 9]), make_request([NONE, 9])])
    assert look_up_first(hybrid, requests, [1, 0]).tokens[0] == [20], (
        "equal expectations, 0.5 and 0.5: the look-up, which is free"
    )
    assert model.asked == []


def test_the_choice_does_not_depend_on_who_shares_the_batch(make_request):
    keys = [STRONG, WEAK, NONE, BEST, WEAK]
    hybrid, _, _ = parts()
    together = look_up_first(hybrid, started(hybrid, [make_request([k, 9]) for k in keys]), [4] * 5)
    for index, key in enumerate(keys):
        alone, _, _ = parts()
        batch = look_up_first(alone, started(alone, [make_request([key, 9])]), [4])
        assert batch.tokens[0] == together.tokens[index]


def test_what_stood_of_dflashs_drafts_in_this_request_moves_the_choice(make_request):
    hybrid, _, model = parts()
    good, bad = started(hybrid, [make_request([WEAK, 9]), make_request([WEAK, 9])])
    for _ in range(12):
        batch = look_up_first(hybrid, [good, bad], [4, 4])
        assert batch.tokens[0] == [32] * 4
        good.tokens += [32] * 4
        bad.tokens += [20]
    assert batch.tokens[1] == [20], "0.5 is more than a DFlash brings that never stood"
    model.asked.clear()
    fresh = make_request([WEAK, 9])
    started(hybrid, [fresh])
    assert look_up_first(hybrid, [fresh, bad], [4, 4]).tokens == [[32] * 4, [20]], "each its own"


def test_drafts_are_judged_without_a_look_up_between_them(make_request):
    hybrid, _, _ = parts()
    (request,) = started(hybrid, [make_request([WEAK, 9])])
    fresh = hybrid._judged(request).expected(4)
    for _ in range(12):
        assert hybrid.propose([request], [4]).tokens == [[32] * 4]
        request.tokens += [32] * 4
    hybrid.propose([request], [4])
    assert hybrid._judged(request).expected(4) > 2 * fresh


def test_a_draft_is_judged_once_by_what_was_said_in_its_place():
    standing = Standing(StoodShare(PRIOR / 2, PRIOR))
    assert standing.expected(2) == pytest.approx(0.75)
    standing.proposed = Pending([7, 8, 9], 2)
    standing.looked_up = Pending([7, 5, 9], 2, [0.9, 0.8, 0.7])
    standing.judge([1, 2])
    assert standing.dflash.of == standing.lookup.of == PRIOR, "nothing was said yet"
    standing.judge([1, 2, 7, 5])
    before = replace(standing.dflash), replace(standing.lookup)
    assert before[0] == StoodShare(*map(pytest.approx, (0.95 * PRIOR / 2 + 1, 0.95 * PRIOR + 2)))
    assert before[1] == StoodShare(*map(pytest.approx, (0.95 * PRIOR + 2, 0.95 * PRIOR + 1.7)))
    standing.judge([1, 2, 7, 5, 6])
    assert (standing.dflash, standing.lookup) == before
    for _ in range(200):
        standing.proposed = Pending([7], 0)
        standing.judge([8])
    assert standing.expected(7) < 1e-3, "a hopeless one is not hoped for"


def test_look_ups_that_find_nothing_tell_nothing(make_request):
    hybrid, _, _ = parts()  # this look-up knows STRONG and WEAK alone
    (request,) = started(hybrid, [make_request([7, 9])])
    for _ in range(50):
        hybrid.look_up([request], [4])
        request.tokens += [31]
    assert hybrid._judged(request).lookup == StoodShare(PRIOR, PRIOR)


def test_look_ups_that_promise_too_much_are_found_out_within_the_request(make_request):
    """An application's look-ups promise long drafts whose second token is another customer's."""
    hybrid, _, _ = parts(lookup={STRONG: ([10, 11, 12, 13], [0.995] * 4)})
    (request,) = started(hybrid, [make_request([STRONG, 9])])
    drafted = []
    for _ in range(10):
        drafted.append(look_up_first(hybrid, [request], [4]).tokens[0])
        request.tokens += [31, 31]
    assert drafted[0] == [10, 11, 12, 13] and drafted[-1] == [31] * 4
    (fresh,) = started(hybrid, [make_request([STRONG, 9])])
    assert look_up_first(hybrid, [fresh], [4]).tokens == [[10, 11, 12, 13]], "each its own"


def test_a_drafter_that_was_good_in_training_is_asked_from_the_start(make_request):
    for share, asked in ((0.5, []), (0.95, [STRONG])):
        hybrid, _, model = parts(share=share)
        look_up_first(hybrid, started(hybrid, [make_request([STRONG, 9])]), [4])
        assert model.asked == asked


@pytest.mark.parametrize(
    ("tokens", "confidence", "kept"),
    [
        ([20, 33, 33], [0.9, 0.1, 0.1], True),  # behind the 20: 1.0 against 0.11
        ([20, 33, 33], [0.1, 0.9, 0.9], False),  # 1.0 against 1.71: the 20 is in both
        ([20, 21, 22], [0.1, 0.1, 0.1], False),  # the same: DFlash's, which was paid for
        ([33, 33, 33], [0.6, 0.6, 0.6], True),  # 1.58 against 1.18
        ([33, 33, 33], [0.9, 0.9, 0.9], False),
        ([], [], False),
    ],
)
def test_what_was_looked_up_is_kept_where_dflash_is_less_sure(
    tokens, confidence, kept, make_request
):
    looked_up = {WEAK: ([20, 21, 22], [0.8, 0.8, 0.8])}  # chances of 2/3
    hybrid, _, model = parts({WEAK: (tokens, confidence)}, looked_up, share=0.95)
    model.sampled = False
    (request,) = started(hybrid, [make_request([WEAK, 9])])
    _, enough = hybrid.look_up([request], [3])
    assert enough == [False]
    drafted = hybrid.propose([request], [3])
    assert drafted.yields == [kept] and drafted.is_wanted(0) is (bool(tokens) and not kept)
    assert drafted.tokens == [tokens], "its cost is that of a draft"


def test_a_draft_that_is_judged_by_its_q_is_never_compared_with_a_look_up(make_request):
    """The choice would look at what was drawn, and bias the rules `token` and `block`."""
    looked_up = {WEAK: ([20, 21, 22], [0.8, 0.8, 0.8])}
    hybrid, _, model = parts({WEAK: ([33], [0.1])}, looked_up, share=0.95)
    (request,) = started(hybrid, [make_request([WEAK, 9])])
    for sampled in (True, False):
        model.sampled = sampled
        hybrid.look_up([request], [3])
        assert hybrid.propose([request], [3]).yields == [not sampled]


def test_a_confidence_of_a_look_up_is_taken_down_where_it_promises_much():
    sure = [0.0, 0.3, 0.5, 0.8, 0.9, 0.99, 1.0]
    sobered = list(map(sober, sure))
    assert sobered[:5] == [0.0, 0.3, 0.5, pytest.approx(2 / 3), pytest.approx(0.75)]
    assert sobered == sorted(sobered) and 0.9 < sobered[5] < sobered[6] < 1


def test_past_dflashs_positions_look_ups_draft_and_where_it_is_silent_they_stay(make_request):
    hybrid, _, model = parts()
    long = started(hybrid, [make_request([WEAK] + [9] * 100)])
    assert look_up_first(hybrid, long, [4]).tokens == [[20]] and model.asked == []
    mute, _, model = parts({})
    short = started(mute, [make_request([WEAK, 9])])
    assert look_up_first(mute, short, [4]).tokens == [[20]] and model.asked == [WEAK]


def scored(folder: Path, scores: Any) -> Path:
    folder.mkdir()
    (folder / "provenance.json").write_text(json.dumps({"scores": scores}))
    return folder


def test_how_much_is_expected_of_a_drafter_its_folder_says(tmp_path):
    """100 drafts have 80 right first tokens, and 60 right second ones: 140 of 180 judged tokens."""
    good = {"blocks": 100, "length": 2.4, "positions": [0.8, 0.6]}
    poor = {"blocks": 300, "length": 1.0, "positions": [0.0, 0.0]}
    share = trained_share(scored(tmp_path / "good", {"held_out": {"a": good}}))
    assert share == pytest.approx(140 / 180)
    both = {"held_out": {"a": good, "b": poor}, "foreign": {"a": poor}}
    assert trained_share(scored(tmp_path / "both", both)) == pytest.approx(140 / (180 + 300))
    for name, scores in (("none", None), ("empty", {"held_out": {}})):
        assert trained_share(scored(tmp_path / name, scores)) == USUAL
    assert trained_share(tmp_path) == USUAL, "nobody says"
    made = build(parse_spec(f"hybrid:{write_drafter(tmp_path / 'd')}"))
    assert made.start(None, 0).dflash.value == pytest.approx(USUAL)
    scored(tmp_path / "e", {"held_out": {"a": good}})
    made = build(parse_spec(f"hybrid:{write_drafter(tmp_path / 'e')}"))
    assert made.start(None, 0).dflash.value == pytest.approx(140 / 180)


@pytest.mark.parametrize(
    "scores",
    [
        [1],
        {"held_out": [1]},
        {"held_out": {"a": [0.5]}},
        {"held_out": {"a": {"blocks": 3}}},
        {"held_out": {"a": {"blocks": 3, "positions": []}}},
        {"held_out": {"a": {"blocks": 3, "positions": [2.0]}}},
    ],
)
def test_a_folder_that_says_what_is_no_score_is_refused(scores, tmp_path):
    with pytest.raises(ModelError, match=r"provenance\.json: scores"):
        trained_share(scored(tmp_path / "d", scores))
