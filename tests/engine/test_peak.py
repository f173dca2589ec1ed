"""The peak of a machine: how large the products are that it is measured with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine import peak


@pytest.mark.parametrize(("rate", "largest"), [(1e9, 256), (2e12, 2048)], ids=["slow", "fast"])
def test_products_are_as_large_as_the_time_allows(
    rate: float, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch multiplies bfloat16 so slowly on some CPUs that a large product takes a minute."""
    now, seen = 0.0, []

    def seconds(product: Callable[[], torch.Tensor], device: str) -> float:
        nonlocal now
        rows = product.args[0].shape[0]  # type: ignore[attr-defined]
        seen.append(rows)
        now += 2 * rows**3 / rate
        return 2 * rows**3 / rate

    monkeypatch.setattr(peak, "_seconds", seconds)
    monkeypatch.setattr(peak.time, "perf_counter", lambda: now)
    assert peak.matmul_peak(torch.float32, "cpu", 0.3) == pytest.approx(rate)
    assert max(seen) == largest and now < 0.5
