"""Measured speedups from what the commands write, for the page to lay over its curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.errors import check_number
from paceline.core.field_types import Whole
from paceline.core.rounds import Row, speedup_points
from paceline.server.page_answers import MeasuredPoints, ShownPoint
from paceline.server.responses import picked

FIELD = "measured"
SIDES = {"drafter/throughput": "default policy", "drafter/full": "whole block"}
MOST_POINTS = 5000
# what reading a file raises that our commands did not write, or that somebody changed since
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


class MeasuredPoint(Document):
    """A measured speedup over AR. `acceptance_length` includes the bonus token; `draft_length` and
    `batch` are null where they differ within it."""

    acceptance_length: float = Field(ge=1, le=1e4)
    speedup: float = Field(ge=0, le=1e4)
    draft_length: Annotated[Whole, Field(ge=0, le=65536)] | None = None
    batch: Annotated[Whole, Field(ge=1, le=65536)] | None = None
    note: str = ""


def measured(stated: Row) -> MeasuredPoints:
    """Return {"points": […]} of one of FORMATS, or of {"points": […]}: the fields of MeasuredPoint.
    Raises InvalidRequest."""
    given = stated.get("format", "points" if "points" in stated else None)
    read = FORMATS.get(given) if isinstance(given, str) else None
    if read is None:
        expected = "one of " + ", ".join(FORMATS) + ' ({"points": […]})'
        raise InvalidRequest(f"{FIELD}.format", given, expected)
    try:
        points = list(read(stated))
    except InvalidRequest:
        raise
    except MALFORMED as error:
        expected = f"the whole of what the command wrote ({error!r} is missing or wrong)"
        raise InvalidRequest(FIELD, given, expected) from error
    if not 1 <= len(points) <= MOST_POINTS:
        raise InvalidRequest(FIELD, len(points), f"1 to {MOST_POINTS} measured points")
    checked = (MeasuredPoint.read(p, f"{FIELD}.points[{i}]") for i, p in enumerate(points))
    return {"points": [picked(ShownPoint, point) for point in checked]}


def _evaluation(stated: Row) -> Iterator[dict[str, object]]:
    tokens = stated["settings"]["tokens"]
    for index, result in enumerate(stated["results"]):
        run = run_name(f"{FIELD}.results[{index}]", result)
        for side, policy in SIDES.items():
            for al, speedup, prompt in speedup_points(result["rows"], side, tokens=tokens):
                note = f"{run}, {prompt}, {policy}"
                yield {"acceptance_length": al, "speedup": speedup, "batch": 1, "note": note}


def run_name(field: str, result: Row) -> str:
    """Return the name of one result of an evaluation; `field` is its place there."""
    temperature = result["temperature"]
    check_number(f"{field}.temperature", temperature, 0, 1e3, "a temperature, 0 or above")
    return f"{result['set']}, T = {temperature:g}"


def _mock(stated: Row) -> Iterator[dict[str, object]]:
    for cell in stated["cells"]:
        batch, length = cell["batch"], cell["draft_length"]
        yield {
            "acceptance_length": cell["acceptance_length"],
            "speedup": cell["measured"]["speedup"],
            "draft_length": length,
            "batch": batch,
            "note": f"mocked {stated['model']}, batch {batch}, γ = {length}",
        }


FORMATS: dict[str, Callable[[Row], Iterable[object]]] = {
    "paceline-evaluation/1": _evaluation,
    "paceline-mock/1": _mock,
    "points": lambda stated: iter(stated["points"]),
}
