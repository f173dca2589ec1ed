"""Say how far a preset's calibrated numbers may be from measured ones, by published tables.

The bands were measured: `tests/roofline/test_published.py` holds each published table to its band,
and `python benchmarks/published.py` prints the errors.
"""

from __future__ import annotations

from functools import cache

from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.architecture.components import Experts
from paceline.roofline.architecture.work import Workload
from paceline.roofline.device import Hardware
from paceline.roofline.scenario.answer import Evidence
from paceline.roofline.scenario.published import published_tables

GPU = "sglang-b200"  # the preset that was fitted with drafts
IN_FIT = 0.20  # the largest error of predicted ÷ measured − 1 at the averages that it was fitted to
ELSEWHERE = 0.35  # and that of 13 of 14 points of other models and GPUs
MEASURED_AGAIN = (
    0.42  # the most that another source measured above, of a model that it was fitted to
)
FITTED = "fitted"  # the name of a calibration of one's own
SET_BY_AR = ("dense-tuned", "hybrid-sglang")
MOST_CONTEXT = 8192  # four times that of the tables that it was fitted to
MOST_EXPERTS_BATCH = 8  # of models with experts that it was not fitted to: the next, 32, is far off
FITTED_KINDS = ("mtp", "dflash")


def default_preset(hardware: Hardware, model: Architecture) -> str:
    """Return the preset that was measured nearest to the device and the model."""
    if hardware.kind in ("nvidia-gpu", "amd-gpu"):
        return GPU
    return "hybrid-sglang" if model.state_layers else "dense-tuned"


def evidence(
    preset: str,
    model: Architecture,
    hardware: Hardware,
    devices: int,
    load: Workload,
    kind: str | None,
) -> Evidence:
    """Return the band of calibrated numbers with a drafter of `kind` (None: plain decoding)."""
    if preset == FITTED:
        return _unknown("a fit to measured steps, which told its own error")
    if preset == "ideal":
        return _unknown("the roofline itself, which no engine reaches")
    if hardware.kind != "nvidia-gpu":
        what = f"the preset {preset} was set on NVIDIA GPUs and never measured on {hardware.name}"
        return _unknown(f"{what}; measure your own: `paceline roofline measure`")
    if preset in SET_BY_AR:
        drafts = "" if kind is None else "; with drafts it promises too much"
        return _unknown(f"the preset {preset} was set on decoding without drafts alone{drafts}")
    batch = _largest_batch()
    if load.batch > batch or load.context > MOST_CONTEXT:
        beyond = f"a batch above {batch} or a context above {MOST_CONTEXT}"
        return _unknown(f"no band: {beyond} is too far from what was measured")
    near = devices == 1 and (kind is None or kind in FITTED_KINDS)
    if near and _place(model, hardware) in _places(fitted=True):
        return _near(again=kind is not None and _place(model, hardware) in _places(fitted=False))
    if model.has(Experts) and load.batch > MOST_EXPERTS_BATCH:
        return _unknown(
            f"no band: other models with experts were measured at batches above "
            f"{MOST_EXPERTS_BATCH} once, and the prediction was 92% off"
        )
    return _band(
        ELSEWHERE,
        "13 of 14 published points of models and GPUs that it was not fitted to lie within "
        f"{ELSEWHERE:.0%} of it (the other is of experts at batch 32)",
    )


def _near(*, again: bool) -> Evidence:
    """Return the band of a model that the preset was fitted to; `again` where another source has
    measured the same model with drafts, further from the prediction."""
    cards = f"two model cards that it was fitted to (SGLang, batch 1 to {_largest_batch()})"
    band = _band(IN_FIT, f"{cards} lie within {IN_FIT:.0%} of it")
    if not again:
        return band
    text = f"{band['text']}, and Modal measured up to {MEASURED_AGAIN:.0%} more (mocked acceptance)"
    return {**band, "high": 1 + MEASURED_AGAIN, "text": text}


def _band(error: float, text: str) -> Evidence:
    """An error is predicted ÷ measured − 1, so that what is measured lies between these shares."""
    return {"low": 1 / (1 + error), "high": 1 / (1 - error), "text": text}


def _unknown(text: str) -> Evidence:
    return {"low": None, "high": None, "text": text}


@cache
def _largest_batch() -> int:
    """Return the largest batch of the published tables."""
    return max(max(table.batch) for table in published_tables())


@cache
def _places(*, fitted: bool) -> list[tuple[object, object, str]]:
    """Return what the preset was fitted to, or what was measured besides."""
    tables = [table for table in published_tables() if table.fitted == fitted]
    models = [(read_architecture(table.model), table.hardware) for table in tables]
    return [(model.layers, model.head, hardware) for model, hardware in models]


def _place(model: Architecture, hardware: Hardware) -> tuple[object, object, str]:
    return (model.layers, model.head, hardware.name)
