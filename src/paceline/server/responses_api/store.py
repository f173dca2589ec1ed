"""Responses that are kept in memory, so that later requests can go on from them."""

from __future__ import annotations

from collections import OrderedDict

from paceline.core.errors import shown
from paceline.server.errors import ApiError
from paceline.server.responses_api.turn import StoredResponse


class ResponseStore:
    """The latest responses: at most `most` of them and `most_bytes` bytes. Those that have not been
    used for longest go first. Belongs to the event loop."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.bytes = 0
        self._most, self._most_bytes = most, most_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, entry: StoredResponse) -> None:
        """Keep a response."""
        self._entries[response_id] = entry
        self.bytes += entry.size
        while self._entries and (len(self) > self._most or self.bytes > self._most_bytes):
            self._drop(next(iter(self._entries)))

    def find(self, response_id: str, owner: str, field: str = "id") -> StoredResponse:
        """Return a response. Raises ApiError (404), naming `field`, if there is none of `owner`."""
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            message = (
                f"{field}: no response {shown(response_id)} here. The server keeps the last "
                f"{self._most} responses, up to {self._most_bytes / 2**20:g} MiB. It does not keep "
                "a response whose request has store: false, and only the API key that sent "
                "a request can read its response"
            )
            raise ApiError(404, message, param=field, code="response_not_found")
        self._entries.move_to_end(response_id)
        return entry

    def chain(self, response_id: str, owner: str) -> list[StoredResponse]:
        """Return a response and all that it goes on from, the first one first. Raises ApiError
        (404) where one of them is gone."""
        chain: list[StoredResponse] = []
        following: str | None = response_id
        while following is not None:
            chain.append(self.find(following, owner, "previous_response_id"))
            following = chain[-1].previous
        return chain[::-1]

    def delete(self, response_id: str, owner: str) -> None:
        """Forget a response. Raises ApiError (404) if there is none of `owner`."""
        self.find(response_id, owner)
        self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._entries.pop(response_id).size
