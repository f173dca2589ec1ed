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

from paceline.core import InvalidRequest
from paceline.core.names import local_path
from paceline.core.spec_line import GRAMMAR, SpecLine, parse_options
from paceline.roofline.acceptance import StatedAcceptance
from paceline.roofline.architecture import load_config
from paceline.roofline.scenario.kinds import KINDS
from paceline.roofline.timing import read_trace

COSTS = ("seconds", "block", "max_draft", "checkpoint", "cost")
ACCEPTANCE = (*sorted(StatedAcceptance.model_fields), "trace")
LISTS = ("conditional", "unconditional", "beta", "accepted", "drafted")
Json = dict[str, object]


def drafter_of_line(text: str, otherwise: Mapping[str, object] | None = None) -> Json:
    """Read the object of `drafters` that a line stands for.

    `otherwise` is the acceptance of drafters that state none. Raises InvalidRequest.
    """
    line = SpecLine.parse(text, LISTS)
    if line.kind not in KINDS or line.name == "":
        expected = f"{GRAMMAR} with a kind of {', '.join(KINDS)}"
        raise InvalidRequest("drafter", text, expected)
    drafter: Json = {"kind": line.kind, **({"name": line.name} if line.name else {})}
    if line.value:
        drafter |= _cost_of(line.value)
    options = _numbers(line.options)
    acceptance = _acceptance({k: v for k, v in options.items() if k not in COSTS})
    for key in COSTS:
        if key in options:
            if key in drafter and key != "checkpoint":
                raise InvalidRequest("drafter", text, f"{key} once")
            drafter[key] = options[key]
    if not acceptance and KINDS[line.kind].costs:
        acceptance = dict(otherwise or {})
    return {**drafter, "acceptance": acceptance} if acceptance else drafter


def acceptance_of_line(text: str) -> Json:
    """Read `alpha=0.8`, `al=3.5,draft_length=7`, `trace=evaluation.json` … as JSON."""
    return _acceptance(_numbers(parse_options("acceptance", text, LISTS)))


def _acceptance(options: Json) -> Json:
    for key in options:
        if key not in ACCEPTANCE:
            expected = "one of " + ", ".join((*COSTS, *ACCEPTANCE))
            raise InvalidRequest("drafter", key, expected)
    if "trace" not in options:
        return options
    if len(options) > 1:
        raise InvalidRequest("acceptance", sorted(options), "trace alone")
    return {**read_trace(Path(str(options["trace"])))}


def _numbers(options: Mapping[str, tuple[str, ...]]) -> Json:
    """Read the values of options as numbers, in a list where the key may hold one; what is no
    number stays text."""
    values = {key: [_number_or_text(text) for text in texts] for key, texts in options.items()}
    return {key: listed if key in LISTS else listed[0] for key, listed in values.items()}


def _number_or_text(text: str) -> float | int | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _cost_of(value: str) -> Json:
    try:
        return {"cost": float(value)}
    except ValueError:
        expected = "a cost (a number), a folder or a config.json"
    config, folder = _config_in(value, InvalidRequest("drafter", value, expected))
    return {"config": config, "checkpoint": str(folder)}


def _config_in(word: str, absent: InvalidRequest) -> tuple[Json, Path]:
    """Return the config in a folder or a file, and its folder. Raises `absent` for neither."""
    path = local_path(word, absent.field)
    if not path.exists():
        raise absent
    return load_config(path), path if path.is_dir() else path.parent
