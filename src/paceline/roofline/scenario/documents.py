"""A scenario as users state it, in JSON: a model, a device, and drafters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Expected, OneOf, OneOfTypes
from paceline.roofline.acceptance import StatedAcceptance
from paceline.roofline.device import Calibration, Hardware
from paceline.roofline.scenario.kinds import KINDS

LONGEST = 64  # drafted tokens
MOST_BATCH, MOST_CONTEXT = 65_536, 2**24
MOST_DRAFTERS, MOST_POINTS = 3, 64
DRAFTERS = f"a list of 1 to {MOST_DRAFTERS} drafters"
BLOCK = f"tokens that one pass drafts, 1 to {LONGEST}, the anchor not counted"


def _check_drafters(drafters: list[StatedDrafter]) -> list[StatedDrafter]:
    if not drafters:
        raise ValueError(DRAFTERS)
    return drafters


Checkpoint = Annotated[str, Field(pattern=r"\S"), Expected("a folder or a hub id")]
Count = Annotated[
    int, Field(ge=1, le=MOST_BATCH), Expected(f"a whole number from 1 to {MOST_BATCH}")
]
Context = Annotated[
    int, Field(ge=0, le=MOST_CONTEXT), Expected(f"a whole number from 0 to {MOST_CONTEXT}")
]
Points = OneOfTypes((list,), f"a list of up to {MOST_POINTS} whole numbers")
Counts = Annotated[list[Count], AtMost(MOST_POINTS, "whole numbers"), Points]
Contexts = Annotated[list[Context], AtMost(MOST_POINTS, "whole numbers"), Points]
Devices = Annotated[int, Field(ge=1, le=1024), Expected("a whole number of devices, 1 to 1024")]
DraftLength = Annotated[int, Field(ge=1, le=LONGEST), Expected(f"a draft length, 1 to {LONGEST}")]
Name = Annotated[str, Field(pattern=r"\S", max_length=64), Expected("a name of up to 64 letters")]
Share = Annotated[float, Field(ge=0, le=100), Expected("a share of the target's step, 0 or more")]
Seconds = Annotated[float, Field(ge=0, le=60), Expected("seconds, 0 or more")]
BlockSize = Annotated[int, Field(ge=1, le=LONGEST), Expected(BLOCK)]
Config = Annotated[
    str | dict[str, object], OneOfTypes((str, dict), "a config.json, or a listed model's name")
]
Precision = Annotated[
    str | dict[str, object],
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

    model_config = ConfigDict(use_attribute_docstrings=True)

    config: dict[str, object]
    """a Hugging Face config.json"""
    name: str = "model"
    """its name in the answer"""


class StatedDrafter(Document):
    """A drafter: its cost, and how well it drafts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Annotated[str, OneOf(tuple(KINDS))] = Field(description=", ".join(KINDS))
    name: Name = ""
    """default: the kind"""
    cost: Share | None = None
    """cost of one pass, as a share of the target's AR step"""
    config: Config | None = None
    """the drafter's config, or a listed model's name, to compute the cost from (eagle3,
    draft_model, dflash); mtp without a cost is computed from the model's own layer"""
    seconds: Seconds | None = None
    """seconds of one look-up (ngram, suffix; default 0)"""
    block: BlockSize | None = None
    """tokens that one pass drafts (dflash without a config; the anchor is not counted: 15 for what
    checkpoints call a block of 16)"""
    max_draft: DraftLength | None = None
    """its longest draft, where that is less than the scenario's"""
    checkpoint: Checkpoint | None = None
    """folder or hub id, for the launch lines"""
    acceptance: StatedAcceptance | None = None
    """how well it drafts; ideal accepts all by default"""


class StatedScenario(Document):
    """A question to the roofline: what would speculation buy?"""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: Annotated[
        str | StatedModel,
        OneOfTypes((str, dict), 'a listed name, or {"config": {…}} with a config.json'),
    ]
    """a listed name, or `{"config": {a Hugging Face config.json}, "name": "mine"}`"""
    hardware: Device
    """a listed name, or an object with the fields of a device"""
    drafters: Annotated[
        list[Annotated[StatedDrafter, OneOfTypes((dict,), "an object with at least a kind")]],
        AtMost(MOST_DRAFTERS, "drafters"),
        OneOfTypes((list,), DRAFTERS),
        AfterValidator(_check_drafters),
    ] = Field(description=f"1 to {MOST_DRAFTERS} drafters")
    checkpoint: Checkpoint | None = None
    """the model's folder or hub id, for the launch lines; default MODEL"""
    precision: Precision | None = None
    """one name for all matrices ("bf16", "fp8", …), or an object by component; default: the
    config's"""
    batch: Count = 1
    """requests decoded together"""
    context: Context = 4096
    """tokens in each request's cache"""
    tensor_parallel: Devices | None = None
    """devices that share each layer; default: the fewest that hold the model and one request"""
    data_parallel: Devices = 1
    """groups of such devices that share the batch out"""
    expert_parallel: Devices = 1
    """devices among which whole experts are dealt; 1 cuts each expert up (loads are taken as even:
    without data_parallel it changes the launch lines alone)"""
    correlation: Correlated = "uniform"
    """experts of neighbouring tokens: uniform (drawn independently, the most that can be touched)
    or measured (as alike as in real text)"""
    snapshots: Snapshots = "per-token"
    """of recurrent states when verifying: per-token or replay"""
    state_precision: StateFormat | None = None
    """format of recurrent states: bf16 or fp32; default: the config's"""
    max_draft: DraftLength = Field(
        default=16, description=f"longest draft length looked at, 1 to {LONGEST}"
    )
    calibration: Numbers | None = None
    """a preset's name, or the object that `paceline roofline fit` writes; default: sglang-b200 for
    GPUs of NVIDIA and AMD, else the preset of the nearest kind of model"""
    batches: Counts | None = None
    """of `by_batch` and `heat_map`; default 1, 2, 4, … 1024 and `batch`"""
    contexts: Contexts | None = None
    """of `by_context`; default none, and then there is no such view"""
