"""Options of one server, validated once."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core import InvalidRequest

SPEC_METRICS = ("none", "summary", "detailed")


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
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    spec_metrics: str = "summary"
    drain_timeout: float = 30.0
    max_body_bytes: int = 4 * 2**20

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
