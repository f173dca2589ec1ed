"""A run multiplies in bfloat16 or in float32, whichever the CPU is faster at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.engine import peak
from paceline.engine.peak import ProductSpeeds
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.training import run
from paceline.training.run import computed_in, train
from tests.training.runs import config, losses


@pytest.mark.parametrize("times", [0.5, 80.0])
def test_a_run_multiplies_in_what_is_faster(
    times: float,
    target: Path,
    trainset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "product_speeds", lambda: ProductSpeeds(1e11, times * 1e11))
    lines: list[str] = []
    settings = config(target, trainset, tmp_path / "run", dtype="bfloat16", steps=12)
    assert computed_in(settings) is (torch.float32 if times > 1 else torch.bfloat16)
    result = train(settings, lines.append)
    said = [line for line in lines if "computed in float32, which this CPU multiplies 80.0" in line]
    assert len(said) == (times > 1)
    known = losses(tmp_path / "run")
    assert known[max(known)] < 0.8 * known[min(known)], "it learns in either"
    assert result.drafter is not None
    provenance = load_checkpoint(str(result.drafter)).provenance
    assert provenance.dtype == "bfloat16", "the features are those of serving"


def test_what_is_faster_is_measured_once_for_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on later computes in the same numbers, whatever was measured meanwhile."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    rates = {torch.bfloat16: 9e10, torch.float32: 1.5e11}
    monkeypatch.setattr(peak, "peak_of", lambda dtype, device: rates[dtype])
    assert peak.product_speeds() == ProductSpeeds(9e10, 1.5e11)
    assert peak.product_speeds().faster is torch.float32
    rates[torch.bfloat16] = 1e12
    assert peak.product_speeds().faster is torch.float32
    (kept,) = (tmp_path / "products").iterdir()
    kept.unlink()
    assert peak.product_speeds().faster is torch.bfloat16


def test_float32_stays_float32(target: Path, trainset: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run, "product_speeds", lambda: pytest.fail("asks for speeds"))
    assert computed_in(config(target, trainset, tmp_path, steps=1)) is torch.float32
