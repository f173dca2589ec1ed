"""Learning a calibration: what measurements tell is found again, what they do not is said."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline.core import InvalidRequest
from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Deployment, Options, Workload
from paceline.roofline.device import IDEAL, Calibration, Hardware, hardware
from paceline.roofline.fit import Case, Fit, MeasuredStep, StepTimes, fit_together
from tests.roofline.golden import forward_time, model

B200 = hardware("B200")
CPU = Hardware(name="two cores", memory_bandwidth=28e9, peak={"bf16": 4e12}, memory=24e9)
TILED = Calibration(
    memory_efficiency=0.8,
    compute_efficiency=0.35,
    attention_memory_efficiency=0.3,
    attention_compute_efficiency=0.05,
    sampling_efficiency=0.5,
    overlap=0.6,
    row_tile=16,
    step_overhead=2e-3,
    layer_overhead=40e-6,
    request_overhead=3e-6,
    row_overhead=4e-6,
)
ROWWISE = Calibration(
    memory_efficiency=0.8,
    compute_efficiency=0.05,
    attention_memory_efficiency=0.3,
    attention_compute_efficiency=0.05,
    overlap=0.9,
    half_rows=3,
    step_overhead=1e-3,
    row_overhead=1e-6,
)


def fit(
    points: Sequence[MeasuredStep],
    architecture: Architecture,
    device: Hardware,
    parameters: Sequence[str] | None = None,
) -> Fit:
    return fit_together([Case(points, Deployment(architecture, device))], parameters=parameters)


def measured(name: str, truth: Calibration, noise: float = 0.03) -> list[MeasuredStep]:
    """Steps of up to 512 rows, as an engine with that calibration would take them."""
    draw, found = np.random.default_rng(7), []
    sizes = itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 9, 16, 17, 32), (64, 2048))
    for batch, rows, context in sizes:
        if batch * rows <= 512:
            load = Workload(batch, rows, context)
            step = forward_time(model(name), CPU, load, calibration=truth).total
            seconds = step * float(np.exp(draw.normal(0, noise)))
            found.append(MeasuredStep(batch, rows, context, seconds))
    order = draw.permutation(len(found))
    return [found[index] for index in order]


@pytest.mark.parametrize("truth", [TILED, ROWWISE], ids=["tiled", "rowwise"])
@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "Qwen2.5-Coder-1.5B-Instruct"])
def test_a_third_of_the_points_predicts_the_rest(name: str, truth: Calibration) -> None:
    points = measured(name, truth)
    third = len(points) // 3
    learned = fit(points[:third], model(name), CPU)
    rest = points[third:]
    predicted = StepTimes([Case(rest, Deployment(model(name), CPU))])(learned.calibration)
    errors = np.abs(predicted / np.array([point.seconds for point in rest]) - 1)
    assert np.median(errors) < 0.04 and np.quantile(errors, 0.9) < 0.1


def test_the_articles_row() -> None:
    """Qwen3.5-27B, one B200, SGLang, mocked acceptance lengths: tokens per second."""
    speeds = {1: 75, 2: 140, 4: 268, 8: 422}
    points = [
        MeasuredStep(1, length, 6144, length / speed, draft_length=length - 1)
        for length, speed in speeds.items()
    ]
    learned = fit(points, model("Qwen3.5-27B"), B200)
    for (length, speed), seconds in zip(speeds.items(), learned.predicted, strict=True):
        assert length / seconds == pytest.approx(speed, rel=0.05)
    assert learned.calibration.memory_efficiency == pytest.approx(0.49, abs=0.03)
    assert learned.draft_cost == pytest.approx(0.06, abs=0.02)


def test_one_calibration_explains_a_familys_autoregressive_speeds() -> None:
    """Qwen3.5 under SGLang on B200, one request; the large two on eight devices. What the eight
    exchange is part of the overhead per layer that is learned."""
    speeds = {
        "Qwen3.5-27B": (84, 1),
        "Qwen3.5-35B-A3B": (235, 1),
        "Qwen3.5-122B-A10B": (250, 8),
        "Qwen3.5-397B-A17B": (202.9, 8),
    }
    cases = [
        Case(
            [MeasuredStep(1, 1, 4096, 1 / speed)],
            Deployment(
                model(name), B200, Options(tensor_parallel=devices, communication="ignored")
            ),
        )
        for name, (speed, devices) in speeds.items()
    ]
    learned = fit_together(cases, parameters=["memory_efficiency", "layer_overhead"])
    assert max(abs(error) for error in learned.errors) < 0.12
    assert learned.calibration.layer_overhead == pytest.approx(75e-6, rel=0.25)


def test_points_without_noise_give_back_what_made_them() -> None:
    name = "Qwen2.5-Coder-1.5B-Instruct"
    points = measured(name, TILED, noise=0.0)[:40]
    names = [
        "memory_efficiency",
        "compute_efficiency",
        "attention_memory_efficiency",
        "step_overhead",
    ]
    easy = Calibration(
        memory_efficiency=0.8,
        compute_efficiency=0.35,
        attention_memory_efficiency=0.3,
        attention_compute_efficiency=0.35,
        sampling_efficiency=0.8,
        step_overhead=5e-3,
    )
    points = [
        MeasuredStep(
            point.batch,
            point.rows,
            point.context,
            forward_time(
                model(name),
                CPU,
                Workload(point.batch, point.rows, point.context),
                calibration=easy,
            ).total,
        )
        for point in points
    ]
    learned = fit(points, model(name), CPU, parameters=names).calibration
    for field in names:
        assert getattr(learned, field) == pytest.approx(getattr(easy, field), rel=0.01), field
    # what was not fitted follows what it is tied to, or is the identity
    assert learned.sampling_efficiency == learned.memory_efficiency
    assert learned.overlap == IDEAL.overlap


def plain_decoding() -> Fit:
    """One request, one row: only the sum of loading and overheads shows."""
    dense, draw = model("Qwen3-8B"), np.random.default_rng(3)
    truth = Calibration(
        memory_efficiency=0.6, attention_memory_efficiency=0.6, sampling_efficiency=0.6
    )
    points = []
    for context in (128, 256, 512, 1024):
        step = forward_time(dense, B200, Workload(1, 1, context), calibration=truth).total
        seconds = step * float(np.exp(draw.normal(0, 0.01)))
        points.append(MeasuredStep(1, 1, context, seconds))
    return fit(points, dense, B200)


def test_what_the_points_cannot_tell_is_said_and_not_invented() -> None:
    learned = plain_decoding()
    assert list(learned.deviations) == ["memory_efficiency"]
    assert learned.calibration.memory_efficiency == pytest.approx(0.6, rel=0.03)
    assert "no point depends on it" in learned.not_identified["compute_efficiency"]
    assert "tell it from memory_efficiency" in learned.not_identified["layer_overhead"]
    assert learned.calibration.compute_efficiency == 1.0
    assert learned.calibration.row_tile == 1
    assert learned.median_error < 0.02


def test_a_fit_can_be_kept_and_read_again(tmp_path: Path) -> None:
    import json

    learned = plain_decoding()
    file = tmp_path / "fit.json"
    file.write_text(json.dumps(learned.to_dict()))
    assert Calibration.from_file(file, "calibration") == learned.calibration


def test_an_outlier_does_not_drag_the_rest_along() -> None:
    name = "SmolLM2-135M-Instruct"
    points = measured(name, ROWWISE)[:40]
    held_up = MeasuredStep(
        points[0].batch, points[0].rows, points[0].context, points[0].seconds * 20
    )
    learned = fit([held_up, *points[1:]], model(name), CPU)
    assert learned.median_error < 0.05


def test_fits_that_cannot_be_are_refused() -> None:
    dense, point = model("Qwen3-8B"), MeasuredStep(1, 1, 128, 0.01)
    with pytest.raises(InvalidRequest, match="points"):
        fit([], dense, B200)
    with pytest.raises(InvalidRequest, match="'speed'"):
        fit([point], dense, B200, parameters=["speed"])
    with pytest.raises(InvalidRequest, match="at most 1"):
        fit([point], dense, B200, parameters=["memory_efficiency", "step_overhead"])
    for wrong in ({"seconds": 0.0}, {"batch": 0}, {"rows": -1}, {"context": -1}):
        values = {"batch": 1, "rows": 1, "context": 1, "seconds": 1.0, **wrong}
        with pytest.raises(InvalidRequest, match=f"point.{next(iter(wrong))}"):
            MeasuredStep(**values)  # type: ignore[arg-type]
