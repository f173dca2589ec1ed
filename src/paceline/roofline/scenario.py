"""What speculation would buy: everything a user states, and the answer as plain JSON.

`predict` is what `paceline predict --json` writes and what the page's calculator draws.

**Stated.** `model`, `hardware` and `drafters` must be there, everything else has a default; a key
that is not listed is refused.

    model            a listed name, or {"config": {a Hugging Face config.json}, "name": "mine"}
    checkpoint       the model's folder or hub id, for the launch lines; default MODEL
    hardware         a listed name, or an object with the fields of a Hardware
    precision        one name for all ("bf16", "fp8", …), or an object by component; default: what
                     the config says
    batch            requests decoded together; default 1
    context          tokens in each request's cache; default 4096
    tensor_parallel  devices that share each layer; default 1
    data_parallel    groups of such devices that share the batch out; default 1
    expert_parallel  devices among which whole experts are dealt; default 1, each is cut up (loads
                     are taken as even: without data_parallel it changes the launch lines alone)
    correlation      experts of neighbouring tokens: "uniform" (default; drawn independently, the
                     most that can be touched) or "measured" (as alike as in real text)
    snapshots        of recurrent states when verifying: "per-token" (default) or "replay"
    state_precision  format of those states, as "bf16"; default: the config's. These four are
                     refused where the model has no such part
    max_draft        longest draft length looked at, 1 to 64; default 16
    calibration      a preset's name, or the object that `paceline roofline fit` writes
    drafters         1 to 3 objects:
      kind           ideal, mtp, eagle3, draft_model, dflash, ngram, suffix
      name           default: the kind
      cost           of one pass, as a fraction of the target's AR step; or
      config         the drafter's own config, or a listed model's name, to compute it from (eagle3,
                     draft_model, dflash); mtp without a cost: from the model's own draft layer; or
      seconds        of one look-up (ngram, suffix; default 0)
      block          tokens that one pass drafts (dflash without a config; the anchor is not
                     counted: 15 for what checkpoints call a block of 16)
      max_draft      its longest draft, where that is less than the question's
      checkpoint     folder or hub id, for the launch lines
      acceptance     {"alpha": 0.8}, {"al": 3.5, "draft_length": 7} (al incl. bonus),
                     {"conditional": [0.8, 0.75]}, {"unconditional": [0.8, 0.6]},
                     {"first": 0.77, "al": 4.42, "draft_length": 15}, {"beta": [a, b]},
                     {"accepted": [0, 3, 1], "drafted": 7}; for ideal also nothing: all of it
    batches          of `by_batch` and `heat_map`; default 1, 2, 4, … 1024 and `batch`
    contexts         of `by_context`; default none, and then there is no such view

**Answer.** Times are milliseconds, AL counts the bonus token. Two tiers always: "ceiling" is the
pure roofline, "calibrated" has efficiencies and overheads. Lists that belong together have equal
lengths; what does not fit the memory is null. "ar" is speculation off.

    format           "paceline-prediction/1"
    scenario         what was stated, with the defaults filled in
    model            name, parameters, active_parameters, weight_bytes, kv_bytes_per_token,
                     state_bytes (of one request)
    hardware         name, memory, memory_bandwidth, devices
    calibration      name, and its numbers
    capacity         max_batch at this context
    ar.TIER          step_ms, tpot_ms, tokens_per_second_per_request, tokens_per_second_per_device,
                     components {name: ms}
    ar_by_batch      batch, and under TIER tokens_per_second_per_request and …_per_device
    drafters[i]
      name, kind, block, max_draft, acceptance
      curve          draft_length 0 … max_draft, acceptance_length (the toy model's speedup), and
                     under TIER: speedup, step_ms, verify_ms, draft_ms, tpot_ms,
                     tokens_per_second_per_request, tokens_per_second_per_device,
                     break_even_length (the AL at which this draft length is as fast as AR)
      optimum.TIER   one row of the curve with draft_length and acceptance_length, and
                     components {name: ms, "draft": ms}
      by_batch       batch, max_draft (the longest that fits there), and under TIER what is best:
                     draft_length, acceptance_length, speedup, tpot_ms,
                     tokens_per_second_per_request, tokens_per_second_per_device
                     (the last two against each other are the Pareto front)
      by_context     the same over context, or null
      heat_map       batch, draft_length, and under TIER rows of speedups, [batch][draft_length]
      commits        P(a round commits 1, 2, … tokens) at the calibrated optimum
      flags          {"paceline", "vllm", "sglang"}: lines to launch with at the calibrated
                     optimum; null where the engine has no such drafter
    notes            sentences to show beside the numbers
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer
from paceline.roofline.architecture import Architecture, model_config, read_architecture
from paceline.roofline.calibration import Calibration, preset
from paceline.roofline.components import Experts, State
from paceline.roofline.correlation import MEASURED, UNIFORM
from paceline.roofline.hardware import Hardware, hardware
from paceline.roofline.stated import LONGEST, StatedDrafter, read_drafter, reading_config
from paceline.roofline.work import Options

FORMAT = "paceline-prediction/1"
BATCHES = tuple(2**power for power in range(11))
MOST_POINTS = 64  # of a list of batches or contexts
MOST_BATCH, MOST_CONTEXT = 65_536, 2**24
DEFAULTS: dict[str, Any] = {
    "checkpoint": None,
    "precision": None,
    "batch": 1,
    "context": 4096,
    "tensor_parallel": 1,
    "data_parallel": 1,
    "expert_parallel": 1,
    "correlation": "uniform",
    "snapshots": "per-token",
    "state_precision": None,
    "max_draft": 16,
    "calibration": None,
    "batches": None,
    "contexts": None,
}
CORRELATIONS = {"uniform": UNIFORM, "measured": MEASURED}
ONLY_WITH = (
    ("expert_parallel", Experts, "experts"),
    ("correlation", Experts, "experts"),
    ("snapshots", State, "recurrent states"),
    ("state_precision", State, "recurrent states"),
)
REQUIRED = ("model", "hardware", "drafters")
MOST_DRAFTERS = 3


@dataclass(frozen=True)
class Scenario:
    """Everything a user states, checked. `stated` is the same as plain JSON, defaults filled in."""

    architecture: Architecture
    hardware: Hardware
    drafters: tuple[StatedDrafter, ...]
    checkpoint: str | None
    batch: int
    context: int
    options: Options
    max_draft: int
    calibration_name: str
    calibration: Calibration
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    stated: Mapping[str, Any]

    @classmethod
    def from_dict(cls, stated: Any) -> Scenario:
        """Raises InvalidRequest that names the field, ModelError for a config that is not known."""
        _check_keys(stated)
        filled = {**DEFAULTS, **stated}
        architecture = read_model(filled["model"], filled["precision"])
        name, calibration = _calibration(filled["calibration"], architecture)
        one_device = "a whole number of devices, 1 to 1024"
        check_integer("tensor_parallel", filled["tensor_parallel"], 1, 1024, one_device)
        length = f"a draft length, 1 to {LONGEST}"
        check_integer("max_draft", filled["max_draft"], 1, LONGEST, length)
        batch = _count("batch", filled["batch"], MOST_BATCH, 1)
        reach = architecture.max_context or MOST_CONTEXT
        context = _count("context", filled["context"], reach, 0)
        batches = BATCHES if filled["batches"] is None else filled["batches"]
        checkpoint = filled["checkpoint"]
        if checkpoint is not None and not isinstance(checkpoint, str):
            raise InvalidRequest("checkpoint", checkpoint, "a folder or a hub id")
        drafters = _drafters(filled["drafters"], architecture)
        return cls(
            architecture=architecture,
            hardware=read_hardware(filled["hardware"]),
            drafters=drafters,
            checkpoint=checkpoint,
            batch=batch,
            context=context,
            options=_options(filled, architecture, drafters),
            max_draft=filled["max_draft"],
            calibration_name=name,
            calibration=calibration,
            batches=_counts("batches", batches, batch, MOST_BATCH, 1),
            contexts=_counts("contexts", filled["contexts"] or (), None, reach, 0),
            stated={**filled, "calibration": filled["calibration"] or name},
        )


def predict(stated: Any) -> dict[str, Any]:
    """The answer to what is stated; both as this module's docstring says.

    Raises InvalidRequest that names the field, or ModelError for a config that is not known.
    """
    from paceline.roofline.prediction import answer

    return answer(Scenario.from_dict(stated))


# -- fields ----------------------------------------------------------------------------------------


def _check_keys(stated: Any) -> None:
    known = (*REQUIRED, *DEFAULTS)
    if not isinstance(stated, Mapping):
        raise InvalidRequest("scenario", stated, "an object with " + ", ".join(REQUIRED))
    for key in stated:
        if key not in known:
            raise InvalidRequest(str(key), stated[key], "one of " + ", ".join(known))
    try:
        json.dumps(stated, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("scenario", str(error), "plain JSON, without NaN") from error
    for key in REQUIRED:
        if key not in stated:
            raise InvalidRequest(key, None, "a value: it has no default")


def read_model(model: Any, precision: Any) -> Architecture:
    if isinstance(model, str):
        return read_architecture(model_config(model), precision=precision, name=model)
    if isinstance(model, Mapping) and isinstance(model.get("config"), Mapping):
        name = model.get("name", "model")
        if set(model) - {"config", "name"} or not isinstance(name, str):
            raise InvalidRequest("model", sorted(model), "config and name, a text, alone")
        config: Mapping[str, Any] = model["config"]
        return reading_config(
            "model.config",
            config,
            lambda: read_architecture(config, precision=precision, name=name),
        )
    raise InvalidRequest("model", model, 'a listed name, or {"config": {…}} with a config.json')


def _options(
    filled: Mapping[str, Any], target: Architecture, drafters: Sequence[StatedDrafter]
) -> Options:
    """How the forward is run; uncalibrated. What would change nothing is refused: it was meant for
    another model."""
    models = [target, *(each.cost.model for each in drafters if each.cost.model is not None)]
    for name, part, what in ONLY_WITH:
        if filled[name] != DEFAULTS[name] and not any(model.has(part) for model in models):
            expected = f"{DEFAULTS[name] or 'none'}: {target.name} has no {what}"
            raise InvalidRequest(name, filled[name], expected)
    correlation = filled["correlation"]
    if not isinstance(correlation, str) or correlation not in CORRELATIONS:
        raise InvalidRequest("correlation", correlation, f"one of {', '.join(CORRELATIONS)}")
    for field in ("snapshots", "state_precision"):
        if filled[field] is not None and not isinstance(filled[field], str):
            raise InvalidRequest(field, filled[field], "a word")
    return Options(
        correlation=CORRELATIONS[correlation],
        **{name: filled[name] for name in ("tensor_parallel", "data_parallel", "expert_parallel",
                                           "snapshots", "state_precision")},
    )  # fmt: skip


def read_hardware(stated: Any) -> Hardware:
    if isinstance(stated, str):
        return hardware(stated)
    if isinstance(stated, Mapping):
        return Hardware.from_dict(stated)
    raise InvalidRequest("hardware", stated, "a listed name, or an object that describes a device")


def _calibration(stated: Any, architecture: Architecture) -> tuple[str, Calibration]:
    """Without one, the preset that was fitted to the nearest kind of model."""
    if stated is None:
        stated = "hybrid-sglang" if architecture.state_bytes() else "dense-tuned"
    if isinstance(stated, str):
        return stated, preset(stated)
    if isinstance(stated, Mapping):
        values = stated.get("calibration", stated)  # a file of `roofline fit` tells more than that
        if isinstance(values, Mapping):
            return "fitted", Calibration.from_dict(values)
    raise InvalidRequest("calibration", stated, "a preset's name, or an object with its numbers")


def _drafters(stated: Any, target: Architecture) -> tuple[StatedDrafter, ...]:
    if isinstance(stated, str) or not isinstance(stated, Sequence) or not stated:
        raise InvalidRequest("drafters", stated, f"a list of 1 to {MOST_DRAFTERS} drafters")
    if len(stated) > MOST_DRAFTERS:
        raise InvalidRequest("drafters", len(stated), f"at most {MOST_DRAFTERS} drafters")
    found = tuple(
        read_drafter(f"drafters[{index}]", each, target) for index, each in enumerate(stated)
    )
    names = [drafter.name for drafter in found]
    if len(set(names)) < len(names):
        raise InvalidRequest("drafters", names, "a name of its own for each drafter")
    return found


def _count(field: str, value: Any, high: int, low: int) -> int:
    check_integer(field, value, low, high, f"a whole number from {low} to {high}")
    assert isinstance(value, int)
    return value


def _counts(field: str, values: Any, also: int | None, high: int, low: int) -> tuple[int, ...]:
    """Sorted, each once, together with `also`."""
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) > MOST_POINTS:
        raise InvalidRequest(field, values, f"a list of up to {MOST_POINTS} whole numbers")
    found = {_count(field, value, high, low) for value in values}
    return tuple(sorted(found | ({also} if also is not None else set())))
