"""Draft lengths: what chooses them, and one controller for batches of several policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.core import CutReason, Request
from paceline.engine.scheduler import Scheduled


class Bound(NamedTuple):
    """The longest draft that is wanted, and why no longer one; None where the limit allows none."""

    length: int
    why: CutReason | None = None


class LengthController:
    """Chooses draft lengths, before drafting and, where confidence tells more, after it. This one
    wants every draft as long as the request asks for and its limit allows.

    `rows` and `decoding` describe the step without any of the drafts in question: its rows, and
    the requests that get a token each, those of the batch and others.

    `anticipating` says that verify_lengths looks at drawn tokens' confidence. The engine does not
    ask it about drafts that were sampled and are judged by their q: that cut would be biased.
    """

    anticipating = False

    def begin_step(self, scheduled: Sequence[Scheduled]) -> None:
        """Take notice of the step that all other methods are about to be asked about."""

    def end_step(self, scheduled: Sequence[Scheduled], tokens: int, seconds: float) -> None:
        """Learn that the step committed `tokens`, without those that a grammar forced, and took
        `seconds`, drafting included."""

    def sees(self, request: Request) -> bool:
        """Return whether the drafter is to see the features of this step's rows of `request`, now
        or before it drafts. Not asked of requests without a drafter."""
        return True

    def drafts(self, request: Request) -> bool:
        """Return whether the request may get any draft in this step. If not, no other method is
        asked for its length."""
        return True

    def looks_up(self, request: Request) -> bool:
        """Return whether drafts that take no time are welcome whatever draft_lengths() says, which
        then is asked about the other drafts alone."""
        return False

    def draft_lengths(
        self, batch: Sequence[Scheduled], *, rows: int, decoding: int, longest: int
    ) -> list[Bound]:
        """Bound the drafts of requests of one drafter, which proposes up to `longest` tokens when
        it is asked. Where a bound is zero the drafter is not asked."""
        return [Bound(entry.draft_limit) for entry in batch]

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        """Return how many tokens of each draft to verify: the first, or the best of its tree."""
        return [entry.draft.most for entry in batch]

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        """Learn from a round that committed these tokens."""

    def forget(self, request_id: str) -> None:
        """Drop what is held of a request that has ended."""

    def forget_drafter(self, name: str) -> None:
        """Drop what is held of a drafter that has left."""


class LengthsByPolicy(LengthController):
    """Asks the controller of each request's policy: those first that do not look at the step's
    cost, so that the others plan around their rows."""

    anticipating = True  # the policy `throughput` is, and the others never cut what was drawn

    def __init__(self, controllers: Mapping[str, LengthController]) -> None:
        self._controllers = dict(sorted(controllers.items(), key=lambda item: item[1].anticipating))

    def begin_step(self, scheduled: Sequence[Scheduled]) -> None:
        for controller in self._controllers.values():
            controller.begin_step(scheduled)

    def end_step(self, scheduled: Sequence[Scheduled], tokens: int, seconds: float) -> None:
        for controller in self._controllers.values():
            controller.end_step(scheduled, tokens, seconds)

    def sees(self, request: Request) -> bool:
        return self._controllers[request.policy].sees(request)

    def drafts(self, request: Request) -> bool:
        return self._controllers[request.policy].drafts(request)

    def looks_up(self, request: Request) -> bool:
        return self._controllers[request.policy].looks_up(request)

    def draft_lengths(
        self, batch: Sequence[Scheduled], *, rows: int, decoding: int, longest: int
    ) -> list[Bound]:
        bounds = [Bound(0)] * len(batch)
        for controller, places, entries in self._shares(batch):
            chosen = controller.draft_lengths(
                entries, rows=rows, decoding=decoding, longest=longest
            )
            for place, bound in zip(places, chosen, strict=True):
                bounds[place] = bound
            if not controller.anticipating:
                rows += sum(bound.length for bound in chosen)
        return bounds

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        lengths = [0] * len(batch)
        for controller, places, entries in self._shares(batch):
            chosen = controller.verify_lengths(entries, rows=rows, decoding=decoding)
            for place, length in zip(places, chosen, strict=True):
                lengths[place] = length
            rows += sum(chosen)
        return lengths

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        self._controllers[entry.request.policy].observe(entry, committed)

    def forget(self, request_id: str) -> None:
        for controller in self._controllers.values():
            controller.forget(request_id)

    def forget_drafter(self, name: str) -> None:
        for controller in self._controllers.values():
            controller.forget_drafter(name)

    def _shares(
        self, batch: Sequence[Scheduled]
    ) -> Iterator[tuple[LengthController, list[int], list[Scheduled]]]:
        """Each controller with the places of its requests in the batch, and those."""
        for policy, controller in self._controllers.items():
            places = [i for i, entry in enumerate(batch) if entry.request.policy == policy]
            if places:
                yield controller, places, [batch[place] for place in places]
