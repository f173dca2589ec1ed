"""What an explained round shows of a draft that was looked up in other requests' text."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import OutputDelta, Request, SamplingParams
from paceline.engine.rounds import Shown, shown_of
from paceline.engine.scheduler import Scheduled


def from_others(draft: list[int], said: list[int], forced: Sequence[int] = ()) -> Shown:
    """What is shown of [90 + drafted tokens that a grammar has cut] when so much was committed."""
    request = Request(id="r", prompt_ids=[1], params=SamplingParams())
    drafted = [token for i, token in enumerate(draft) if i not in forced] + [90]
    confidence = [0.5] * (len(draft) - len(forced))
    entry = Scheduled(request, 0, 1, draft=draft, drafted=drafted, confidence=confidence)
    entry.from_others, entry.forced = True, frozenset(forced)
    return shown_of(entry, OutputDelta(request_id="r", choice=0, token_ids=said))


def test_of_others_text_only_what_was_committed_is_shown() -> None:
    half = (0.5, 0.5)
    assert from_others([10, 11, 12], [10, 11, 99]) == Shown((10, 11), (10, 11), (), half, 2)
    assert from_others([10, 11], [10, 11, 99]) == Shown((10, 11), (10, 11), (), half, 1)
    assert from_others([10, 11], [99]) == Shown((), (), (), (), 3)
    # the answer ends inside the draft
    assert from_others([10, 11, 12], [10]) == Shown((10,), (10,), (), (0.5,), 3)
    # behind a rejected token, forced ones depend on it
    shown = from_others([50, 10, 11, 51], [50, 10, 99], forced=(0, 3))
    assert shown == Shown((10,), (50, 10), (0,), (0.5,), 2)
