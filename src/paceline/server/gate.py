"""In front of the app: who may ask, and how much may be sent. No body is read before the key."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.errors import ApiError
from paceline.server.settings import ServerSettings

GUARDED = ("/v1", "/ui/")
OPEN = ("/ui/state",)  # tells the page that a key is needed, and nothing that needs one


class Gate:
    """Refuses GUARDED paths without a valid API key (401) and bodies past the bound (413)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.keys = [key.encode() for key in settings.api_keys]
        self.limit = settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        if self._guards(scope["path"]) and not self._known(bearer(headers)):
            message = "a valid API key is needed: Authorization: Bearer KEY"
            refusal = ApiError(401, message, code="invalid_api_key")
            return await refusal.response()(scope, receive, send)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limit:
            refusal = ApiError(413, self._too_long(), code="body_too_large")
            return await refusal.response()(scope, receive, send)
        await self.app(scope, self._bounded(receive), send)

    def _guards(self, path: str) -> bool:
        return bool(self.keys) and path.startswith(GUARDED) and path not in OPEN

    def _known(self, key: str) -> bool:
        # every key is compared in full, so that time tells nothing about any of them
        given = key.encode("utf-8", "replace")
        return any([hmac.compare_digest(given, known) for known in self.keys])

    def _bounded(self, receive: Receive) -> Receive:
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit:
                raise HTTPException(413, self._too_long())
            return message

        return bounded

    def _too_long(self) -> str:
        return f"the body is longer than {self.limit} bytes, which is the bound here"


def bearer(headers: Headers) -> str:
    """The API key of a request, empty when there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
