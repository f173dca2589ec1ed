"""Checks of the site that a request comes from, which keep other sites' web pages out.

A page on another site can make a visitor's browser send requests to a server on the visitor's own
machine. DNS rebinding lets it read the answers too: its name then leads to 127.0.0.1. The Host
header still has that name, so the server compares it with the names that it answers to.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from paceline.core import InvalidRequest
from paceline.server.errors import ApiError
from paceline.server.settings import LOOPBACK, host_name

SAME_SITE = ("same-origin", "none")  # none: a person typed the address
JSON = "application/json"


class HostCheck:
    """Refuses requests whose Host header names another host."""

    def __init__(self, bound: str, allowed: Iterable[str]) -> None:
        self.allowed = {name.lower() for name in (*LOOPBACK, bound, *allowed)}

    def refusal(self, headers: Headers, http_version: str) -> ApiError | None:
        """Return what is wrong with the Host header: 400 for its form, 421 for its name."""
        hosts = headers.getlist("host")
        if not hosts and http_version == "1.0":
            return None  # HTTP/1.0 has no Host; a browser always sends one
        if len(hosts) != 1:
            message = f"Host: sent {len(hosts)} times; HTTP/1.1 requires it exactly once"
            return ApiError(400, message, param="Host", code="bad_host")
        name = host_name(hosts[0])
        if name is None:
            error = InvalidRequest("Host", hosts[0], "a host name or address and a port")
            return ApiError(400, str(error), param="Host", code="bad_host")
        if name in self.allowed:
            return None
        names = ", ".join(sorted(self.allowed))
        expected = f"one of {names}; to serve this name too, start with --allow-host {name[:80]}"
        error = InvalidRequest("Host", hosts[0], expected)
        return ApiError(421, str(error), param="Host", code="host_not_allowed")


def cross_site(headers: Headers, allowed: Iterable[str]) -> ApiError | None:
    """Return why a POST to the page's data is refused: 415 for a body that a page of another site
    may send without asking, 403 where the browser says that it comes from such a page.

    Sec-Fetch-Site decides where the browser sends it, because no script can set it. Older browsers,
    and all on plain HTTP beyond this machine, send Origin only, which must then name the Host or
    one of `allowed`. (The same rule as in Go's net/http.CrossOriginProtection.)
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != JSON:
        error = InvalidRequest("Content-Type", media_type, JSON)
        return ApiError(415, str(error), param="Content-Type", code="not_json")
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return None if site in SAME_SITE else _foreign("Sec-Fetch-Site", site)
    return _foreign("Origin", origin) if _is_foreign(origin, headers, allowed) else None


def _foreign(header: str, value: str | None) -> ApiError:
    error = InvalidRequest(header, value, "a request from this server's own page")
    return ApiError(403, str(error), param=header, code="cross_site")


def _is_foreign(origin: str | None, headers: Headers, allowed: Iterable[str]) -> bool:
    if origin is None:
        return False  # not a browser
    try:
        parts = urlsplit(origin)
        if parts.hostname in {name.lower() for name in allowed}:
            return False
    except ValueError:
        return True
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = headers.get("host", "").lower()
    return not parts.netloc or parts.netloc.removesuffix(default) != host.removesuffix(default)
