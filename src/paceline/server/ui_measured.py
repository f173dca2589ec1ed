"""Measured speedups, read off what our commands write, for the page to lay over its curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number
from paceline.core.rounds import speedup_points

FIELD = "measured"
SIDES = {"drafter/throughput": "default policy", "drafter/full": "whole block"}
KEYS = ("acceptance_length", "speedup", "draft_length", "batch", "note")
MOST_POINTS = 5000
# what reading a file raises that our commands did not write, or that somebody changed since
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


def measured(stated: Mapping[str, Any]) -> dict[str, Any]:
    """{"points": […]} of one of FORMATS, or of {"points": […]} with the same keys.

    A point has `acceptance_length` (incl. bonus), `speedup` over AR, `draft_length` and `batch`
    (null where they differ within it), and a `note`. Raises InvalidRequest.
    """
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
    for index, point in enumerate(points):
        _check(f"{FIELD}.points[{index}]", point)
    return {"points": points}


def _evaluation(stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A point for each request and policy."""
    tokens = stated["settings"]["tokens"]
    for index, one in enumerate(stated["results"]):
        run = run_name(f"{FIELD}.results[{index}]", one)
        for side, policy in SIDES.items():
            for al, speedup, prompt in speedup_points(one["rows"], side, tokens=tokens):
                note = f"{run}, {prompt}, {policy}"
                yield _point(al, speedup, None, 1, note)


def run_name(field: str, one: Mapping[str, Any]) -> str:
    """What a result of an evaluation is called; `field` is where it stands."""
    temperature = one["temperature"]
    check_number(f"{field}.temperature", temperature, 0, 1e3, "a temperature, 0 or above")
    return f"{one['set']}, T = {temperature:g}"


def _mock(stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in stated["cells"]:
        note = f"mocked {stated['model']}, batch {cell['batch']}, γ = {cell['draft_length']}"
        speedup, batch = cell["measured"]["speedup"], cell["batch"]
        yield _point(cell["acceptance_length"], speedup, cell["draft_length"], batch, note)


def _own(stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, point in enumerate(stated["points"]):
        for key in point:
            if key not in KEYS:
                expected = "one of " + ", ".join(KEYS)
                raise InvalidRequest(f"{FIELD}.points[{index}].{key}", point[key], expected)
        al, speedup = point.get("acceptance_length"), point.get("speedup")
        yield _point(
            al, speedup, point.get("draft_length"), point.get("batch"), point.get("note", "")
        )


def _point(
    al: Any, speedup: Any, draft_length: Any, batch: Any, note: Any
) -> dict[str, Any]:  # fmt: skip
    return dict(zip(KEYS, (al, speedup, draft_length, batch, note), strict=True))


def _check(field: str, point: Mapping[str, Any]) -> None:
    check_number(f"{field}.acceptance_length", point["acceptance_length"], 1, 1e4, "at least 1")
    check_number(f"{field}.speedup", point["speedup"], 0, 1e4, "AR's time ÷ the time with drafts")
    for name, low in (("draft_length", 0), ("batch", 1)):
        if point[name] is not None:
            check_integer(f"{field}.{name}", point[name], low, 65536, f"a whole number from {low}")
    if not isinstance(point["note"], str):
        raise InvalidRequest(f"{field}.note", json.dumps(point["note"]), "text")


FORMATS: dict[str, Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]] = {
    "paceline-evaluation/1": _evaluation,
    "paceline-mock/1": _mock,
    "points": _own,
}
