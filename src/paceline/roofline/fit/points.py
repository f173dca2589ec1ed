"""Measured step times, and readers of the files that hold them: ours, vLLM's, SGLang's.

A serving benchmark's time per output token includes what other requests' prompts took of the steps.
To calibrate from one, measure with short prompts and long outputs, and speculation off.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.errors import InvalidRequest, check_integer, check_number
from paceline.core.field_types import Expected, whole_number

MOST = 1e18  # of any number in a file: what is computed from them stays finite


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: `batch` requests of `rows` query rows each over `context` tokens took `seconds`.

    `draft_length` is the number of drafted tokens per request whose drafting the time includes.
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


def _number(value: object) -> object:
    """A number that a CSV has as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


A_NUMBER = f"a number up to {MOST:g}"
Number = Annotated[float, BeforeValidator(_number), Field(ge=-MOST, le=MOST), Expected(A_NUMBER)]
Whole = Annotated[
    int,
    BeforeValidator(lambda value: whole_number(_number(value))),
    Field(ge=-MOST, le=MOST),
    Expected(f"{A_NUMBER}, a whole number"),
]


class TableRow(Document):
    """A row of our own table, in CSV or JSON."""

    batch: Whole = Field(description="requests in the step")
    rows: Whole = Field(description="query rows of each request")
    context: Whole = Field(description="tokens in each request's cache")
    ms: Number | None = Field(default=None, description="the step's time")
    seconds: Number | None = Field(default=None, description="the same in seconds")
    # drafted tokens whose drafting the time includes; an empty cell is none
    draft_length: Annotated[Whole, BeforeValidator(lambda value: value or 0)] = 0

    def step(self, where: str) -> MeasuredStep:
        if self.ms is not None and self.seconds is not None:
            raise InvalidRequest("points.ms", where, "a time in ms or in seconds, not both")
        seconds = self.seconds if self.ms is None else self.ms * 1e-3
        if seconds is None:
            raise InvalidRequest("points.ms", None, f"a time in ms or seconds ({where})")
        return MeasuredStep(self.batch, self.rows, self.context, seconds, self.draft_length)


class OneBatch(Document):
    """A result of SGLang's `bench_one_batch`: the median of the decoding steps of one batch, whose
    context grows from prompt to end."""

    model_config = ConfigDict(extra="ignore")

    batch_size: Whole
    input_len: Number
    output_len: Number
    median_decode_latency: Number

    def step(self, where: str) -> MeasuredStep:
        context = int(self.input_len + self.output_len / 2)
        return MeasuredStep(self.batch_size, 1, context, self.median_decode_latency)


class ServingRun(Document):
    """A result of vLLM's `bench serve` or SGLang's `bench_serving`."""

    model_config = ConfigDict(extra="ignore")

    completed: Annotated[Number, Field(ge=1), Expected("a run that completed requests")]
    duration: Annotated[Number, Field(ge=1e-6), Expected("the run's seconds, above 0")]
    total_input_tokens: Number
    total_output_tokens: Number
    mean_tpot_ms: Number
    accept_length: object = None
    spec_decode_acceptance_length: object = None

    def step(self, where: str) -> MeasuredStep:
        """Take the mean time per output token for the step, and for the batch the mean number of
        requests in decode (Little's law): requests × their time in decode / duration."""
        for name in ("accept_length", "spec_decode_acceptance_length"):
            if getattr(self, name) not in (None, 1, 1.0):
                expected = "a run without speculation: a round's time includes the drafter's"
                raise InvalidRequest(f"points.{name}", where, expected)
        output = self.total_output_tokens / self.completed
        prompt = self.total_input_tokens / self.completed
        tpot = self.mean_tpot_ms / 1e3
        decoding = self.completed * tpot * max(output - 1.0, 0.0) / self.duration
        return MeasuredStep(max(1, round(decoding)), 1, int(prompt + output / 2), tpot)


def read_points(path: str | Path) -> list[MeasuredStep]:
    """Read the steps of a file, which is one of these:

    - a CSV with the columns batch, rows, context, ms (or seconds) and maybe draft_length
    - a JSON list of objects with these names, or an object with such a list as `points`
    - SGLang's `bench_one_batch` results: JSON lines
    - the JSON of `vllm bench serve`, or JSON lines of SGLang's `bench_serving`

    Raises InvalidRequest that names the field and the entry.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("points", str(path), f"a readable text file ({error})") from error
    is_json = text.lstrip()[:1] in ("[", "{")
    rows = _json_rows(text, str(path)) if is_json else list(csv.DictReader(text.splitlines()))
    if not rows:
        raise InvalidRequest("points", str(path), "a file with at least one point")
    return [_step(row, f"{path}, entry {number}") for number, row in enumerate(rows, 1)]


def _json_rows(text: str, path: str) -> Sequence[Mapping[str, object]]:
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


def _step(row: Mapping[str, object], where: str) -> MeasuredStep:
    if "ms" in row or "seconds" in row:
        kind: type[TableRow | OneBatch | ServingRun] = TableRow
    elif "median_decode_latency" in row:
        kind = OneBatch
    elif "mean_tpot_ms" in row and "duration" in row:
        kind = ServingRun
    else:
        expected = (
            "an entry with batch, rows, context and ms or seconds, or one of vLLM's bench serve, "
            "SGLang's bench_serving or bench_one_batch"
        )
        raise InvalidRequest("points", f"{where}: {sorted(map(str, row))}", expected)
    try:
        return kind.read(row, "points").step(where)
    except InvalidRequest as error:
        if where in str(error):
            raise
        raise InvalidRequest(error.field, error.value, f"{error.expected} ({where})") from None
