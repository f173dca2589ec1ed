"""The gate in front of the app: it checks host, API key, origin and length of a request.

The order is host, key, site, length. No body is read before the key has been checked.

A page on another site can make a visitor's browser send requests to a server on the visitor's own
machine. DNS rebinding lets it read the answers too: its name then leads to 127.0.0.1. The Host
header still has that name, so the server compares it with the names that it answers to.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core import InvalidRequest
from paceline.server.errors import ApiError, invalid
from paceline.server.settings import LOOPBACK, ServerSettings, host_name

PAGE_DATA = "/ui/"
GUARDED = ("/v1", PAGE_DATA)
OPEN = ("/ui/state",)  # tells the page that a key is needed, and nothing that needs one
SAME_SITE = ("same-origin", "none")  # none: a person typed the address
JSON = "application/json"


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
        self.allow_hosts = {name.lower() for name in settings.allow_hosts}
        self.hosts = {*LOOPBACK, settings.host.lower(), *self.allow_hosts}
        self.checks_host = bool(self.allow_hosts) or (settings.on_loopback and not self.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            return await refusal.response()(scope, receive, send)
        await self.app(scope, self._bounded(receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        path: str = scope["path"]
        if self.checks_host:
            refusal = _wrong_host(headers, scope["http_version"], self.hosts)
            if refusal is not None:
                return refusal
        if self.keys and path.startswith(GUARDED) and path not in OPEN:
            # every key is compared in full, so that time tells nothing about any of them
            given = bearer(headers).encode("utf-8", "replace")
            if not any([hmac.compare_digest(given, key) for key in self.keys]):
                message = "a valid API key is needed: Authorization: Bearer KEY"
                return ApiError(401, message, code="invalid_api_key")
        if scope["method"] == "POST" and path.startswith(PAGE_DATA):
            refusal = _cross_site(headers, self.allow_hosts)
            if refusal is not None:
                return refusal
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limit:
            return ApiError(413, self._too_long(), code="body_too_large")
        return None

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


def _wrong_host(headers: Headers, http_version: str, allowed: Collection[str]) -> ApiError | None:
    """Return what is wrong with the Host header: 400 for its form, 421 for its name."""
    hosts = headers.getlist("host")
    if not hosts and http_version == "1.0":
        return None  # HTTP/1.0 has no Host; a browser always sends one
    if len(hosts) != 1:
        message = f"Host: sent {len(hosts)} times; HTTP/1.1 requires it exactly once"
        return ApiError(400, message, param="Host", code="bad_host")
    name = host_name(hosts[0])
    if name is None:
        expected = "a host name or address and a port"
        return invalid(InvalidRequest("Host", hosts[0], expected), "bad_host")
    if name in allowed:
        return None
    names = ", ".join(sorted(allowed))
    expected = f"one of {names}; to serve this name too, start with --allow-host {name[:80]}"
    return invalid(InvalidRequest("Host", hosts[0], expected), "host_not_allowed", 421)


def _cross_site(headers: Headers, allowed: Collection[str]) -> ApiError | None:
    """Return why a POST to the page's data is refused: 415 for a body that a page of another site
    may send without asking, 403 where the browser says that it comes from such a page.

    Sec-Fetch-Site decides where the browser sends it, because no script can set it. Older browsers,
    and all on plain HTTP beyond this machine, send Origin only, which must then name the Host or
    one of `allowed`. (The same rule as in Go's net/http.CrossOriginProtection.)
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != JSON:
        return invalid(InvalidRequest("Content-Type", media_type, JSON), "not_json", 415)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None:
        header, value, foreign = "Origin", origin, _is_foreign(origin, headers, allowed)
    else:
        header, value, foreign = "Sec-Fetch-Site", site, site not in SAME_SITE
    expected = "a request from this server's own page"
    return invalid(InvalidRequest(header, value, expected), "cross_site", 403) if foreign else None


def _is_foreign(origin: str | None, headers: Headers, allowed: Collection[str]) -> bool:
    if origin is None:
        return False  # not a browser
    try:
        parts = urlsplit(origin)
        if (parts.hostname or "") in allowed:
            return False
    except ValueError:
        return True
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = headers.get("host", "").lower()
    return not parts.netloc or parts.netloc.removesuffix(default) != host.removesuffix(default)
