"""The one-line forms of a terminal, as the plain JSON of a scenario.

    ideal                                         free and always right
    mtp:0.1,alpha=0.75                            kind, cost of a pass, acceptance
    dflash:0.1,block=15,al=4.4,draft_length=15    acceptance by a measured AL (incl. bonus)
    fast=dflash:./my-drafter,trace=eval.json      a name; cost by its config, a recorded run
    suffix,seconds=2e-5,unconditional=0.6,0.4     rates by position

A VALUE is a cost where it is a number, and else the drafter's folder or config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.spec_line import GRAMMAR, SpecLine
from paceline.roofline.acceptance import StatedAcceptance, Trace
from paceline.roofline.acceptance.document import LISTS, numbers_of, numbers_or_text
from paceline.roofline.architecture import Architecture, load_config, model_names
from paceline.roofline.recorded import read_trace
from paceline.roofline.scenario.documents import StatedModel
from paceline.roofline.scenario.kinds import KINDS
from paceline.roofline.scenario.scenario import read_model

COSTS = ("seconds", "block", "max_draft", "checkpoint", "cost")
ACCEPTANCE = (*sorted(StatedAcceptance.model_fields), "trace")


def drafter_of_line(text: str, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read the object of `drafters` that a line stands for.

    `otherwise` is the acceptance of drafters that state none. Raises InvalidRequest.
    """
    line = SpecLine.parse(text, LISTS)
    if line.kind not in KINDS or line.name == "":
        expected = f"{GRAMMAR} with a kind of {', '.join(KINDS)}"
        raise InvalidRequest("drafter", text, expected)
    drafter: dict[str, Any] = {"kind": line.kind, **({"name": line.name} if line.name else {})}
    options = {key: numbers_or_text(key, values) for key, values in line.options.items()}
    if line.value:
        drafter |= _cost_of(line.value)
    acceptance = _acceptance({k: v for k, v in options.items() if k not in COSTS})
    for key in COSTS:
        if key in options:
            if key in drafter and key != "checkpoint":
                raise InvalidRequest("drafter", text, f"{key} once")
            drafter[key] = options[key]
    if not acceptance and KINDS[line.kind].costs:
        acceptance = dict(otherwise or {})
    return {**drafter, "acceptance": acceptance} if acceptance else drafter


def acceptance_of_line(text: str) -> dict[str, Any]:
    """Read `alpha=0.8`, `al=3.5,draft_length=7`, `trace=evaluation.json` … as JSON."""
    return _acceptance(numbers_of("acceptance", text))


def _acceptance(options: Mapping[str, Any]) -> dict[str, Any]:
    for key in options:
        if key not in ACCEPTANCE:
            expected = "one of " + ", ".join((*COSTS, *ACCEPTANCE))
            raise InvalidRequest("drafter", key, expected)
    if "trace" not in options:
        return dict(options)
    if len(options) > 1:
        raise InvalidRequest("acceptance", sorted(options), "trace alone")
    return _trace_as_json(read_trace(Path(str(options["trace"]))))


def _trace_as_json(trace: Trace) -> dict[str, Any]:
    drafted = trace.drafted
    return {
        "accepted": list(trace.accepted),
        "drafted": drafted if isinstance(drafted, int) else list(drafted),
    }


def model_of_word(word: str) -> dict[str, Any]:
    """Read `model` and `checkpoint` of a scenario: a listed name, a folder or a config.json."""
    if word.lower() in (name.lower() for name in model_names()):
        return {"model": word}
    path = Path(word).expanduser()
    if not path.exists():
        expected = f"a folder, a config.json, or one of {', '.join(model_names())}"
        raise InvalidRequest("model", word, expected)
    folder = path if path.is_dir() else path.parent
    config = load_config(path)
    return {"model": {"config": config, "name": folder.resolve().name}, "checkpoint": str(folder)}


def architecture_of_word(word: str, precision: Any = None) -> Architecture:
    """Read the architecture of a listed name, a folder or a config.json."""
    model = model_of_word(word)["model"]
    return read_model(
        model if isinstance(model, str) else StatedModel.read(model, "model"), precision
    )


def _cost_of(value: str) -> dict[str, Any]:
    try:
        return {"cost": float(value)}
    except ValueError:
        path = Path(value).expanduser()
    if not path.exists():
        raise InvalidRequest("drafter", value, "a cost (a number), a folder or a config.json")
    folder = path if path.is_dir() else path.parent
    return {"config": load_config(path), "checkpoint": str(folder)}
