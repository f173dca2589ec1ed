"""The gate in front of the app: it checks host, API key, origin and length of a request.

The order is host, key, site, length. No body is read before the key has been checked.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.server.errors import ApiError
from paceline.server.origin import HostCheck, cross_site
from paceline.server.settings import ServerSettings

PAGE_DATA = "/ui/"
GUARDED = ("/v1", PAGE_DATA)
OPEN = ("/ui/state",)  # tells the page that a key is needed, and nothing that needs one


class Gate:
    """Refuses requests for a foreign host (421), GUARDED paths without a valid API key (401),
    POSTs to the page's data from other sites (403, 415) and bodies past the bound (413).

    The host is checked where settings.allow_hosts names any, and on loopback without keys, where
    a web page could otherwise read everything through DNS rebinding. With a key it could not.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.keys = [key.encode() for key in settings.api_keys]
        self.limit = settings.max_body_bytes
        self.allow_hosts = settings.allow_hosts
        needs_check = bool(settings.allow_hosts) or (settings.on_loopback and not settings.api_keys)
        self.host_check = HostCheck(settings.host, settings.allow_hosts) if needs_check else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            return await refusal.response()(scope, receive, send)
        await self.app(scope, self._bounded(receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if self.host_check is not None:
            refusal = self.host_check.refusal(headers, scope["http_version"])
            if refusal is not None:
                return refusal
        path: str = scope["path"]
        if self._guards(path) and not self._known(bearer(headers)):
            message = "a valid API key is needed: Authorization: Bearer KEY"
            return ApiError(401, message, code="invalid_api_key")
        if scope["method"] == "POST" and path.startswith(PAGE_DATA):
            refusal = cross_site(headers, self.allow_hosts)
            if refusal is not None:
                return refusal
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limit:
            return ApiError(413, self._too_long(), code="body_too_large")
        return None

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
    """Return the API key of a request, or an empty text."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def client_of(http: Request, settings: ServerSettings) -> str:
    """Return the client of a request, for taking turns: the API key, or where there
    are no keys, the address."""
    if settings.api_keys:
        return bearer(http.headers)
    return http.client.host if http.client else ""
