"""Look-ups and DFlash in one drafter: text, features and KV, and who drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core import DraftBatch, InvalidRequest, Request
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.hybrid import (
    MOST_COHORTS,
    PRIOR,
    USUAL,
    HybridDrafter,
    Pending,
    Standing,
)
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.spec import build, parse_spec
from paceline.engine.engine import Engine
from tests.drafters.watched import (
    SIZES,
    Planter,
    check_drafts,
    jobs,
    look_up_first,
    make_engine,
    run,
    watch_dflash,
)
from tests.models.dflash.tiny import write_drafter


class Silent(NgramDrafter):
    """Looks nothing up."""

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        empty: list[list[Any]] = [[] for _ in requests]
        return DraftBatch(tokens=empty, confidence=[[] for _ in requests])


def truth_of(work: list[Any]) -> tuple[list[list[int]], dict[Any, list[int]]]:
    outputs = run(make_engine(None, prefix_cache=False), work, together=1)
    return outputs, {tuple(p): out for (p, _), out in zip(work, outputs, strict=True)}


@pytest.fixture(scope="module")
def work() -> list[Any]:
    """Some end in what was said before: there is something to look up."""
    twice = (0, 1, 4, 5, 8, 9)
    return [(p[:60] * 2 if i in twice else p, params) for i, (p, params) in enumerate(jobs(14))]


@pytest.fixture(scope="module")
def answers(work: list[Any]) -> tuple[list[list[int]], dict[Any, list[int]]]:
    """The outputs of `work` without drafts, in order and by prompt."""
    return truth_of(work)


def test_drafts_are_those_of_training_and_the_text_is_the_same(work, answers, tmp_path):
    """Greedy and sampled, in batches, through preemption and prefix hits, look-ups in between: what
    DFlash drafted from was complete and in place."""
    folder = write_drafter(tmp_path / "d")
    outputs, truth = answers
    per_token = make_engine(f"h=hybrid:{folder}", **SIZES).plan.kv_bytes_per_token
    engine = make_engine(f"h=hybrid:{folder}", **SIZES, kv_memory=per_token * 16 * 15)
    watched = watch_dflash(engine, truth, 0.7)
    assert run(engine, work, together=8) == outputs, "the text changed"
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.prefix_hits > 0, "memory was never short"
    assert len(watched.drafts) > 100, "DFlash was hardly asked"
    assert stats.speculation.draft_rounds > len(watched.drafts) + 50, (
        "hardly anything was looked up"
    )
    check_drafts(watched)


def test_control_a_dflash_that_misses_what_was_looked_up_drafts_something_else(
    work, answers, tmp_path
):
    folder = write_drafter(tmp_path / "d")
    outputs, truth = answers
    engine = make_engine(f"h=hybrid:{folder}")
    hybrid, watched = engine.drafters["h"], watch_dflash(engine, truth, 0.7)
    observe, look_up, drafted = watched.observe, hybrid.look_up, set()

    def looked(requests, lengths):
        found, enough = look_up(requests, lengths)
        pairs = zip(requests, enough, strict=True)
        drafted.update((r.id, len(r.tokens) - 1) for r, done in pairs if done)
        return found, enough

    def forgetful(rows):
        for row in rows:
            if (row.request.id, row.start) in drafted:
                row.features = row.features * 0
        observe(rows)

    hybrid.look_up, watched.observe = looked, forgetful
    assert run(engine, work, together=8) == outputs, "the text must not depend on it"
    with pytest.raises(AssertionError):
        check_drafts(watched)


def acceptance(engine: Engine) -> tuple[Any, ...]:
    stats = engine.stats().speculation
    return (
        stats.draft_rounds,
        stats.draft_tokens,
        stats.accepted_tokens,
        tuple(stats.by_position()),
    )


def test_it_accepts_what_dflash_alone_does_where_nothing_is_looked_up(work, answers, tmp_path):
    folder = write_drafter(tmp_path / "d")
    outputs, truth = answers
    found = []
    for spec in (f"h=dflash:{folder}", f"h=hybrid:{folder}"):
        engine = make_engine(spec, max_num_seqs=1)
        drafter = engine.drafters["h"]
        if isinstance(drafter, HybridDrafter):
            drafter.lookup = ChainDrafter("silent", [Silent()])
            watch_dflash(engine, truth, 0.6)
        else:
            watched = Planter(drafter, truth, 0.6)
            engine.drafters["h"] = engine.drafting.drafters["h"] = watched
        assert run(engine, work, together=1) == outputs
        found.append(acceptance(engine))
    alone, hybrid = found
    assert hybrid == alone and alone[2] > 100


class Wrong(Planter):
    """Drafts nothing that is ever said."""

    def propose(self, requests: Any, lengths: Any) -> Any:
        proposed = self._drafter.propose(requests, lengths)
        for request, tokens in zip(requests, proposed.tokens, strict=True):
            known = self._truth[tuple(request.prompt_ids)]
            for index in range(len(tokens)):
                at = request.output_len + index
                if at < len(known):
                    tokens[index] = (known[at] + 1) % 256
        return proposed


@pytest.mark.parametrize(
    "known",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["known-from-the-start", "found-out"],
)
def test_it_accepts_what_is_looked_up_where_dflash_is_hopeless(
    work, answers, known, tmp_path, monkeypatch
):
    folder = write_drafter(tmp_path / "d")
    outputs, truth = answers
    plain = make_engine("auto", max_num_seqs=1)
    run(plain, work, together=1)
    if known:
        monkeypatch.setattr(Standing, "enough", lambda self, confidence, length: bool(confidence))
    engine = make_engine(f"h=hybrid:{folder}", max_num_seqs=1)
    hybrid = engine.drafters["h"]
    hybrid.dflash = Wrong(hybrid.dflash, truth, 0.0)
    assert run(engine, work, together=1) == outputs
    looked_up, accepted = (e.stats().speculation.accepted_tokens for e in (plain, engine))
    assert looked_up > 100
    if known:
        assert accepted == looked_up
    else:
        assert 0.9 * looked_up < accepted


# -- who drafts ------------------------------------------------------------------------------------


class Fake:
    """A part that drafts what it is told, by the request's first token."""

    feature_layers, lookback, kv, weight_bytes, reach = (0,), 0, None, 0, 100
    version, max_draft_len = "1", 4

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
            q=[[None] * len(tokens) or None for tokens, _ in found],
        )


STRONG, WEAK, NONE, BEST = 1, 2, 3, 4
LOOKUP = {
    STRONG: ([10, 11, 12], [0.9, 0.9, 0.9]),  # 2.4 tokens
    WEAK: ([20], [0.5]),
    BEST: ([40], [0.9375]),  # what DFlash is expected to bring: 1/2 + 1/4 + 1/8 + 1/16
}
DFLASH = {key: ([30 + key] * 4, [0.01] * 4) for key in (STRONG, WEAK, NONE, BEST)}


def parts(dflash: Any = DFLASH) -> tuple[HybridDrafter, Fake, Fake]:
    lookup, model = Fake(LOOKUP), Fake(dflash)
    return HybridDrafter("h", lookup, model), lookup, model  # type: ignore[arg-type]


def started(hybrid: HybridDrafter, requests: list[Request]) -> list[Request]:
    hybrid.begin(requests, [0] * len(requests))
    return requests


def test_a_strong_look_up_spares_dflash_its_forward_and_a_weak_one_does_not(make_request):
    hybrid, _, model = parts()
    requests = started(hybrid, [make_request([key, 9]) for key in (STRONG, WEAK, NONE, BEST)])
    batch = look_up_first(hybrid, requests, [4] * 4)
    assert batch.tokens == [[10, 11, 12], [32] * 4, [33] * 4, [40]]
    assert model.asked == [WEAK, NONE], "equal expectations: the look-up, which is free"
    assert batch.confidence == [[0.9] * 3, [0.01] * 4, [0.01] * 4, [0.9375]]
    assert [batch.q_rows(i) is None for i in range(4)] == [True, False, False, True]
    found, enough = hybrid.look_up(requests, [4] * 4)
    assert enough == [True, False, False, True] and found.tokens[WEAK - 1] == [20]


def test_a_short_draft_is_compared_with_a_short_draft(make_request):
    hybrid, _, model = parts()
    requests = started(hybrid, [make_request([WEAK, 9]), make_request([NONE, 9])])
    assert look_up_first(hybrid, requests, [1, 0]).tokens[0] == [20], "0.5 against 0.5"
    assert model.asked == []


def test_the_choice_does_not_depend_on_who_shares_the_batch(make_request):
    keys = [STRONG, WEAK, NONE, BEST, WEAK]
    hybrid, _, _ = parts()
    together = look_up_first(hybrid, started(hybrid, [make_request([k, 9]) for k in keys]), [4] * 5)
    for index, key in enumerate(keys):
        alone, _, _ = parts()
        batch = look_up_first(alone, started(alone, [make_request([key, 9])]), [4])
        assert batch.tokens[0] == together.tokens[index]


def test_what_stood_of_both_in_a_request_moves_the_choice(make_request):
    hybrid, _, model = parts()
    good, bad = started(hybrid, [make_request([WEAK, 9]), make_request([WEAK, 9])])
    for _ in range(12):
        batch = look_up_first(hybrid, [good, bad], [4, 4])
        assert batch.tokens[0] == [32] * 4
        good.tokens += [32] * 4
        bad.tokens += [20]
    assert batch.tokens[1] == [20], "a look-up that stands, beside a DFlash that never does"
    model.asked.clear()
    assert look_up_first(hybrid, [good, bad], [4, 4]).tokens == [[32] * 4, [20]], "each its own"
    assert model.asked == [WEAK]


def test_look_ups_that_promise_too_much_lose(make_request):
    hybrid, _, _ = parts()
    (request,) = started(hybrid, [make_request([STRONG, 9])])
    drafts = []
    for _ in range(12):
        drafts.append(look_up_first(hybrid, [request], [4]).tokens[0])
        request.tokens += [31] * 4
    assert drafts[0] == [10, 11, 12] and drafts[-6:] == [[31] * 4] * 6


def test_dflash_is_tried_where_look_ups_win_less_often_each_time(make_request):
    hybrid, _, model = parts()
    (request,) = started(hybrid, [make_request([STRONG, 9])])
    model.reach, tried = None, []
    for turn in range(1, 101):
        model.asked.clear()
        look_up_first(hybrid, [request], [4])
        if model.asked:
            tried.append(turn)
        request.tokens += [10, 11, 12]
    assert tried == [4, 12, 28, 60]


def test_a_try_that_dflash_is_not_asked_for_stays_due(make_request):
    """As where the load leaves DFlash no room: its turn comes when there is some."""
    hybrid, _, model = parts()
    (request,) = started(hybrid, [make_request([STRONG, 9])])
    model.reach = None
    enough = []
    for _ in range(30):
        enough += hybrid.look_up([request], [4])[1]
        request.tokens += [10, 11, 12]
    assert enough == [True] * 3 + [False] * 27
    look_up_first(hybrid, [request], [4])
    assert model.asked == [STRONG]
    request.tokens += [10, 11, 12]
    assert hybrid.look_up([request], [4])[1] == [True]


def test_rounds_without_a_look_up_count_for_nobody(make_request):
    hybrid, _, _ = parts()
    weak, none = started(hybrid, [make_request([WEAK, 9]), make_request([NONE, 9])])
    hybrid._judged(weak).own[0].dflash.stood = 0.0
    enough = []
    for _ in range(4):
        assert hybrid.look_up([none], [4])[1] == [False]
        enough += hybrid.look_up([weak], [4])[1]
    assert enough == [True, True, True, False], "the fourth is due"


def test_a_request_begins_with_what_its_cohort_was_like(make_request):
    hybrid, _, _ = parts()
    (first,) = started(hybrid, [make_request([WEAK, 9])])
    for _ in range(30):
        look_up_first(hybrid, [first], [4])
        first.tokens += [32] * 4
    strange = make_request([WEAK, 9])
    strange.cohort = "another"
    fresh, other = started(hybrid, [make_request([WEAK, 9]), strange])
    assert hybrid._judged(fresh).own[0].dflash.value > 0.8
    assert hybrid._judged(fresh).own[0].lookup.value < 0.4
    assert hybrid._judged(fresh).own[1].dflash.value == USUAL, "beside better look-ups: unknown"
    assert hybrid._judged(other).own[0].dflash.value == USUAL


def test_records_of_cohorts_are_bounded(make_request):
    hybrid, _, _ = parts()
    for index in range(MOST_COHORTS + 5):
        request = make_request([WEAK, 9])
        request.cohort = str(index)
        started(hybrid, [request])
        hybrid.release([request])
    assert len(hybrid._cohorts) == MOST_COHORTS


def test_drafts_are_judged_without_a_look_up_between_them(make_request):
    hybrid, _, _ = parts()
    (request,) = started(hybrid, [make_request([WEAK, 9])])
    for _ in range(12):
        assert hybrid.propose([request], [4]).tokens == [[32] * 4]
        request.tokens += [32] * 4
    hybrid.propose([request], [4])
    assert hybrid._judged(request).own[0].dflash.value > 0.8 > USUAL


def test_a_draft_is_judged_once_by_what_was_said_in_its_place():
    standing = Standing()
    standing.proposed = Pending([7, 8, 9], 2, 1)
    standing.found = Pending([7, 5, 6], 2, 1, [0.5, 0.5, 0.5])
    standing.judge([1, 2])
    assert standing.own[1].dflash.of == PRIOR, "nothing was said yet"
    standing.judge([1, 2, 7, 5])
    dflash, lookup = standing.own[1].dflash, standing.own[1].lookup
    assert (dflash.stood, dflash.of) == pytest.approx((0.95 * PRIOR / 2 + 1, 0.95 * PRIOR + 2))
    assert (lookup.stood, lookup.of) == pytest.approx((0.95 * PRIOR + 2, 0.95 * PRIOR + 1.0))
    before = dflash.of
    standing.judge([1, 2, 7, 5, 6])
    assert dflash.of == before and standing.own[0].dflash.of == PRIOR
    standing.found = Pending([7, 5, 6], 2, 2, [0.5, 0.5, 0.5])
    standing.judge([1, 2, 9])
    assert standing.own[2].lookup.of == pytest.approx(0.95 * PRIOR + 0.5), "no more is known"


def test_past_dflashs_positions_look_ups_draft_and_where_it_is_silent_they_stay(make_request):
    hybrid, _, model = parts()
    long = started(hybrid, [make_request([WEAK] + [9] * 100)])
    assert look_up_first(hybrid, long, [4]).tokens == [[20]] and model.asked == []
    mute, _, model = parts({})
    short = started(mute, [make_request([WEAK, 9])])
    assert look_up_first(mute, short, [4]).tokens == [[20]] and model.asked == [WEAK]


def test_streams_go_on_past_the_end_of_dflash(tmp_path):
    folder = write_drafter(tmp_path / "d", max_position_embeddings=60)
    work = [(prompt[:40] * 2, params) for prompt, params in jobs(4)]
    outputs, _ = truth_of(work)
    engine = make_engine(f"h=hybrid:{folder}")
    assert run(engine, work, together=4) == outputs
    assert engine.stats().speculation.accepted_tokens > 0


# -- how it is asked for ---------------------------------------------------------------------------


def test_it_is_a_kind_of_its_own_with_the_options_of_both(tmp_path):
    folder = write_drafter(tmp_path / "d", head_ids=list(range(100)))
    made = build(parse_spec(f"mine=hybrid:{folder}"))
    assert isinstance(made, HybridDrafter) and made.name == "mine"
    assert (made.max_draft_len, made.dflash.max_draft_len) == (15, 5)
    assert made.kv == made.dflash.kv and made.feature_layers == (0,) and made.parallel
    assert made.version == f"suffix-1+ngram-1+dflash-{made.dflash.version}"
    short = build(parse_spec(f"hybrid:{folder},max_draft_len=3,min_token_prob=0.4,head=full"))
    assert (short.max_draft_len, short.dflash.max_draft_len) == (3, 3)
    assert build(parse_spec(f"hybrid:{folder},max_draft_len=9")).dflash.max_draft_len == 5
    for option, message in (("head=half", "got 'half'"), ("colour=red", "one of max_draft_len")):
        with pytest.raises(InvalidRequest, match=message):
            build(parse_spec(f"hybrid:{folder},{option}"))


def test_the_engine_runs_it_where_the_target_runs(tmp_path, monkeypatch):
    folder, lengths = write_drafter(tmp_path / "d", layers=3), []
    monkeypatch.setattr(HybridDrafter, "rehearse", lambda self, count, n: lengths.append(n))
    engine = make_engine(f"hybrid:{folder}", draft_window=20, rule="token")
    dflash, plan = engine.drafters["hybrid"].dflash, engine.plan
    assert (dflash.window, dflash._draws.how, dflash._dtype) == (20, "sample", "float32")
    assert plan.drafter_kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert plan.drafter_weight_bytes == dflash.weight_bytes > 0
    assert engine.drafting.costs.of("hybrid").draft_seconds([5]) > 0, "it was rehearsed"
    assert set(lengths) == {5}, "with drafts that DFlash makes"
