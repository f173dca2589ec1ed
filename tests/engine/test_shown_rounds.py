"""What an explained round shows of a draft that was looked up in other requests' text."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import ExplainedRound
from paceline.engine.draft import Draft
from paceline.engine.rounds import explained


def shown(
    drafted: tuple[int, ...],
    verified: tuple[int, ...],
    forced: tuple[int, ...],
    confidence: tuple[float, ...],
    hidden: int,
) -> ExplainedRound:
    return ExplainedRound(drafted, verified, forced, confidence, hidden)


def from_others(
    draft: list[int], committed: list[int], forced: Sequence[int] = ()
) -> ExplainedRound:
    """What is shown of [90 + drafted tokens that a grammar has cut] when so much was committed."""
    proposed = [token for i, token in enumerate(draft) if i not in forced] + [90]
    value = Draft(
        proposed=proposed,
        tokens=draft,
        length=len(draft),
        forced=frozenset(forced),
        confidence=[0.5] * (len(draft) - len(forced)),
        from_others=True,
    )
    return explained(value, committed)


def test_of_others_text_only_what_was_committed_is_shown() -> None:
    half = (0.5, 0.5)
    assert from_others([10, 11, 12], [10, 11, 99]) == shown((10, 11), (10, 11), (), half, 2)
    assert from_others([10, 11], [10, 11, 99]) == shown((10, 11), (10, 11), (), half, 1)
    assert from_others([10, 11], [99]) == shown((), (), (), (), 3)
    # the answer ends inside the draft
    assert from_others([10, 11, 12], [10]) == shown((10,), (10,), (), (0.5,), 3)
    # behind a rejected token, forced ones depend on it
    mixed = from_others([50, 10, 11, 51], [50, 10, 99], forced=(0, 3))
    assert mixed == shown((10,), (50, 10), (0,), (0.5,), 2)
