"""The presets: each is a scenario, and says only what is predicted or was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.roofline.scenario import Preset, listed_presets, predict
from paceline.roofline.scenario.presets import SHIPPED_AL

SHIPPED = Path(paceline.__file__).parent / "drafters/shipped/smollm2-135m"
BY_NAME = {preset["name"]: preset for preset in listed_presets()}


def speedups(preset: Preset) -> list[list[float]]:
    """The best calibrated speedups by batch, of each drafter."""
    drafters = predict(preset["scenario"])["drafters"]
    return [
        [value for value in drafter["by_batch"]["calibrated"]["speedup"] if value is not None]
        for drafter in drafters
    ]


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_preset_says_of_the_batch_is_what_is_predicted(name: str) -> None:
    preset = BY_NAME[name]
    for values in speedups(preset):
        lowest = values.index(min(values[:6]))
        rises = max(values[lowest:]) > 1.1 * values[lowest]
        assert rises == ("U-shape" in preset["see"])
        if "deepest at 8 to 16" in preset["see"]:
            assert 2**lowest in (8, 16)
        if "hardly for four" in preset["see"]:
            assert values[0] > 1.3 and 1 < values[2] < 1.1


def test_the_shipped_drafter_is_stated_as_its_card_has_it() -> None:
    stated: Any = BY_NAME["SmolLM2 on two CPU cores"]["scenario"]["drafters"]
    config = json.loads((SHIPPED / "config.json").read_text("utf-8"))
    layers = stated[0]["config"]["dflash_config"]["target_layer_ids"]
    assert layers == config["dflash_config"]["target_layer_ids"]
    assert {**stated[0]["config"], "dflash_config": None}.items() <= {
        **config, "dflash_config": None,
    }.items()  # fmt: skip
    card = (SHIPPED / "README.md").read_text("utf-8")
    assert f"| demo | out of domain | 0 | {SHIPPED_AL} " in card
