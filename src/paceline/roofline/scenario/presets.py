"""Scenarios to start from, each with a name and what to see in it: published measurements, a large
model with experts, and what ships."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from typing_extensions import TypedDict  # pydantic reads these before Python 3.12

from paceline.roofline.scenario.published import (
    PublishedRow,
    PublishedTable,
    drafter_config,
    published_tables,
)

NAMES = {"dflash": "DFlash", "mtp": "MTP"}
U_SHAPE = (
    "Every drafted token wakes experts of its own, whose weights have to be read, so a few "
    "requests lose part of the gain; once the batch wakes nearly all experts anyway, drafts add "
    "little, and the gain rises again until arithmetic is the limit."
)
# what its card and docs/benchmarks-training.md have of the drafter that ships
SHIPPED_AL = 2.17
# fitted to a third of the steps that were measured on two cores (docs/benchmarks-training.md)
TWO_CORES = {
    "memory_efficiency": 0.78,
    "attention_memory_efficiency": 0.78,
    "sampling_efficiency": 0.78,
    "compute_efficiency": 1.15,
    "attention_compute_efficiency": 0.64,
    "overlap": 0.79,
}


class Preset(TypedDict):
    """A scenario (`StatedScenario`) with a name; `see` are the words to show beside its answer."""

    name: str
    see: str
    scenario: dict[str, object]


@cache
def listed_presets() -> tuple[Preset, ...]:
    """Return the presets, in the order in which they are shown."""
    dense, experts = _table("z-lab card, 27B"), _table("z-lab card, 35B-A3B")
    chat, code = _drafted(dense, "MT-Bench", 15), _drafted(dense, "HumanEval", 15)
    sparse = _drafted(experts, "MT-Bench", 7)
    speedups = experts.speedups(sparse[0]) or []
    by_batch = {size: f"{ratio:.2f}×" for size, ratio in zip(experts.batch, speedups, strict=True)}
    return (
        {
            "name": "Qwen3.5-27B, chat",
            "see": f"A model card's drafters on MT-Bench: {_lengths(chat)}. The dots are the "
            "speeds that the card measured. Raise the batch, and the best draft gets shorter.",
            "scenario": _published(dense, chat),
        },
        {
            "name": "Qwen3.5-27B, code",
            "see": f"The same drafters on HumanEval: {_lengths(code)}. Code is easier to draft "
            "than chat, so the same drafter on the same machine gains more.",
            "scenario": _published(dense, code),
        },
        {
            "name": "Qwen3.6-35B-A3B, chat",
            "see": "The U-shape in “Best speedup by batch”. The model's card measured it too: "
            f"{by_batch[1]} for one request, {by_batch[8]} at 8, {by_batch[32]} at 32, with "
            f"{_lengths(sparse)}. {U_SHAPE}",
            "scenario": _published(experts, sparse),
        },
        {
            "name": "DeepSeek-V4-Pro, 8 devices",
            "see": f"The U-shape in “Best speedup by batch”, deepest at 8 to 16 requests. "
            f"{U_SHAPE} α and costs are assumptions here. Pin its curves and choose the model "
            "Qwen3.5-27B: without experts the gain only falls.",
            "scenario": {
                "model": "DeepSeek-V4-Pro",
                "hardware": "B200",
                "tensor_parallel": 8,
                "batch": 8,
                "drafters": [
                    {**_assumed("dflash", 0.89), "block": 15},
                    _assumed("mtp", 0.75),
                ],
            },
        },
        {
            "name": "SmolLM2 on two CPU cores",
            "see": f"The drafter that ships, with its measured AL of {SHIPPED_AL} incl. bonus on "
            "the demo's prompts, and a calibration fitted to measured steps. Drafts pay for one "
            "request and hardly for four: this CPU has no arithmetic to spare.",
            "scenario": {
                "model": "SmolLM2-135M-Instruct",
                "hardware": "Xeon-2-cores",
                "context": 256,
                "max_draft": 7,
                "calibration": TWO_CORES,
                "drafters": [
                    {
                        "kind": "dflash",
                        "name": "DFlash",
                        "config": drafter_config("SmolLM2-135M-DFlash"),
                        "acceptance": {"al": SHIPPED_AL, "draft_length": 7},
                    }
                ],
            },
        },
    )


def _table(name: str) -> PublishedTable:
    return next(table for table in published_tables() if table.name == name)


def _drafted(table: PublishedTable, set_: str, draft_length: int) -> list[PublishedRow]:
    """Return the rows with drafts of one set and draft length, the longest AL first."""
    rows = [row for row in table.rows if row.set == set_ and row.draft_length == draft_length]
    return sorted(rows, key=lambda row: -row.acceptance_length)


def _lengths(rows: Sequence[PublishedRow]) -> str:
    """Return the AL of rows in words."""
    lengths = [f"{NAMES[str(row.drafter)]} {row.acceptance_length:.2f}" for row in rows]
    return f"AL incl. bonus {', '.join(lengths)}"


def _published(table: PublishedTable, rows: Sequence[PublishedRow]) -> dict[str, object]:
    """Return the scenario of published rows, one drafter each, at one request."""
    first = table.scenario(rows[0], 1)
    shared = {name: value for name, value in first.items() if name != "batches"}
    drafters = [{**table.drafter(row), "name": NAMES[str(row.drafter)]} for row in rows]
    return {**shared, "drafters": drafters}


def _assumed(kind: str, alpha: float) -> dict[str, object]:
    """Return a drafter whose passes take a tenth of an AR step."""
    return {"kind": kind, "name": NAMES[kind], "cost": 0.1, "acceptance": {"alpha": alpha}}
