"""Predictions against steps that were really measured: two cores of a Xeon, our native kernels.

`paceline roofline measure` wrote what is in `measured/`; the model's config was added to it.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from paceline.roofline.architecture import read_architecture
from paceline.roofline.cost import Deployment
from paceline.roofline.device import Hardware
from paceline.roofline.fit import Case, Judged, fit_and_judge, read_points, summary

FILES = sorted((Path(__file__).parent / "measured").glob("*.json"))


def judged(path: Path) -> Judged:
    told = json.loads(path.read_text("utf-8"))
    model = read_architecture(told["config"], precision=told["precision"], name=told["model"])
    device = Hardware.read(told["hardware"], "hardware")
    case = Case(read_points(path), Deployment(model, device))
    return fit_and_judge(case, Fraction(1, 3))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_third_of_the_steps_predicts_the_others(path: Path) -> None:
    found = judged(path)
    assert len(found.held_out_errors) >= 2 * len(found.fit.errors) - 1
    middle, high = summary(found.held_out_errors)
    assert middle <= 0.08 and high <= 0.15
    assert np.mean(np.abs(found.held_out_errors) <= 0.15) >= 0.9


def test_three_models_were_measured_up_to_512_rows() -> None:
    assert [path.stem for path in FILES] == [
        "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m",
    ]  # fmt: skip
    for path in FILES:
        assert max(point.batch * point.rows for point in read_points(path)) == 512
