"""Options of one server, validated once."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number

SPEC_METRICS = ("none", "summary", "detailed")
SHARE_ANSWERS = {  # as the start-up line says it
    "named": "Drafts are looked up in each other's answers if both name that cache_salt or user.",
    "always": "Drafts are looked up in each other's answers too.",
    "never": "Drafts are never looked up in each other's answers.",
}
STEADY_MS = (5.0, 1000.0)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LONGEST = 24 * 3600.0  # seconds; longer time limits than a day are mistakes
# a host as a URL names it: a name, an IPv4 address, or an IPv6 address in brackets; then a port
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::\d*)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a model is offered over HTTP. Raises InvalidRequest naming the field.

    host, port           where to listen; port 0 takes a free one
    api_keys             keys that /v1 and the page's data ask for as `Authorization: Bearer KEY`;
                         none: open to all
    served_model_names   names that requests may use, the first is reported; none: the engine's
    spec_metrics         what responses say of their speculation: none, summary, or detailed, which
                         adds a count per round
    drain_timeout        seconds that running requests get to finish after SIGTERM
    max_body_bytes       longest request body; past it 413
    share_answers        whose answers drafts are looked up in besides the request's own text: those
                         of its scope (always), those of its scope if it names a cache_salt or a
                         user (named), or nobody's (never)
    steady_stream        milliseconds between two writes of a stream, all of the same size, which
                         hide how many tokens a round committed; 0: events are written as they come
    keep_alive           seconds that an idle connection is kept for the client's next request
    read_timeout         seconds that a client has to send a request's headers, and the longest
                         pause while it sends the body
    write_timeout        seconds that a client may leave an answer unread; past it the connection
                         is cut and the request is aborted
    max_connections      most open connections; None: 1024, or fewer where the process may not open
                         that many files
    allow_hosts          names that the Host header may have beside those of this machine; with
                         them, or on loopback without API keys, any other name is refused
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    spec_metrics: str = "summary"
    drain_timeout: float = 30.0
    max_body_bytes: int = 4 * 2**20
    share_answers: str = "named"
    steady_stream: float = 0.0
    keep_alive: float = 75.0  # above the 60 s of common load balancers: they should close first
    read_timeout: float = 30.0
    write_timeout: float = 60.0
    max_connections: int | None = None
    allow_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidRequest("port", self.port, "a port from 0 (any free one) to 65535")
        if not all(key.isascii() and key.isprintable() and key.strip() for key in self.api_keys):
            raise InvalidRequest("api_keys", "<hidden>", "non-empty printable ASCII strings")
        if not all(self.served_model_names):
            raise InvalidRequest("served_model_names", self.served_model_names, "non-empty names")
        if self.spec_metrics not in SPEC_METRICS:
            expected = "one of " + ", ".join(SPEC_METRICS)
            raise InvalidRequest("spec_metrics", self.spec_metrics, expected)
        if self.drain_timeout < 0:
            raise InvalidRequest("drain_timeout", self.drain_timeout, "seconds, at least 0")
        if self.max_body_bytes < 1:
            raise InvalidRequest("max_body_bytes", self.max_body_bytes, "at least 1 byte")
        if self.share_answers not in SHARE_ANSWERS:
            expected = "one of " + ", ".join(SHARE_ANSWERS)
            raise InvalidRequest("share_answers", self.share_answers, expected)
        shortest, longest = STEADY_MS
        if self.steady_stream and not shortest <= self.steady_stream <= longest:
            expected = f"0 (off), or milliseconds from {shortest:g} to {longest:g}"
            raise InvalidRequest("steady_stream", self.steady_stream, expected)
        for field in ("keep_alive", "read_timeout", "write_timeout"):
            expected = "seconds, from 0.1 to a day (86400)"
            check_number(field, getattr(self, field), 0.1, LONGEST, expected)
        if self.max_connections is not None:
            check_integer("max_connections", self.max_connections, 1, 2**20, "1 or more")
        for name in self.allow_hosts:
            if not is_host(name):
                expected = "a host name or address without scheme and port, as paceline.example"
                raise InvalidRequest("allow_hosts", name, expected)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def host_name(value: str) -> str | None:
    """Return the host in a Host header, in lower case and without brackets, port and final dot.

    None when the value is malformed.
    """
    match = HOST.fullmatch(value)
    return (match[1] or match[2]).lower().removesuffix(".") if match else None


def is_host(name: str) -> bool:
    """Whether `name` is a host name or an address, without scheme, port and brackets."""
    written = f"[{name}]" if name.count(":") > 1 else name  # one colon parts a name from a port
    return host_name(written) == name.lower()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
