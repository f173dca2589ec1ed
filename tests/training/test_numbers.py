"""A run multiplies in bfloat16 where the CPU has instructions for it, else in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.training.run import WITHOUT_BFLOAT16, train
from tests.training.runs import config, losses

REAL = torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("capability", dict.fromkeys(["AVX2", REAL]))
def test_a_cpu_without_bfloat16_multiplies_in_float32(
    capability: str,
    target: Path,
    trainset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    lines: list[str] = []
    settings = config(target, trainset, tmp_path / "run", dtype="bfloat16", steps=12)
    result = train(settings, lines.append)
    assert any("computed in float32" in line for line in lines) == (capability in WITHOUT_BFLOAT16)
    known = losses(tmp_path / "run")
    assert known[max(known)] < 0.8 * known[min(known)], "it learns in either"
    assert result.drafter is not None
    provenance = load_checkpoint(str(result.drafter)).provenance
    assert provenance.dtype == "bfloat16", "the features are those of serving"
