"""The gate in front of the app: it checks host, API key, origin and length of a request.

The order is host, preflight, key, site, length. No body is read before the key has been checked.

A page on another site can make a visitor's browser send requests to a server on the visitor's own
machine. DNS rebinding lets it read the answers too: its name then leads to 127.0.0.1. The Host
header still has that name, so the server compares it with the names that it answers to.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core import InvalidRequest
from paceline.server.access import RequestRecord, record_of
from paceline.server.cors import Origins, is_preflight
from paceline.server.errors import ApiError, invalid
from paceline.server.settings import LOOPBACK, ServerSettings, host_name

PAGE_DATA = "/ui/"
ADMIN = "/v1/drafters"
GUARDED = ("/v1", "/tokenize", "/detokenize", "/server_info", PAGE_DATA)
OPEN = ("/ui/state",)  # tells the page that a key is needed, and nothing that needs one
SAME_SITE = ("same-origin", "none")  # none: a person typed the address
OWN_PAGE = "a request from this server's own page"
ALLOWED_PAGE = "a page of an allowed origin; start with --allow-origin to allow others"
JSON = "application/json"
JSON_TYPE = re.compile(r"\s*application/([^;]*\+)?json\s*(;|$)", re.IGNORECASE)


class Gate:
    """Refuses requests for a foreign host (421), GUARDED paths without a valid API key (401), those
    below ADMIN and those of `admin` without the admin key (401, or 403 where the server has none),
    POSTs from pages that may not send them (403, 415) and bodies past the bound (413). Answers what
    browsers ask before a page's request to another origin, and strips the root path.

    The host is checked where settings.allow_hosts names any, and on loopback without keys, where
    a web page could otherwise read everything through DNS rebinding. With a key it could not.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, admin: frozenset[str] = frozenset()
    ) -> None:
        self.app, self.admin = app, admin
        self.keys = {name: key.key.encode() for name, key in settings.keys_by_name.items()}
        self.admin_key = settings.admin_key
        self.origins = Origins(settings.allow_origins)
        self.root_path = settings.root_path
        self.limit = settings.max_body_bytes
        self.allow_hosts = {name.lower() for name in settings.allow_hosts}
        self.hosts = {*LOOPBACK, settings.host.lower(), *self.allow_hosts}
        is_local = settings.on_loopback and settings.uds is None  # no browser connects to a socket
        self.checks_host = bool(self.allow_hosts) or (is_local and not self.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.root_path:
            if scope["path"] == self.root_path:  # the page's links are relative to a folder
                return await RedirectResponse(f"{self.root_path}/", 308)(scope, receive, send)
            scope = self._below_root(scope)
        headers, record = Headers(scope=scope), record_of(scope)
        try:
            early = self._check(scope, headers, record)
        except ApiError as refusal:
            record.refusal, early = refusal, refusal.response(scope["path"])
        if early is not None:
            return await early(scope, receive, send)
        await self.app(scope, self._bounded(receive), send)

    def _below_root(self, scope: Scope) -> Scope:
        """Return a request without the root path, which a proxy may have left in it."""
        root, path = self.root_path, scope["path"]
        if not path.startswith(f"{root}/"):
            return scope
        record = record_of(scope)
        record.path = record.path.removeprefix(root)  # still as it was sent, percent-encoded
        return {**scope, "path": path[len(root) :]}

    def _check(self, scope: Scope, headers: Headers, record: RequestRecord) -> Response | None:
        """Return the answer to a preflight, None for requests that may go on. Raises ApiError."""
        path: str = scope["path"]
        if self.checks_host:
            _check_host(headers, scope["http_version"], self.hosts)
        is_shared = not path.startswith(PAGE_DATA)  # the page's data is for the page alone
        if is_shared:
            record.answer_headers = self.origins.headers(headers)
            if is_preflight(scope["method"], headers):
                return self.origins.preflight(headers)
        if path == ADMIN or path.startswith(f"{ADMIN}/") or path in self.admin:
            self._check_admin(bearer(headers))
            record.key = "admin"
        elif self.keys and path.startswith(GUARDED) and path not in OPEN:
            record.key = self._name_of(bearer(headers))
        if scope["method"] == "POST":
            if not is_shared:
                _check_media_type(headers)
                _check_site(headers, self.allow_hosts, OWN_PAGE)
            elif not (_is_json(headers) or self.origins.allows(headers.get("origin", ""))):
                # a browser sends these without asking first
                _check_site(headers, self.allow_hosts, ALLOWED_PAGE)
        self._check_length(headers)
        return None

    def _check_admin(self, given: str) -> None:
        if self.admin_key is None:
            remedy = "start it with --admin-key, or with the variable PACELINE_ADMIN_KEY"
            message = f"this server has no admin key, without which nobody may do this; {remedy}"
            raise ApiError(403, message, code="no_admin_key")
        sent = given.encode("utf-8", "replace")
        if not hmac.compare_digest(sent, self.admin_key.encode()):
            message = "the admin key is needed: Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_admin_key")

    def _name_of(self, given: str) -> str:
        # every key is compared in full, so that time tells nothing about any of them
        sent = given.encode("utf-8", "replace")
        names = [name for name, key in self.keys.items() if hmac.compare_digest(sent, key)]
        if not names:
            message = "a valid API key is needed: Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")
        return names[0]

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limit:
            raise ApiError(413, self._too_long(), code="body_too_large")

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
    """Return the API key of a request, or an empty text. Anthropic's clients send `x-api-key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def client_of(http: Request, settings: ServerSettings) -> str:
    """Return the client of a request, for taking turns: the API key, or where there
    are no keys, the address."""
    if settings.api_keys:
        return bearer(http.headers)
    return http.client.host if http.client else ""


def _check_host(headers: Headers, http_version: str, allowed: Collection[str]) -> None:
    """Raise ApiError for a wrong Host header: 400 for its form, 421 for its name."""
    hosts = headers.getlist("host")
    if not hosts and http_version == "1.0":
        return  # HTTP/1.0 has no Host; a browser always sends one
    if len(hosts) != 1:
        message = f"Host: sent {len(hosts)} times; HTTP/1.1 requires it exactly once"
        raise ApiError(400, message, param="Host", code="bad_host")
    name = host_name(hosts[0])
    if name is None:
        expected = "a host name or address and a port"
        raise invalid(InvalidRequest("Host", hosts[0], expected), "bad_host")
    if name in allowed:
        return
    names = ", ".join(sorted(allowed))
    expected = f"one of {names}; to serve this name too, start with --allow-host {name[:80]}"
    raise invalid(InvalidRequest("Host", hosts[0], expected), "host_not_allowed", 421)


def _is_json(headers: Headers) -> bool:
    return JSON_TYPE.match(headers.get("content-type", "")) is not None


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != JSON:
        raise invalid(InvalidRequest("Content-Type", media_type, JSON), "not_json", 415)


def _check_site(headers: Headers, allowed: Collection[str], expected: str) -> None:
    """Raise ApiError (403) where the browser says that a page of another site sends the request.

    Sec-Fetch-Site decides where the browser sends it, because no script can set it. Older browsers,
    and all on plain HTTP beyond this machine, send Origin only, which must then name the Host or
    one of `allowed`. (The same rule as in Go's net/http.CrossOriginProtection.)
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None:
        header, value, foreign = "Origin", origin, _is_foreign(origin, headers, allowed)
    else:
        header, value, foreign = "Sec-Fetch-Site", site, site not in SAME_SITE
    if foreign:
        raise invalid(InvalidRequest(header, value, expected), "cross_site", 403)


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
