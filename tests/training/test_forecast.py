"""The forecast of a run's end, and the average of its weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from paceline.dataset.run_log import read_log
from paceline.training import trainer as trainer_module
from paceline.training.average import POWER, Average
from paceline.training.evaluation import Score
from paceline.training.forecast import forecast
from paceline.training.run import train
from tests.training.runs import config, quiet

SLOTS = [1e5 * number for number in range(1, 11)]


def curve(exponent: float, noise: float = 0.0) -> list[tuple[float, float]]:
    """AL = 2 after the last of SLOTS, growing as a power; every other point is off by `noise`."""
    signs = (1 if number % 2 else -1 for number in range(len(SLOTS)))
    return [
        (slots, 1 + (slots / SLOTS[-1]) ** exponent * (1 + sign * noise))
        for slots, sign in zip(SLOTS, signs, strict=True)
    ]


@pytest.mark.parametrize("exponent", [0.22, 0.28, 0.34])
def test_a_power_is_continued(exponent: float) -> None:
    found = forecast(curve(exponent), 10 * SLOTS[-1])
    assert found is not None
    assert found.al == pytest.approx(1 + 10**exponent, rel=0.05)
    assert found.low < 1 + 10**exponent < found.high


def test_an_interval_grows_with_noise_and_with_distance() -> None:
    near, far = (forecast(curve(0.28), slots) for slots in (2 * SLOTS[-1], 20 * SLOTS[-1]))
    noisy = forecast(curve(0.28, noise=0.1), 2 * SLOTS[-1])
    assert near is not None and far is not None and noisy is not None
    assert near.high - near.low < far.high - far.low
    assert near.high - near.low < noisy.high - noisy.low


def test_nothing_is_said_of_too_few_points_or_of_the_past() -> None:
    assert forecast(curve(0.28)[:2], 1e9) is None
    assert forecast([(slots, 1.0) for slots in SLOTS], 1e9) is None
    assert forecast(curve(0.28), SLOTS[-1]) is None


def test_a_run_says_where_it_is_going(target, trainset, tmp_path) -> None:
    said: list[str] = []
    settings = config(target, trainset, tmp_path, steps=40, eval_every=4, anchors=32)
    train(settings, said.append)
    rows = [row for row in read_log(tmp_path) if "forecast/al" in row]
    assert rows and all(row["forecast/low"] < row["forecast/high"] for row in rows)
    assert max(row["step"] for row in rows) <= 32, "a decay is no part of the curve"
    assert any("forecast AL" in line and " to " in line for line in said)


def test_an_average_weighs_the_newest_steps_most() -> None:
    """A window of a tenth of the run: the mean age of weights is a share of the steps so far."""
    module = nn.Linear(1, 1, bias=False)
    average = Average(module)
    for step in range(1, 1001):
        module.weight.data.fill_(float(step))
        average.add(step)
    with average.in_place():
        mean = module.weight.item()
    assert mean == pytest.approx(1000 * (POWER + 1) / (POWER + 2), rel=0.01)
    assert module.weight.item() == 1000.0, "the weights are back"
    again = Average(module)
    again.load(average.state())
    with again.in_place():
        assert module.weight.item() == mean


@pytest.mark.parametrize("better", ["weights", "average"])
def test_the_better_of_weights_and_average_is_kept(
    better, target, trainset, tmp_path, monkeypatch
) -> None:
    real = trainer_module.Trainer._scores

    def scores(self, packs):
        found, mean = real(self, packs), self.average.state()["norm.weight"]
        averaged = self.step > 0 and torch.equal(self.form.drafter.norm.weight, mean)
        length = 2.0 if averaged == (better == "average") else 1.5
        return {name: Score(score.blocks, length, score.positions) for name, score in found.items()}

    monkeypatch.setattr(trainer_module.Trainer, "_scores", scores)
    out = tmp_path / "run"
    result = train(config(target, trainset, out, steps=8, eval_every=8), quiet)
    assert result.drafter is not None
    state = torch.load(out / "state.pt", weights_only=True)
    kept = state["drafter" if better == "weights" else "average"]
    written = load_file(result.drafter / "model.safetensors")
    assert all(torch.equal(written[name], kept[name].bfloat16()) for name in written)
    assert state["progress"]["history"][-1]["averaged"] == (better == "average")
