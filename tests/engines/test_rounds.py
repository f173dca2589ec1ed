"""What each round did, from whatever an engine tells of it."""

from __future__ import annotations

import pytest

from paceline.core import Round
from paceline.engines.answers import EngineAnswer
from paceline.engines.evaluation.rounds import RoundsReader, bursts, rounds_of
from paceline.engines.metrics import EngineMetrics
from tests.engines.fake import FakeClient, answered, as_client


def counts(rounds: list[Round] | None) -> list[tuple[int, int, int]]:
    assert rounds is not None
    return [(round.position, round.drafted, round.accepted) for round in rounds]


def told(answer: EngineAnswer, drafted: int, accepted: list[int]) -> EngineAnswer:
    answer.add_rounds([drafted] * len(accepted), accepted)
    return answer


def test_listed_rounds_are_taken_as_they_are() -> None:
    answer = told(answered([1, 3, 1, 5]), 4, [2, 0, 4])
    assert counts(rounds_of(answer)) == [(1, 4, 2), (4, 4, 0), (5, 4, 4)]


def test_the_end_of_the_text_judges_no_token_behind_it() -> None:
    """The last token stands for the bonus token, as in an evaluation of our own engine."""
    answer = told(answered([1, 3, 2]), 4, [2, 4])
    assert counts(rounds_of(answer)) == [(1, 4, 2), (4, 1, 1)]


def test_rounds_without_a_draft_are_found_between_those_that_are_listed() -> None:
    answer = told(answered([1, 1, 3, 1, 2]), 4, [2, 1])
    assert counts(rounds_of(answer)) == [(1, 0, 0), (2, 4, 2), (5, 0, 0), (6, 4, 1)]


def test_events_that_contradict_the_list_tell_nothing() -> None:
    assert rounds_of(told(answered([1, 4, 1, 2]), 4, [2, 1])) is None


def test_counts_alone_are_enough_where_the_events_agree_with_them() -> None:
    answer = answered([1, 3, 1, 5])
    answer.drafts, answer.drafted, answer.accepted = 3, 12, 6
    assert counts(rounds_of(answer)) == [(1, 4, 2), (4, 4, 0), (5, 4, 4)]
    answer.accepted = 7
    assert rounds_of(answer) is None  # the last draft was accepted whole already
    answer.drafts = 4
    assert rounds_of(answer) is None


def test_a_tail_that_was_accepted_behind_the_end_agrees_with_the_counts() -> None:
    answer = answered([1, 3, 2])
    answer.drafts, answer.drafted, answer.accepted = 2, 8, 5  # 2 and 3, of which 1 is in the text
    assert counts(rounds_of(answer)) == [(1, 4, 2), (4, 1, 1)]


def test_an_answer_that_tells_nothing_has_no_rounds() -> None:
    answer = answered([1, 3, 1, 5])
    assert rounds_of(answer) is None
    assert bursts(answer) == [3, 1, 5]
    counted = EngineMetrics(running=0, waiting=0, drafts=3, drafted=12, accepted=6)
    assert counts(rounds_of(answer, counted)) == [(1, 4, 2), (4, 4, 0), (5, 4, 4)]


def test_the_metrics_are_read_where_answers_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    ask, totals = client.ask, [0, 0, 0]

    def silent(question: object) -> EngineAnswer:
        answer = ask(question)  # type: ignore[arg-type]
        for place, count in enumerate((answer.drafts, answer.drafted, answer.accepted)):
            totals[place] += count or 0
        answer.rounds = answer.drafts = answer.drafted = answer.accepted = None
        return answer

    def metrics() -> EngineMetrics:
        drafts, drafted, accepted = totals
        return EngineMetrics(0, 0, drafts=drafts, drafted=drafted, accepted=accepted)

    monkeypatch.setattr(client, "ask", silent)
    monkeypatch.setattr(client, "metrics", metrics, raising=False)
    from paceline.engines.answers import EngineAsk

    question = EngineAsk((1, 2), 32, seed=5)
    found = RoundsReader(as_client(client)).ask(question).rounds
    assert counts(found) == counts(rounds_of(FakeClient().ask(question)))
