"""Rows that wait for their drafter: it sees all of them before it drafts, in few calls."""

from __future__ import annotations

import pytest
import torch

from paceline.core import Request, SamplingParams
from paceline.drafters.base import ObservedRows
from paceline.engine.backlog import MOST, Backlog
from paceline.engine.lengths import Bound, LengthController
from tests.drafters.watched import check_drafts, jobs, make_engine, run, watch
from tests.models.dflash.tiny import write_drafter


def rows(request: Request, start: int, count: int) -> ObservedRows:
    return ObservedRows(request, start, count, torch.full((count, 2), float(start)))


@pytest.fixture
def request_() -> Request:
    return Request(id="r", prompt_ids=[1] * 64, params=SamplingParams())


def spans(taken: list[ObservedRows]) -> list[tuple[int, int]]:
    return [(row.start, row.count) for row in taken]


def test_rows_wait_until_there_are_many(request_: Request) -> None:
    backlog = Backlog()
    assert backlog.add(rows(request_, 10, 3)) == []
    assert backlog.add(rows(request_, 13, 2)) == []
    assert spans(backlog.add(rows(request_, 15, MOST))) == [(10, 3), (13, 2), (15, MOST)]
    assert backlog.take(["r"]) == []


def test_what_waits_is_a_copy(request_: Request) -> None:
    """The next forward writes its features over these."""
    backlog, row = Backlog(), rows(request_, 2, 3)
    own = row.features
    backlog.add(row)
    own.fill_(torch.nan)
    (taken,) = backlog.take(["r"])
    assert taken.features.tolist() == [[2.0, 2.0]] * 3


def test_what_was_before_a_hole_is_dropped(request_: Request) -> None:
    backlog = Backlog()
    backlog.add(rows(request_, 2, 2))
    backlog.add(rows(request_, 7, 2))
    assert spans(backlog.take(["r"])) == [(7, 2)]


class Seldom(LengthController):
    """Drafts in one round of 23."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}

    def draft_lengths(self, batch, *, rows, decoding, longest):
        for entry in batch:
            name = entry.request.id
            self.rounds[name] = self.rounds.get(name, 0) + 1
        whole = [self.rounds[entry.request.id] % 23 == 0 for entry in batch]
        return [Bound(e.draft_limit * now) for e, now in zip(batch, whole, strict=True)]


def test_a_draft_after_a_pause_sees_all_that_came_before(tmp_path) -> None:
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}")
    engine.drafting.lengths = Seldom()
    watched = watch(engine, {})
    run(engine, jobs(8), together=4)
    assert len(watched.drafts) > 10
    assert {draft.first for draft in watched.drafts} == {0}
    check_drafts(watched)


def test_a_prefix_of_an_answer_without_drafts_has_its_draft_kv(tmp_path) -> None:
    """A second turn starts from all that the first one left."""
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter')}")
    usual, engine.drafting.lengths = engine.drafting.lengths, Seldom()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 3
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    (first,) = run(engine, [(prompt, params)], 1)
    engine.drafting.lengths = usual
    watched = watch(engine, {})
    (request,) = engine.make_requests([*prompt, *first, 7, 7], params, request_id="second")
    engine.add([request])
    while engine.has_work:
        engine.step()
    assert request.cached_tokens == 32
    assert watched.drafts and {draft.first for draft in watched.drafts} == {0}
    check_drafts(watched)
