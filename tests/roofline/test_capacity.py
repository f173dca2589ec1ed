"""How many requests fit on a device, and what is said where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.cost import Deployment, Options, Workload
from paceline.roofline.cost.capacity import capacity, check_fits
from paceline.roofline.cost.drafters import small_model
from paceline.roofline.device import hardware
from tests.roofline.golden import model

H100 = hardware("H100-SXM")


def max_batch(deployment: Deployment, load: Workload, **more: Any) -> int:
    return capacity(deployment, load, **more).max_batch


def test_what_is_left_beside_the_weights_is_shared_among_requests() -> None:
    dense = model("Meta-Llama-3.1-8B")
    found = max_batch(Deployment(dense, H100), Workload(1, 1, 8191))
    assert found == int((0.9 * 80e9 - 2 * dense.parameters()) / (8192 * 131072))
    drafter = small_model("Qwen3-0.6B")
    assert max_batch(Deployment(dense, H100), Workload(1, 1, 8191), drafter=drafter) < found


def test_snapshots_in_flight_take_room() -> None:
    hybrid, load = model("Qwen3.5-27B"), Workload(1, 16, 4096)
    each = capacity(Deployment(hybrid, H100), load)
    replay = capacity(Deployment(hybrid, H100, Options(snapshots="replay")), load)
    assert each.per_request - replay.per_request == pytest.approx(15 * hybrid.state_bytes())


def test_devices_add_room_and_a_latent_is_kept_by_each() -> None:
    latent, load = model("DeepSeek-V3"), Workload(1, 1, 32767)
    b200 = hardware("B200")
    tensor = max_batch(Deployment(latent, b200, Options(tensor_parallel=8)), load)
    dealt = Options(data_parallel=8, expert_parallel=8)
    groups = max_batch(Deployment(latent, b200, dealt), load)
    assert groups > 6 * tensor > 0
    dense = model("Meta-Llama-3.1-70B")
    four = capacity(Deployment(dense, H100, Options(tensor_parallel=4)), load)
    assert four.per_request == pytest.approx(32768 * 327680 / 4)


def test_a_batch_that_cannot_fit_says_what_would() -> None:
    dense = model("Meta-Llama-3.1-8B")
    fits = max_batch(Deployment(dense, H100), Workload(1, 1, 8192))
    check_fits(Deployment(dense, H100), Workload(fits, 1, 8192))
    with pytest.raises(InvalidRequest, match=rf"batch: got {fits + 1}; expected at most {fits}"):
        check_fits(Deployment(dense, H100), Workload(fits + 1, 1, 8192))


def test_weights_that_cannot_fit_are_said_first() -> None:
    large = model("Meta-Llama-3.1-70B")
    assert max_batch(Deployment(large, H100), Workload()) == 0
    with pytest.raises(InvalidRequest, match=r"141\.1 GB of weights"):
        check_fits(Deployment(large, H100), Workload())
