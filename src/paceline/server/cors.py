"""Cross-origin requests: which web pages may use the API from a browser.

A browser asks before it sends a page's request to another origin (a preflight: OPTIONS), without
the API key; and it keeps the answer from the page unless a header allows the page's origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from paceline.core import InvalidRequest
from paceline.server.errors import invalid
from paceline.server.settings import LOOPBACK

METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
EXPOSED = "x-request-id, x-paceline-ignored, retry-after"
MAX_AGE = 600  # seconds that a browser remembers an allowance
Header = tuple[bytes, bytes]


class Origins:
    """The origins whose pages may use the API; `allowed` is as in ServerSettings.allow_origins."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.any = "*" in allowed
        self._local = "localhost" in allowed
        self._named = {origin.lower() for origin in allowed}

    def allows(self, origin: str) -> bool:
        """Return whether pages of `origin`, as a browser sends it, may use the API."""
        if self.any or origin.lower() in self._named - {"localhost", "none"}:
            return True
        return self._local and _is_local(origin)

    def headers(self, headers: Headers) -> list[Header]:
        """Return what lets the page that sent a request read its answer; nothing for others."""
        origin = headers.get("origin")
        if origin is None:
            return []
        vary = [] if self.any else [(b"vary", b"Origin")]
        if not self.allows(origin):
            return vary
        named = b"*" if self.any else origin.encode("latin-1")
        return [
            (b"access-control-allow-origin", named),
            (b"access-control-expose-headers", EXPOSED.encode()),
            *vary,
        ]

    def preflight(self, headers: Headers) -> Response:
        """Answer a browser's question before a page's request. Raises ApiError (403)."""
        origin = headers["origin"]
        if not self.allows(origin):
            expected = (
                f"an allowed origin; to allow this one, start with --allow-origin {origin[:80]}"
            )
            raise invalid(InvalidRequest("Origin", origin, expected), "origin_not_allowed", 403)
        answer = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Max-Age": str(MAX_AGE),
        }
        if wanted := headers.get("access-control-request-headers"):
            answer["Access-Control-Allow-Headers"] = wanted
        if headers.get("access-control-request-private-network") == "true":
            answer["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=answer)


def is_preflight(method: str, headers: Headers) -> bool:
    return (
        method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers
    )


def _is_local(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and (parts.hostname or "") in LOOPBACK
    except ValueError:
        return False
