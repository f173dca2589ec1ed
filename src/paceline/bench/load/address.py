"""The address of a server, a URL or a Unix socket, and what is said where it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from paceline.core import InvalidRequest

UNIX = "unix:"
UNLIMITED = httpx.Limits(max_connections=None)
KEY_VARIABLE = "PACELINE_API_KEY"
KEY_REMEDY = f"set {KEY_VARIABLE} to the server's key, or give it with --api-key"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server: `base_url` is for httpx, `socket` the path of a Unix socket; `shown`
    is the address as people write it."""

    shown: str
    base_url: str
    socket: str | None = None

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read http://HOST:PORT, with or without /v1, or unix:/PATH. Raises InvalidRequest."""
        if url.startswith(("http://", "https://")):
            base = url.rstrip("/").removesuffix("/v1")
            return cls(base, base)
        path = "/" + url.removeprefix(UNIX).lstrip("/")
        if not url.startswith(f"{UNIX}/") or path == "/":
            expected = "a server's address, as http://127.0.0.1:8000 or unix:/run/paceline.sock"
            raise InvalidRequest("url", url, expected)
        return cls(UNIX + path, "http://localhost", path)

    def transport(self) -> httpx.HTTPTransport | None:
        """Return what a client reaches the server through; None for a URL."""
        return None if self.socket is None else httpx.HTTPTransport(uds=self.socket)

    def async_transport(self) -> httpx.AsyncHTTPTransport | None:
        """Return transport() of an asynchronous client, with any number of connections."""
        if self.socket is None:
            return None
        return httpx.AsyncHTTPTransport(uds=self.socket, limits=UNLIMITED)

    def refusal(self, response: httpx.Response, key_remedy: str = KEY_REMEDY) -> str:
        """Say in a line what a server answered that refused; the body of `response` is read."""
        try:
            text = str(json.loads(response.content)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            text = response.text[:500]
        where = self.shown + response.url.path
        remedy = f"; {key_remedy}" if response.status_code == 401 else ""
        return f"{response.status_code} from {where}: {text}{remedy}"


def first_key(text: str) -> str:
    """Return the first of the keys that PACELINE_API_KEY has for a server, without its name."""
    words = text.strip().splitlines()[0].split() if text.strip() else [""]
    return words[min(1, len(words) - 1)]  # KEY, NAME KEY, or NAME KEY and an option
