"""Look-ups and DFlash in one drafter: text, features and KV, and how it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core import DraftBatch, InvalidRequest, Request
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.hybrid import HybridDrafter, Standing
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.spec import build, parse_spec
from paceline.engine.engine import Engine
from tests.drafters.watched import (
    SIZES,
    Planter,
    check_drafts,
    jobs,
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
    engine.drafters["h"].share = 0.3  # little is expected, so that look-ups draft as well
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
        monkeypatch.setattr(Standing, "expected", lambda self, length: 1e-9)
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
