"""Traffic from a log of requests and responses in OpenAI's shape: JSONL, one request a line.

    {"usage": {"prompt_tokens": 812, "completion_tokens": 96},
     "start_time": 1763790000.25, "first_token_time": 1763790000.61, "end_time": 1763790002.9}

Fields that OpenAI's objects have and that are of no use here are passed over; any other field is
refused, with the number of its line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.errors import check_integer
from paceline.core.field_types import Expected
from paceline.roofline.traffic.worth import Spread, TrafficProfile

PASSED_OVER = (
    "id", "custom_id", "request_id", "object", "created", "model", "provider", "choices", "output",
    "messages", "prompt", "input", "request", "metadata", "system_fingerprint", "service_tier",
    "error", "status", "user", "metrics",
)  # fmt: skip
FEW = 30  # requests below which percentiles say little
MOST_TOKENS = 10**9
A_DAY = 86_400_000  # ms
NAMES = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
USAGE = "prompt_tokens and completion_tokens (or input_tokens and output_tokens)"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """Times are Unix seconds; `first` is None where the log does not say."""

    prompt_tokens: int
    output_tokens: int
    start: float
    end: float
    first: float | None

    @property
    def decoding(self) -> tuple[float, float]:
        """From the first token, or from the start where that is not known, to the end."""
        return (self.start if self.first is None else self.first), self.end


def _seconds(value: object) -> object:
    """Unix seconds of a time in ISO 8601."""
    if isinstance(value, str):
        stamp = datetime.fromisoformat(value)
        if stamp.tzinfo is None:
            raise ValueError("a zone is missing")
        return stamp.timestamp()
    return value


Time = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0, le=1e11),  # 1e12 and more would be ms
    Expected("Unix seconds, or ISO 8601 with a zone"),
]
Milliseconds = Annotated[float, Field(ge=0, le=A_DAY), Expected("milliseconds, up to a day")]


class LogLine(Document):
    """The fields of a line that are read."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    usage: object = None
    """`prompt_tokens` and `completion_tokens`, or `input_tokens` and `output_tokens`; at the top,
    in `response` or in `response.body`"""
    response: object = None
    """the response, where `usage` is in it"""
    start_time: Time
    """when the request was sent: Unix seconds, or ISO 8601 with a zone"""
    end_time: Time | None = None
    """when its last token came"""
    latency_ms: Milliseconds | None = None
    """the same, after the start"""
    first_token_time: Time | None = None
    """when its first token came; without it all time counts as decoding, and gains are upper
    bounds"""
    ttft_ms: Milliseconds | None = None
    """the same, after the start"""

    def request(self) -> LoggedRequest:
        """Build the request. Raises InvalidRequest for times that contradict each other."""
        start = self.start_time
        end = self._time("end_time", self.end_time, "latency_ms", self.latency_ms)
        first = self._time("first_token_time", self.first_token_time, "ttft_ms", self.ttft_ms)
        if end is None:
            raise InvalidRequest("end_time", None, "end_time or latency_ms, in every line")
        if end < start:
            raise InvalidRequest("end_time", end, f"not before start_time ({start})")
        if first is not None and not start <= first <= end:
            expected = f"between start ({start}) and end ({end})"
            raise InvalidRequest("first_token_time", first, expected)
        return LoggedRequest(*self._tokens(), start, end, first)

    def _time(
        self, name: str, at: float | None, after: str, milliseconds: float | None
    ) -> float | None:
        """The time in the field `name`, or that many milliseconds `after` the start."""
        if milliseconds is None:
            return at
        if at is not None:
            raise InvalidRequest(after, milliseconds, f"{name} or {after}, not both")
        return self.start_time + milliseconds / 1e3

    def _tokens(self) -> tuple[int, int]:
        """Tokens of the prompt and of the output."""
        body = self.response.get("body") if isinstance(self.response, dict) else None
        for place in ({"usage": self.usage}, self.response, body):
            usage = place.get("usage") if isinstance(place, dict) else None
            if not isinstance(usage, dict):
                continue
            for prompt, output in NAMES:
                if prompt in usage and output in usage:
                    for name in (prompt, output):
                        expected = f"tokens, 0 to {MOST_TOKENS}"
                        check_integer(f"usage.{name}", usage[name], 0, MOST_TOKENS, expected)
                    return usage[prompt], usage[output]
        raise InvalidRequest("usage", self.usage, USAGE)


def read_log(path: Path) -> TrafficProfile:
    """Read a log. Raises InvalidRequest that names the line and the field."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidRequest("traffic", str(path), f"a readable JSONL file ({error})") from error
    requests = [
        _request(f"traffic, line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not requests:
        raise InvalidRequest("traffic", str(path), "at least one request, a JSON object a line")
    return _characterise(requests, path.name)


def _request(where: str, line: str) -> LoggedRequest:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(where, line, f"a JSON object ({error})") from None
    if not isinstance(entry, dict):
        raise InvalidRequest(where, entry, "a JSON object")
    fields = {name: value for name, value in entry.items() if name not in PASSED_OVER}
    try:
        return LogLine.read(fields).request()
    except InvalidRequest as error:
        field = f"{where}, {error.field}"
        raise InvalidRequest(field, error.value, error.expected) from None


def _characterise(requests: Sequence[LoggedRequest], source: str) -> TrafficProfile:
    span = max(r.end for r in requests) - min(r.start for r in requests)
    spent = _total([(r.start, r.end) for r in requests])
    decoded = [r.decoding for r in requests]
    busy = _covered(decoded)
    written = sum(r.output_tokens for r in requests)
    deep = sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2) for r in requests)
    timed = [r for r in requests if r.first is not None]  # their first token is known
    share = ttft = tpot = None
    if timed:
        decoding = _total([r.decoding for r in timed])
        spent_timed = _total([(r.start, r.end) for r in timed])
        share = decoding / spent_timed if spent_timed else 0.0
        ttft = (spent_timed - decoding) / len(timed)
        later_tokens = sum(max(r.output_tokens - 1, 0) for r in timed)
        tpot = decoding / later_tokens if later_tokens else None
    return TrafficProfile(
        source=source,
        requests=len(requests),
        prompt_tokens=Spread.of([r.prompt_tokens for r in requests]),
        output_tokens=Spread.of([r.output_tokens for r in requests]),
        latency=spent / len(requests),
        ttft=ttft,
        tpot=tpot,
        decode_share=share,
        concurrency=spent / span if span > 0 else 1.0,
        decoding=_total(decoded) / busy if busy else 1.0,
        context=deep / written if written else 0.0,
        notes=tuple(_notes(len(requests), len(timed))),
    )


def _notes(requests: int, timed: int) -> list[str]:
    notes = []
    if requests < FEW:
        notes.append(f"{requests} requests: percentiles and concurrency say little")
    if not timed:
        notes.append(
            "the log does not say when first tokens came (first_token_time or ttft_ms): all time "
            "counts as decoding, and gains are upper bounds"
        )
    elif timed < requests:
        notes.append(
            f"{requests - timed} of {requests} requests do not say when their first token came; "
            "the share of decoding is that of the others"
        )
    return notes


def _total(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans is under way."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
