"""A scenario as users state it, in JSON: a model, a device, and drafters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Expected, OneOfTypes
from paceline.roofline.acceptance import StatedAcceptance
from paceline.roofline.device import Calibration, Hardware
from paceline.roofline.scenario.kinds import KINDS

LONGEST = 64  # drafted tokens
MOST_BATCH, MOST_CONTEXT = 65_536, 2**24
MOST_DRAFTERS, MOST_POINTS = 3, 64
DRAFTERS = f"a list of 1 to {MOST_DRAFTERS} drafters"
POINTS = f"a list of up to {MOST_POINTS} whole numbers"
BLOCK = f"tokens that one pass drafts, 1 to {LONGEST}, the anchor not counted"


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"one of {', '.join(KINDS)}")
    return kind


def _check_drafters(drafters: list[StatedDrafter]) -> list[StatedDrafter]:
    if not drafters:
        raise ValueError(DRAFTERS)
    return drafters


def _count(low: int, high: int) -> Any:
    return Field(ge=low, le=high), Expected(f"a whole number from {low} to {high}")


MODEL = 'a listed name, or {"config": {…}} with a config.json'
Checkpoint = Annotated[str, Field(pattern=r"\S"), Expected("a folder or a hub id")]
Count = Annotated[int, *_count(1, MOST_BATCH)]
Context = Annotated[int, *_count(0, MOST_CONTEXT)]
Counts = Annotated[list[Count], AtMost(MOST_POINTS, "whole numbers"), OneOfTypes((list,), POINTS)]
Contexts = Annotated[
    list[Context], AtMost(MOST_POINTS, "whole numbers"), OneOfTypes((list,), POINTS)
]
Devices = Annotated[int, Field(ge=1, le=1024), Expected("a whole number of devices, 1 to 1024")]
DraftLength = Annotated[int, Field(ge=1, le=LONGEST), Expected(f"a draft length, 1 to {LONGEST}")]
Name = Annotated[str, Field(pattern=r"\S", max_length=64), Expected("a name of up to 64 letters")]
Share = Annotated[float, Field(ge=0, le=100), Expected("a share of the target's step, 0 or more")]
Seconds = Annotated[float, Field(ge=0, le=60), Expected("seconds, 0 or more")]
BlockSize = Annotated[int, Field(ge=1, le=LONGEST), Expected(BLOCK)]
Config = Annotated[
    str | dict[str, Any], OneOfTypes((str, dict), "a config.json, or a listed model's name")
]
Precision = Annotated[
    str | dict[str, Any],
    OneOfTypes((str, dict), "a format's name, or an object with names for parts"),
]
Device = Annotated[
    str | Hardware, OneOfTypes((str, dict), "a listed name, or an object that describes a device")
]
Numbers = Annotated[
    str | Calibration, OneOfTypes((str, dict), "a preset's name, or an object with its numbers")
]
Correlated = Annotated[Literal["uniform", "measured"], Expected("one of uniform, measured")]
Snapshots = Annotated[Literal["per-token", "replay"], Expected("one of per-token, replay")]
StateFormat = Annotated[Literal["bf16", "fp32"], Expected("one of None, bf16, fp32")]


class StatedModel(Document):
    """A model of your own."""

    config: dict[str, Any] = Field(description="a Hugging Face config.json")
    name: str = Field(default="model", description="its name in the answer")


class StatedDrafter(Document):
    """A drafter: its cost, and how well it drafts."""

    kind: Annotated[str, AfterValidator(_check_kind)] = Field(description=", ".join(KINDS))
    name: Name = Field(default="", description="default: the kind")
    cost: Share | None = Field(
        default=None, description="cost of one pass, as a share of the target's AR step"
    )
    config: Config | None = Field(
        default=None,
        description="the drafter's config, or a listed model's name, to compute the cost from "
        "(eagle3, draft_model, dflash); mtp without a cost is computed from the model's own layer",
    )
    seconds: Seconds | None = Field(
        default=None, description="seconds of one look-up (ngram, suffix; default 0)"
    )
    block: BlockSize | None = Field(
        default=None,
        description="tokens that one pass drafts (dflash without a config; the anchor is not "
        "counted: 15 for what checkpoints call a block of 16)",
    )
    max_draft: DraftLength | None = Field(
        default=None, description="its longest draft, where that is less than the scenario's"
    )
    checkpoint: Checkpoint | None = Field(
        default=None, description="folder or hub id, for the launch lines"
    )
    acceptance: StatedAcceptance | None = Field(
        default=None, description="how well it drafts; ideal accepts all by default"
    )


Drafters = Annotated[
    list[Annotated[StatedDrafter, OneOfTypes((dict,), "an object with at least a kind")]],
    AtMost(MOST_DRAFTERS, "drafters"),
    OneOfTypes((list,), DRAFTERS),
    AfterValidator(_check_drafters),
]


class StatedScenario(Document):
    """A question to the roofline: what would speculation buy?"""

    model: Annotated[str | StatedModel, OneOfTypes((str, dict), MODEL)] = Field(
        description='a listed name, or `{"config": {a Hugging Face config.json}, "name": "mine"}`'
    )
    hardware: Device = Field(description="a listed name, or an object with the fields of a device")
    drafters: Drafters = Field(description=f"1 to {MOST_DRAFTERS} drafters")
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="the model's folder or hub id, for the launch lines; default MODEL",
    )
    precision: Precision | None = Field(
        default=None,
        description='one name for all matrices ("bf16", "fp8", …), or an object by component; '
        "default: the config's",
    )
    batch: Count = Field(default=1, description="requests decoded together")
    context: Context = Field(default=4096, description="tokens in each request's cache")
    tensor_parallel: Devices = Field(default=1, description="devices that share each layer")
    data_parallel: Devices = Field(
        default=1, description="groups of such devices that share the batch out"
    )
    expert_parallel: Devices = Field(
        default=1,
        description="devices among which whole experts are dealt; 1 cuts each expert up (loads are "
        "taken as even: without data_parallel it changes the launch lines alone)",
    )
    correlation: Correlated = Field(
        default="uniform",
        description="experts of neighbouring tokens: uniform (drawn independently, the most that "
        "can be touched) or measured (as alike as in real text)",
    )
    snapshots: Snapshots = Field(
        default="per-token", description="of recurrent states when verifying: per-token or replay"
    )
    state_precision: StateFormat | None = Field(
        default=None, description="format of recurrent states: bf16 or fp32; default: the config's"
    )
    max_draft: DraftLength = Field(
        default=16, description=f"longest draft length looked at, 1 to {LONGEST}"
    )
    calibration: Numbers | None = Field(
        default=None,
        description="a preset's name, or the object that `paceline roofline fit` writes; default: "
        "the preset of the nearest kind of model",
    )
    batches: Counts | None = Field(
        default=None,
        description="of `by_batch` and `heat_map`; default 1, 2, 4, … 1024 and `batch`",
    )
    contexts: Contexts | None = Field(
        default=None, description="of `by_context`; default none, and then there is no such view"
    )
