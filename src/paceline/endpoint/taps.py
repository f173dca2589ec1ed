"""Traces of what vLLM answers behind Envoy: a copy of each answer comes over a socket, once it has
ended, and becomes a row like those of our own server.

A copy is in memory alone, and only for as long as it is read; nobody looks at its text. A cohort
has no language here, since Envoy, which routes by cohort, could not match it. Answers with a 5xx
status, and streams that end with an error, leave a row without counts. Requests whose client has
left before the end, and streams whose connection broke, leave no row.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.cohorts import NONE, Cohort
from paceline.core.request import FinishReason
from paceline.dataset.traces.folder import SessionDigest
from paceline.dataset.traces.records import SHARED, RequestTrace, Traced
from paceline.dataset.traces.retention import Retention
from paceline.dataset.traces.writer import TraceCounts, TraceWriter
from paceline.endpoint.description import EndpointTraces
from paceline.endpoint.unix_server import QuietHandler, UnixServer
from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.openai_stream import take_openai
from paceline.engines.traces import answer_bytes, answer_trace
from paceline.server.cohorts import CommonCohorts

log = logging.getLogger(__name__)
MICROSECONDS = 1e6
FAILED = 500  # and every status above it
LONGEST_COPY = 2 * 2**20  # bytes of a request and its answer, above what Envoy hands over
Ids = list[int]
Redact = Callable[[Ids, Ids], tuple[Ids, Ids] | None]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TappedAnswer:
    """An answer as Envoy saw it. Times are seconds since the epoch; `body` may lack its beginning,
    and is empty with a `status` of 500 or above; `request` is empty where the request was too
    long."""

    id: str
    app: str
    region: str
    session: str
    drafter: str
    route: str
    consent: bool
    status: int
    started: float
    first: float
    ended: float
    whole: bool
    request: bytes
    body: bytes

    @classmethod
    def of(cls, headers: Mapping[str, str] | Message, data: bytes) -> TappedAnswer:
        """Read a copy as taps.lua writes it. Raises KeyError and ValueError for another one."""
        started, first, ended = (int(headers[f"x-{name}"]) for name in ("start", "first", "end"))
        split = int(headers["x-request-bytes"])
        return cls(
            id=headers["x-id"],
            app=headers["x-app"],
            region=headers["x-region"],
            session=headers["x-session"],
            drafter=headers["x-drafter"],
            route=headers["x-route"],
            consent=headers["x-tokens"] == "yes",
            status=int(headers["x-status"]),
            started=started / MICROSECONDS,
            first=first / MICROSECONDS,
            ended=ended / MICROSECONDS,
            whole=len(data) - split == int(headers["x-size"]),
            request=data[:split],
            body=data[split:],
        )


class TapTraces:
    """Makes rows of answers. Raises InvalidRequest and MissingPackage where it could not."""

    def __init__(self, traces: EndpointTraces) -> None:
        self._traces = traces
        self._redact = None if traces.redact is None else imported(traces.redact)
        self._writer = TraceWriter(
            Path(traces.folder).expanduser(), Retention(traces.keep_days, traces.token_days)
        )
        self._common = CommonCohorts()
        self._lock = threading.Lock()

    @property
    def counts(self) -> TraceCounts:
        return self._writer.counts

    def take(self, tapped: TappedAnswer) -> None:
        """Hand an answer over to the writer. Raises ValueError for one that cannot be read."""
        answer, tokens, model = read_answer(tapped)
        asked = _json(tapped.request) if tapped.request else {}
        cohort = Cohort(
            model=str(asked.get("model") or model or NONE),
            app=tapped.app or NONE,
            language=NONE,
            region=tapped.region or NONE,
        )
        with self._lock:
            cohort = self._common.counted(cohort)
        scope = SHARED if tapped.consent and tapped.app in self._traces.tokens else ""
        if scope and not self._keep_ids(answer):
            scope = ""
        make = answer_trace(
            answer,
            EngineAsk("", 0, temperature=float(asked.get("temperature") or 0)),
            id=tapped.id,
            cohort=cohort,
            engine="vllm",
            session=tapped.session or None,
            drafter=tapped.drafter or None,
            version=tapped.drafter or None,
            scope=scope,
            token_days=self._traces.token_days,
            time=tapped.ended,
        )

        def made(digest: SessionDigest) -> Traced:
            row, rounds = make(digest)
            return timed(row, tapped, tokens), rounds

        self._writer.offer(made, answer_bytes(answer))

    def close(self) -> None:
        self._writer.close()

    def _keep_ids(self, answer: EngineAnswer) -> bool:
        """Redact the token ids of an answer; return whether they may be kept."""
        if answer.prompt_token_ids is None or not answer.token_ids:
            return False
        if self._redact is None:
            return True
        try:
            kept = self._redact(answer.prompt_token_ids, answer.token_ids)
        except Exception:  # whatever the user's function raises
            log.exception("traces.redact: %s failed; token ids are left out", self._traces.redact)
            return False
        if kept is None:
            return False
        answer.prompt_token_ids, answer.token_ids = list(kept[0]), list(kept[1])
        return True


class TapServer:
    """Takes copies on a Unix socket at `path`, which only its owner can open."""

    def __init__(self, path: Path, traces: TapTraces) -> None:
        self._traces = traces
        self._server = UnixServer(path, tap_handler(traces))

    @property
    def counts(self) -> TraceCounts:
        return self._traces.counts

    def close(self) -> None:
        self._server.close()
        self._traces.close()


def tap_handler(traces: TapTraces) -> type[BaseHTTPRequestHandler]:
    """Return what answers a connection: it takes each copy that comes whole."""

    class TapHandler(QuietHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            data = self.rfile.read(min(size, LONGEST_COPY))
            with suppress(ConnectionError):  # Envoy waits for a second only
                self.send_response(204)
                self.end_headers()
            if len(data) == size:
                with suppress(KeyError, ValueError, TypeError):  # no answer of vLLM's
                    traces.take(TappedAnswer.of(self.headers, data))
            else:
                self.close_connection = True

    return TapHandler


def read_answer(tapped: TappedAnswer) -> tuple[EngineAnswer, int, str | None]:
    """Return an answer, the number of its tokens, and the name that the server has for the model.

    The tokens are those that its usage counts: token ids alone do not tell in how many rounds they
    came. Tokens that came in one event share an arrival, and arrivals count events.
    """
    answer, tokens, model, choices = EngineAnswer(started=0.0), 0, None, set[int]()
    if tapped.status >= FAILED:
        answer.finish_reason = FinishReason.ERROR
        return answer, tokens, model
    for place, event in enumerate(events(tapped)):
        known = len(answer.token_ids)
        take_openai(answer, event)
        answer.arrivals[known:] = [float(place)] * (len(answer.token_ids) - known)
        model = event.get("model") or model
        choices |= {choice.get("index", 0) for choice in event.get("choices", ())}
        tokens = (event.get("usage") or {}).get("completion_tokens") or tokens
        if "error" in event:  # the status was sent before
            answer.finish_reason = FinishReason.ERROR
    if not tapped.whole or len(choices) > 1:  # parts of an answer, or several
        answer.token_ids, answer.prompt_token_ids = [], None
    return answer, tokens, model


def events(tapped: TappedAnswer) -> list[Json]:
    """Return the events of a stream, or the one of an answer that is not streamed. Of a stream
    whose beginning is missing, the first piece is left out."""
    if not is_stream(tapped):
        return [_json(tapped.body)] if tapped.whole else []
    pieces = tapped.body.split(b"\n\n")[0 if tapped.whole else 1 :]
    told = [piece.removeprefix(b"data:").strip() for piece in pieces]
    return [_json(piece) for piece in told if piece.startswith(b"{")]


def is_stream(tapped: TappedAnswer) -> bool:
    """Return whether an answer came as events, which begin lines; a line of JSON never does so."""
    return tapped.body.startswith(b"data:") or b"\ndata:" in tapped.body


def timed(row: RequestTrace, tapped: TappedAnswer, tokens: int) -> RequestTrace:
    """Return a row with the times that Envoy saw, and the number of tokens that vLLM counted. The
    first event of a stream comes with its first token. An answer that is no stream comes at its
    end, so the time to its first token is unknown, and its TPOT is its whole time by its tokens."""
    streamed, total = is_stream(tapped), tapped.ended - tapped.started
    seconds, by = (tapped.ended - tapped.first, tokens - 1) if streamed else (total, tokens)
    return replace(
        row,
        output_tokens=tokens,
        rounds=max(tokens - row.accepted, 0),
        ttft=tapped.first - tapped.started if streamed else None,
        tpot=seconds / by if by > 0 else None,
        total=total,
        route=tapped.route,
    )


def imported(hook: str) -> Redact:
    """Import a redaction hook. Raises InvalidRequest."""
    module, _, name = hook.partition(":")
    try:
        function: Redact = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        expected = f"a function that Python can import, as mypackage.privacy:redact ({error})"
        raise InvalidRequest("traces.redact", hook, expected) from None
    return function


def _json(data: bytes) -> Json:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value
