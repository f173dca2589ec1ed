"""provenance.json: a manifest of what made a drafter, short enough to be read.

target     name, and digests of weights, tokenizer and chat template
shape      layers, block, tapped layers, head; `context`: the longest text trained on, in tokens
data       the sets by name: digest, tokens, licences, and whether they were trained on
settings   the recipe: every setting of the run that has a value and changes what is learnt
scores     of the last evaluation in training, and `before` the first step
init       the drafter that the run began from, and how that was made
origin     of a target that was distilled: the model that it was, who answered, and in which sets
evaluation what `paceline evaluate --card` measured: AL and speed of each set

Earlier releases wrote all they knew; shortened() makes either form the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest

PROVENANCE, FORMAT = "provenance.json", "paceline-drafter/2"
Provenance = Mapping[str, Any]  # the content of the file
# Settings that say where and how a run was computed, and not what.
OF_THE_MACHINE = (
    "features_gb", "features_folder", "features_folder_gb", "features_only", "features_wait",
    "features_wait_minutes", "features_passing", "save_every", "shard_target", "target_devices",
    "target_python", "target_url", "threads", "trackers",
)  # fmt: skip
MADE = ("init", "data", "settings", "step")  # what a later run keeps of the drafter it begins from
RESULT = ("set", "role", "temperature", "requests")  # of an evaluation's result
WIDTH = 100  # of a line; short values share one
DIGITS = 4


def read(folder: Path, field: str, expected: str) -> Provenance:
    """Return the provenance of a drafter's folder, shortened. Raises InvalidRequest (`field`) for
    one that is missing, cannot be read or lacks what it should have."""
    try:
        return shortened(json.loads((folder / PROVENANCE).read_text("utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequest(field, str(folder), f"{expected} ({error})") from error


def shortened(record: Provenance) -> dict[str, Any]:
    """Return a provenance without what a manifest need not say. Raises KeyError, TypeError or
    AttributeError for a record that is no provenance."""
    short = {**record, **_making(record), "format": FORMAT}
    for name in ("scores", "before"):
        if short.get(name) is not None:
            short[name] = _rounded(short[name])
    if "evaluation" in record:
        short["evaluation"] = _evaluation(record["evaluation"])
    return short


def as_text(record: Provenance) -> str:
    """Return a provenance as JSON in few lines."""
    return _text(record, 0) + "\n"


def _making(record: Provenance) -> dict[str, Any]:
    begun, settings = record["init"], record["settings"]
    if begun is not None and begun["made"] is not None:
        begun = {"name": begun["name"], "made": _making(begun["made"])}
    return {
        "init": begun,
        "data": {name: _data(facts) for name, facts in record["data"].items()},
        "settings": {
            name: value
            for name, value in settings.items()
            if value not in (None, {}) and name not in OF_THE_MACHINE
        },
        "step": record["step"],
        **({"origin": record["origin"]} if record.get("origin") else {}),
    }


def _data(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a set, with its sources' licences in place of the sources: the digest
    leads to the set, whose manifest has them."""
    short = dict(facts)
    sources = short.pop("sources", None)
    if sources is not None:
        short["licences"] = sorted({source.get("licence", "unknown") for source in sources})
    return short


def _evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    results = evaluation.get("results", [])
    return {**evaluation, "results": [_result(result) for result in results]}


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return AL and speedup over AR of a set by drafter and side. The card has a table with their
    intervals."""
    if "acceptance" not in result:
        return dict(result)
    short = {name: result[name] for name in RESULT}
    for name, part in (("al", "acceptance"), ("speedup", "speed")):
        short[name] = {side: _rounded(numbers[name]) for side, numbers in result[part].items()}
    return short


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: object, depth: int, key: str = "") -> str:
    line = key + json.dumps(value)
    if depth + len(line) < WIDTH or not isinstance(value, Mapping | list):
        return line
    if isinstance(value, Mapping):
        items = [_text(item, depth + 1, f"{json.dumps(name)}: ") for name, item in value.items()]
    else:
        items = [_text(item, depth + 1) for item in value]
    start, end = "{}" if isinstance(value, Mapping) else "[]"
    indent = "\n" + " " * (depth + 1)
    lines: list[str] = []
    for item in items:
        filled = f"{lines[-1]}, {item}" if lines else item
        if lines and "\n" not in filled and depth + 1 + len(filled) < WIDTH:
            lines[-1] = filled
        else:
            lines.append(item)
    return key + start + indent + ("," + indent).join(lines) + "\n" + " " * depth + end
