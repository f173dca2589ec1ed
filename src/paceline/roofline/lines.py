"""What users write in one line of a terminal, as the plain JSON that a scenario takes.

    ideal                                         free and always right
    mtp:0.1,alpha=0.75                            kind, cost of a pass, acceptance
    dflash:0.1,block=15,al=4.4,draft_length=15    acceptance by a measured AL (incl. bonus)
    fast=dflash:./my-drafter,trace=eval.json      a name; cost by its config, a recorded run
    suffix,seconds=2e-5,unconditional=0.6,0.4     rates by position

`[NAME=]KIND[:VALUE][,key=value…]` as for `paceline serve`; VALUE is a cost where it is a number,
and else the drafter's folder or config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest, ModelError
from paceline.roofline.acceptance import KEYS, LISTS, read_pairs
from paceline.roofline.architecture import model_names
from paceline.roofline.flags import METHODS
from paceline.roofline.recorded import read_trace
from paceline.roofline.survival import Trace

GRAMMAR = "[NAME=]KIND[:VALUE][,key=value…]"
COSTS = ("seconds", "block", "max_draft", "checkpoint", "cost")


def drafter_of_line(text: str, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object of `drafters` that a line says. `otherwise` is the acceptance of drafters that
    state none. Raises InvalidRequest."""
    head, _, rest = text.partition(",")
    before, equals, after = head.partition("=")
    name, said = (before.strip(), after) if equals and ":" not in before else (None, head)
    kind, colon, value = (part.strip() for part in said.partition(":"))
    if kind not in METHODS or (colon and not value) or name == "":
        expected = f"{GRAMMAR} with a kind of {', '.join(METHODS)}"
        raise InvalidRequest("drafter", text, expected)
    found: dict[str, Any] = {"kind": kind, **({"name": name} if name else {})}
    pairs = read_pairs("drafter", rest, LISTS) if rest else {}
    if value:
        found |= _value(value)
    acceptance = acceptance_of_pairs({k: v for k, v in pairs.items() if k not in COSTS})
    for key in COSTS:
        if key in pairs:
            if key in found and key != "checkpoint":
                raise InvalidRequest("drafter", text, f"{key} once")
            found[key] = pairs[key]
    if not acceptance and kind != "ideal":
        acceptance = dict(otherwise or {})
    if acceptance:
        found["acceptance"] = acceptance
    return found


def acceptance_of_line(text: str) -> dict[str, Any]:
    """`alpha=0.8`, `al=3.5,draft_length=7`, `trace=evaluation.json` … as the JSON of a scenario."""
    return acceptance_of_pairs(read_pairs("acceptance", text, LISTS))


def acceptance_of_pairs(pairs: Mapping[str, Any]) -> dict[str, Any]:
    for key in pairs:
        if key not in (*KEYS, "trace"):
            expected = "one of " + ", ".join((*COSTS, *sorted(KEYS), "trace"))
            raise InvalidRequest("drafter", key, expected)
    if "trace" not in pairs:
        return dict(pairs)
    if len(pairs) > 1:
        raise InvalidRequest("acceptance", sorted(pairs), "trace alone")
    trace = read_trace(Path(str(pairs["trace"])))
    return trace_as_json(trace)


def trace_as_json(trace: Trace) -> dict[str, Any]:
    drafted = trace.drafted
    return {
        "accepted": list(trace.accepted),
        "drafted": drafted if isinstance(drafted, int) else list(drafted),
    }


def model_of_word(word: str) -> dict[str, Any]:
    """`model` and `checkpoint` of a scenario, from a listed name, a folder or a config.json."""
    if word.lower() in (name.lower() for name in model_names()):
        return {"model": word}
    path = Path(word).expanduser()
    if not path.exists():
        expected = f"a folder, a config.json, or one of {', '.join(model_names())}"
        raise InvalidRequest("model", word, expected)
    folder = path if path.is_dir() else path.parent
    config = read_config(path)
    return {"model": {"config": config, "name": folder.resolve().name}, "checkpoint": str(folder)}


def read_config(path: Path) -> dict[str, Any]:
    """A config.json, or that of a folder. Raises ModelError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not a readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected one JSON object")
    return config


def _value(value: str) -> dict[str, Any]:
    try:
        return {"cost": float(value)}
    except ValueError:
        path = Path(value).expanduser()
    if not path.exists():
        raise InvalidRequest("drafter", value, "a cost (a number), a folder or a config.json")
    folder = path if path.is_dir() else path.parent
    return {"config": read_config(path), "checkpoint": str(folder)}
