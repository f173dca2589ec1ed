"""One batch may hold requests of several policies: each controller is asked about its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from paceline.core import Request
from paceline.engine.lengths.base import LengthController
from paceline.engine.scheduler import Scheduled


class LengthsByPolicy:
    """Asks those first that do not look at the step's cost: the others plan around their rows."""

    anticipating = True  # one of them is, and the others never cut what was drawn

    def __init__(self, controllers: Mapping[str, LengthController]) -> None:
        self._controllers = dict(sorted(controllers.items(), key=lambda item: item[1].anticipating))

    def sees(self, request: Request) -> bool:
        return self._controllers[request.policy].sees(request)

    def looks_up(self, request: Request) -> bool:
        return self._controllers[request.policy].looks_up(request)

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        lengths = [0] * len(batch)
        for controller, own in self._shares(batch):
            found = controller.draft_lengths(
                [batch[index] for index in own], rows=rows, decoding=decoding
            )
            for index, length in zip(own, found, strict=True):
                lengths[index] = length
            if not controller.anticipating:
                rows += sum(found)
        return lengths

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        lengths = [0] * len(batch)
        for controller, own in self._shares(batch):
            found = controller.verify_lengths(
                [batch[index] for index in own], rows=rows, decoding=decoding
            )
            for index, length in zip(own, found, strict=True):
                lengths[index] = length
            rows += sum(found)
        return lengths

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        self._controllers[entry.request.policy].observe(entry, committed)

    def forget(self, request_id: str) -> None:
        for controller in self._controllers.values():
            controller.forget(request_id)

    def _shares(self, batch: Sequence[Scheduled]) -> list[tuple[LengthController, list[int]]]:
        """Each controller with the indices of its requests."""
        own: dict[str, list[int]] = defaultdict(list)
        for index, entry in enumerate(batch):
            own[entry.request.policy].append(index)
        return [(self._controllers[kind], own[kind]) for kind in self._controllers if kind in own]
