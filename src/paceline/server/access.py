"""The log of requests: a line for each, with the reason where it was refused.

A line has counts, times and names, and nothing that a client wrote except the path, the names of
fields, and the name of a model that is not served.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.core import FinishReason
from paceline.server.extra_fields import IGNORED_HEADER, header_value
from paceline.server.logs import Fields, RequestLine

if TYPE_CHECKING:
    from paceline.server.errors import ApiError
    from paceline.server.job import Job
    from paceline.server.tracing import Tracing

log = logging.getLogger("paceline.requests")
RECORD = "paceline.record"  # the record's key in an ASGI scope
ID_HEADER = b"x-request-id"
LONGEST = 200  # characters of a path, and of a reason
# what probes, scrapers and the page ask for all the time: logged at the level `debug`
QUIET = ("/health", "/metrics", "/version", "/web/", "/ui/")
QUIET_PATHS = ("/", "/v1/autospec")


@dataclass(slots=True)
class RequestRecord:
    """Holds what the log says of one request. Those who serve the request fill it in."""

    method: str = ""
    path: str = ""
    client: str = ""
    started: float = field(default_factory=time.monotonic)
    id: str = field(default_factory=lambda: f"req-{secrets.token_hex(12)}")
    key: str = ""  # the name of the API key
    ignored: list[str] = field(default_factory=list)  # fields that were left out
    job: Job | None = None
    refusal: ApiError | None = None
    status: int = 0
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.id if self.job is None else self.job.id

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that the answer gets."""
        shown = [(ID_HEADER, self.request_id.encode()), *self.answer_headers]
        if self.ignored:
            shown.append((IGNORED_HEADER, header_value(self.ignored)))
        return shown

    def fields(self) -> Fields:
        """Return the line's fields, in order; times are in seconds."""
        shown: Fields = {"client": self.client, "method": self.method, "path": self.path}
        shown |= {"status": self.status, "seconds": round(time.monotonic() - self.started, 4)}
        if self.refusal is not None:
            shown["reason"] = printable(self.refusal.reason)
            shown |= {"code": self.refusal.code} if self.refusal.code else {}
        if self.job is not None:
            shown |= generation_fields(self.job)
        shown |= {"key": self.key} if self.key else {}
        if self.ignored:
            shown["ignored"] = printable(",".join(self.ignored))
        return {**shown, "id": self.request_id}

    @property
    def level(self) -> int:
        """The level of the line: refusals are warnings, failures of the server errors."""
        if self.status >= 500:
            return logging.ERROR if self.status == 500 else logging.WARNING
        if self.status >= 400:
            return logging.WARNING
        if self.job is not None and FinishReason.ERROR in self.job.finish_reasons:
            return logging.WARNING  # a stream that failed after its first event
        is_quiet = self.path in QUIET_PATHS or self.path.startswith(QUIET)
        return logging.DEBUG if is_quiet and self.job is None else logging.INFO


class RequestLog:
    """The outermost layer of an app: writes the log and traces, and gives each answer its
    request's id."""

    def __init__(self, app: ASGIApp, tracing: Tracing | None = None) -> None:
        self.app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"], errors="replace").encode()
        record = RequestRecord(
            method=scope["method"],
            path=printable(raw_path.partition(b"?")[0].decode("latin-1")),
            client=(scope.get("client") or ("-",))[0] or "-",
        )
        scope[RECORD] = record

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ()), *record.headers()]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            record.status = record.status or 500  # answered by the layer around this one
            raise
        finally:
            write(record)
            if self._tracing is not None:
                self._tracing.note(record, Headers(scope=scope))


def record_of(scope: MutableMapping[str, Any]) -> RequestRecord:
    """Return the record of a request. If the app keeps no log, return a new record."""
    record: RequestRecord | None = scope.get(RECORD)
    if record is None:
        record = scope[RECORD] = RequestRecord()
    return record


def write(record: RequestRecord) -> None:
    """Put the line of a request into the log, if its level is wanted."""
    if log.isEnabledFor(record.level):
        log.log(record.level, RequestLine(record.fields()))


def write_refusal(client: str, refusal: ApiError) -> None:
    """Put a refusal into the log that was made before the request had been read."""
    fields: Fields = {"client": client, "method": "-", "path": "-", "status": refusal.status}
    fields |= {"reason": printable(refusal.reason), "code": refusal.code or ""}
    log.warning(RequestLine(fields))


def generation_fields(job: Job) -> Fields:
    """Return the tokens of a job, and the latencies and the acceptance length where it has one
    stream. AL counts the bonus token."""
    usage, times, acceptance_length = job.usage(), job.times, job.stats.acceptance_length
    shown: Fields = {
        "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "finish": ",".join(dict.fromkeys(job.finish_reasons)) or "none",
    }
    shown |= job.caller.counted.told
    if times is not None:
        if times.ttft is not None:
            shown["ttft"] = round(times.ttft, 4)
        if times.tpot is not None:
            shown["tpot"] = round(times.tpot, 5)
    if acceptance_length is not None:
        shown["al"] = round(acceptance_length, 2)
    return shown


def printable(text: str) -> str:
    """Return the start of a text, with escapes for what would break or disguise a line."""
    short = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    if short.isascii() and short.isprintable():
        return short
    return short.encode("unicode_escape").decode("ascii")
