"""Requests of other APIs as chat requests: there is one way to the engine.

A refusal of the chat request is worded with the field that the client wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from paceline.core import InvalidRequest
from paceline.core.params import Speculative
from paceline.server.errors import ApiError, invalid
from paceline.server.protocol import ChatRequest

# fields that other APIs have too, or that this server adds to each of them
SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "speculative", "explain",
    "cache_salt", "chat_template_kwargs",
)  # fmt: skip


class SharesFields(Protocol):
    """A request of another API, with the fields of SAME."""

    speculative: Literal["off"] | Speculative | None


def shared_fields(body: SharesFields) -> dict[str, Any]:
    """Return the fields of a chat request that `body` has under the same name."""
    stated = {name: getattr(body, name) for name in SAME}
    if isinstance(body.speculative, Speculative):
        stated["speculative"] = body.speculative.model_dump(exclude_unset=True)
    return stated


@dataclass(frozen=True, slots=True)
class Translation:
    """A chat request, and the places in the client's body of what it was made from.

    `places` are by a field of the chat request, or the beginning of one: the longest counts.
    """

    chat: ChatRequest
    places: Mapping[str, str]

    def refusal(self, error: ApiError | InvalidRequest) -> ApiError:
        """Return the error with the client's name of the field."""
        refusal = error if isinstance(error, ApiError) else invalid(error)
        if refusal.param is None:
            return refusal
        field = self.place(refusal.param)
        message = str(refusal).replace(refusal.param, field, 1)
        root, colon, rest = refusal.reason.partition(":")
        reason = f"{self.place(root)}{colon}{rest}"
        renamed = ApiError(refusal.status, message, param=field, code=refusal.code, reason=reason)
        renamed.headers = refusal.headers
        return renamed

    def place(self, field: str) -> str:
        """Return the place in the client's body of a field of the chat request."""
        begins = [name for name in self.places if _begins(field, name)]
        name = max(begins, key=len, default="")
        return self.places[name] + field.removeprefix(name) if name else field


def translated(stated: dict[str, Any], places: Mapping[str, str], size: int) -> Translation:
    """Make the chat request `stated`, read from a body of `size` bytes. Raises ApiError.

    The other APIs have no object `function` within a tool.
    """
    tools = range(len(stated.get("tools") or ()))
    places = {**{f"tools[{i}].function": f"tools[{i}]" for i in tools}, **places}
    chat = ChatRequest.model_construct()
    try:
        chat = ChatRequest.read({k: value for k, value in stated.items() if value is not None})
        chat.note_size(size)
        chat.check()
    except InvalidRequest as error:
        raise Translation(chat, places).refusal(error) from None
    return Translation(chat, places)


def _begins(field: str, name: str) -> bool:
    return field.startswith(name) and field[len(name) : len(name) + 1] in ("", ".", "[")
