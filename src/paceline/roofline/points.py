"""Measured step times, and readers of the files that hold them: ours, vLLM's, SGLang's.

A serving benchmark's time per output token includes what other requests' prompts took of the steps.
To calibrate from one, measure with short prompts and long outputs, and speculation off.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import InvalidRequest, check_integer, check_number

COLUMNS = ("batch", "rows", "context")
TIMES = {"ms": 1e-3, "seconds": 1.0}
SHORTEST = 1e-6  # seconds of a benchmark
MOST = 1e18  # of any number in a file: what is reckoned from them stays finite


@dataclass(frozen=True, slots=True)
class Point:
    """One step: `batch` requests of `rows` query rows each over `context` tokens took `seconds`.

    `draft_length`: how many drafted tokens per request the time includes the drafting of.
    """

    batch: int
    rows: int
    context: int
    seconds: float
    draft_length: int = 0

    def __post_init__(self) -> None:
        check_integer("point.batch", self.batch, 1, 10**7, "a whole number of requests, 1 or more")
        check_integer("point.rows", self.rows, 1, 10**7, "rows per request, 1 or more")
        check_integer("point.context", self.context, 0, 10**9, "tokens in the cache, 0 or more")
        check_number("point.seconds", self.seconds, 1e-9, 1e6, "the step's time, above 0")
        check_integer("point.draft_length", self.draft_length, 0, 4096, "tokens, 0 or more")


def read_points(path: str | Path) -> list[Point]:
    """The points of a file, whichever of these it is:

    - a CSV with the columns batch, rows, context, ms (or seconds) and maybe draft_length
    - a JSON list of objects with these names, or an object with such a list as `points`
    - SGLang's `bench_one_batch` results: JSON lines
    - the JSON of `vllm bench serve`, or JSON lines of SGLang's `bench_serving`

    Raises InvalidRequest that names what is wrong, and the line.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("points", str(path), f"a readable text file ({error})") from error
    if text.lstrip()[:1] in ("[", "{"):
        rows = _json_rows(text, str(path))
    else:
        rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise InvalidRequest("points", str(path), "a file with at least one point")
    return [_point(row, f"{path}, entry {number}") for number, row in enumerate(rows, 1)]


def _json_rows(text: str, path: str) -> list[Mapping[str, Any]]:
    """The objects of a JSON list, of an object's `points`, of one object, or of JSON lines."""
    try:
        loaded = json.loads(text)
    except ValueError:
        try:
            loaded = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise InvalidRequest("points", path, f"JSON or JSON lines ({error})") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("points", [loaded])
    if not isinstance(loaded, list) or not all(isinstance(row, dict) for row in loaded):
        raise InvalidRequest("points", path, "a list of objects")
    return loaded


def _point(row: Mapping[str, Any], where: str) -> Point:
    if any(name in row for name in TIMES):
        return _own(row, where)
    if "median_decode_latency" in row:
        return _one_batch(row, where)
    if "mean_tpot_ms" in row and "duration" in row:
        return _serving(row, where)
    expected = (
        f"an entry with {', '.join(COLUMNS)} and ms or seconds, or one of vLLM's bench serve, "
        "SGLang's bench_serving or bench_one_batch"
    )
    raise InvalidRequest("points", f"{where}: {sorted(map(str, row))}", expected)


def _own(row: Mapping[str, Any], where: str) -> Point:
    known = (*COLUMNS, *TIMES, "draft_length")
    for name in row:
        if name not in known:
            raise InvalidRequest(f"points.{name}", where, f"one of {', '.join(known)}")
    (unit, *others) = [name for name in TIMES if name in row]
    if others:
        raise InvalidRequest(f"points.{unit}", where, "a time in ms or in seconds, not both")
    values = {name: _number(row, name, where) for name in COLUMNS}
    drafted = _number(row, "draft_length", where) if row.get("draft_length") else 0.0
    return Point(
        batch=_whole(values["batch"], "batch", where),
        rows=_whole(values["rows"], "rows", where),
        context=_whole(values["context"], "context", where),
        seconds=_number(row, unit, where) * TIMES[unit],
        draft_length=_whole(drafted, "draft_length", where),
    )


def _one_batch(row: Mapping[str, Any], where: str) -> Point:
    """Median of the decoding steps of one batch, whose context grows from prompt to end."""
    output = _number(row, "output_len", where)
    return Point(
        batch=_whole(_number(row, "batch_size", where), "batch_size", where),
        rows=1,
        context=int(_number(row, "input_len", where) + output / 2),
        seconds=_number(row, "median_decode_latency", where),
    )


def _serving(row: Mapping[str, Any], where: str) -> Point:
    """The batch is how many requests were decoding on average (Little's law): requests × their
    time in decode / duration. The step is the mean time per output token."""
    for name in ("accept_length", "spec_decode_acceptance_length"):
        if row.get(name) not in (None, 1, 1.0):
            expected = "a run without speculation: a round's time includes the drafter's"
            raise InvalidRequest(f"points.{name}", where, expected)
    completed = _number(row, "completed", where)
    if completed < 1:
        raise InvalidRequest("points.completed", where, "a run that completed requests")
    duration = _number(row, "duration", where)
    if duration < SHORTEST:
        raise InvalidRequest("points.duration", duration, f"the run's seconds, above 0 ({where})")
    output = _number(row, "total_output_tokens", where) / completed
    tpot = _number(row, "mean_tpot_ms", where) / 1e3
    decoding = completed * tpot * max(output - 1.0, 0.0) / duration
    prompt = _number(row, "total_input_tokens", where) / completed
    return Point(
        batch=max(1, round(decoding)), rows=1, context=int(prompt + output / 2), seconds=tpot
    )


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row.get(name)
    try:
        if value is None or isinstance(value, bool):
            raise TypeError
        number = float(value)
        if not abs(number) <= MOST:  # nor is NaN
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"points.{name}", value, f"a number up to {MOST:g} ({where})"
        ) from error
    return number


def _whole(value: float, name: str, where: str) -> int:
    if value != int(value):
        raise InvalidRequest(f"points.{name}", value, f"a whole number ({where})")
    return int(value)
