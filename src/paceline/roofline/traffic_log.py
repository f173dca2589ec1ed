"""Traffic from a log of requests and responses in OpenAI's shape: JSONL, one request a line.

    {"usage": {"prompt_tokens": 812, "completion_tokens": 96},
     "start_time": 1763790000.25, "first_token_time": 1763790000.61, "end_time": 1763790002.9}

Read are `usage` (of chat and text completions, or of responses: `input_tokens`, `output_tokens`),
at the top, in `response` or in `response.body`; when it was sent: `start_time`; when its last token
came: `end_time`, or `latency_ms` after the start; and when its first came, where that is known:
`first_token_time`, or `ttft_ms` after the start. Times are Unix seconds or ISO 8601 with a zone.
The fields in PASSED_OVER are of no use here; any other is refused, with the number of its line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number
from paceline.roofline.traffic import Spread, Traffic

PASSED_OVER = (
    "id", "custom_id", "request_id", "object", "created", "model", "provider", "choices", "output",
    "messages", "prompt", "input", "request", "metadata", "system_fingerprint", "service_tier",
    "error", "status", "user", "metrics",
)  # fmt: skip
TIMES = ("start_time", "end_time", "first_token_time", "latency_ms", "ttft_ms")
NAMES = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
FEW = 30  # requests below which percentiles say little
MOST_TOKENS = 10**9
A_DAY = 86_400_000  # ms


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """Times are Unix seconds; `first` is None where the log does not say."""

    prompt_tokens: int
    output_tokens: int
    start: float
    end: float
    first: float | None


def read_log(path: Path) -> Traffic:
    """Raises InvalidRequest that names the line and the field."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidRequest("traffic", str(path), f"a readable JSONL file ({error})") from error
    requests = [
        _request(number, line) for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not requests:
        raise InvalidRequest("traffic", str(path), "at least one request, a JSON object a line")
    return characterise(requests, path.name)


def characterise(requests: Sequence[LoggedRequest], source: str) -> Traffic:
    span = max(r.end for r in requests) - min(r.start for r in requests)
    spent = sum(r.end - r.start for r in requests)
    known = [r for r in requests if r.first is not None]
    notes = []
    if len(requests) < FEW:
        notes.append(f"{len(requests)} requests: percentiles and concurrency say little")
    if len(known) < len(requests):
        notes.append(
            f"{len(requests) - len(known)} of {len(requests)} requests do not say when their "
            "first token came; the share of decoding is that of the others"
            if known
            else "the log does not say when first tokens came (first_token_time or ttft_ms): all "
            "time counts as decoding, and gains are upper bounds"
        )
    decoded = [(r.first if r.first is not None else r.start, r.end) for r in requests]
    seconds = sum(end - start for start, end in decoded)
    written = sum(r.output_tokens for r in requests)
    deep = sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2) for r in requests)
    share = ttft = None
    if known:
        of_known = sum(r.end - r.start for r in known)
        share = _seconds(known) / of_known if of_known else 0.0
        ttft = sum((r.first or r.start) - r.start for r in known) / len(known)
    said = sum(max(r.output_tokens - 1, 0) for r in known)
    return Traffic(
        source=source,
        requests=len(requests),
        prompt_tokens=Spread.of([r.prompt_tokens for r in requests]),
        output_tokens=Spread.of([r.output_tokens for r in requests]),
        latency=spent / len(requests),
        ttft=ttft,
        tpot=_seconds(known) / said if said else None,
        decode_share=share,
        concurrency=spent / span if span > 0 else 1.0,
        decoding=seconds / busy if (busy := _covered(decoded)) else 1.0,
        context=deep / written if written else 0.0,
        notes=tuple(notes),
    )


def _seconds(requests: Sequence[LoggedRequest]) -> float:
    """Of decoding, of requests whose first token is known."""
    return sum(r.end - r.first for r in requests if r.first is not None)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans is under way."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


# -- one line --------------------------------------------------------------------------------------


def _request(number: int, line: str) -> LoggedRequest:
    where = f"traffic, line {number}"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(where, line, f"a JSON object ({error})") from None
    if not isinstance(entry, dict):
        raise InvalidRequest(where, entry, "a JSON object")
    for name in entry:
        if name not in (*TIMES, *PASSED_OVER, "usage", "response"):
            read = ", ".join(("usage", "response", *TIMES))
            raise InvalidRequest(f"{where}, {name}", entry[name], f"one of {read}")
    prompt, output = _usage(where, entry)
    start = _time(where, entry, "start_time", None, None)
    end = _time(where, entry, "end_time", "latency_ms", start)
    first = _time(where, entry, "first_token_time", "ttft_ms", start, needed=False)
    assert start is not None and end is not None
    if end < start:
        raise InvalidRequest(f"{where}, end_time", end, f"not before start_time ({start})")
    if first is not None and not start <= first <= end:
        expected = f"between start ({start}) and end ({end})"
        raise InvalidRequest(f"{where}, first_token_time", first, expected)
    return LoggedRequest(prompt, output, start, end, first)


def _usage(where: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    response = entry.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    for place in (entry, response, body):
        usage = place.get("usage") if isinstance(place, dict) else None
        if not isinstance(usage, dict):
            continue
        for names in NAMES:
            if all(name in usage for name in names):
                for name in names:
                    expected = f"tokens, 0 to {MOST_TOKENS}"
                    check_integer(f"{where}, usage.{name}", usage[name], 0, MOST_TOKENS, expected)
                return usage[names[0]], usage[names[1]]
    expected = "prompt_tokens and completion_tokens (or input_tokens and output_tokens)"
    raise InvalidRequest(f"{where}, usage", entry.get("usage"), expected)


def _time(
    where: str,
    entry: Mapping[str, Any],
    name: str,
    after: str | None,
    start: float | None,
    needed: bool = True,
) -> float | None:
    """The time in field `name`, or `start` and the milliseconds in field `after`."""
    if after is not None and after in entry:
        if name in entry:
            raise InvalidRequest(f"{where}, {after}", entry[after], f"{name} or {after}, not both")
        check_number(f"{where}, {after}", entry[after], 0, A_DAY, "milliseconds, up to a day")
        assert start is not None
        return start + entry[after] / 1e3
    if name not in entry:
        if not needed:
            return None
        either = name if after is None else f"{name} or {after}"
        raise InvalidRequest(f"{where}, {name}", None, f"{either}, in every line")
    value = entry[name]
    expected = "Unix seconds, or ISO 8601 with a zone"
    if isinstance(value, str):
        try:
            stamp = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequest(f"{where}, {name}", value, expected) from None
        if stamp.tzinfo is None:
            raise InvalidRequest(f"{where}, {name}", value, expected)
        return stamp.timestamp()
    check_number(f"{where}, {name}", value, 0, 1e11, expected)  # 1e12 and more would be ms
    return float(value)
