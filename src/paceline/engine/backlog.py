"""Rows whose drafter need not see them yet."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.drafters.base import ObservedRows

MOST = 64  # rows of a request: their features take memory


class Backlog:
    """Committed rows of requests that are not drafted for at the moment, with their features.

    To see rows costs a drafter a call, however few they are. So they wait for the next draft, for
    the request's end, which leaves its draft KV to the prefix cache, or until there are `MOST`.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[ObservedRows]] = {}

    def add(self, row: ObservedRows) -> list[ObservedRows]:
        """Rows that have to be seen now: none, or all of the request's."""
        waiting = self._waiting.get(row.request.id, [])
        if waiting and waiting[-1].start + waiting[-1].count != row.start:
            waiting = []  # from before a hole, where drafts do not reach
        if sum(earlier.count for earlier in waiting) + row.count >= MOST:
            self._waiting.pop(row.request.id, None)
            return [*waiting, row]
        assert row.features is not None, "rows without features do not wait"
        row.features = row.features.clone()  # a view of what the next forward overwrites
        waiting.append(row)
        self._waiting[row.request.id] = waiting
        return []

    def take(self, request_ids: Iterable[str]) -> list[ObservedRows]:
        """All that waits of these requests, in order of position."""
        return [row for name in request_ids for row in self._waiting.pop(name, ())]

    def drop(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
