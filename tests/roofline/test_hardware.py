"""The table of devices, devices of one's own, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.device import Hardware, hardware, hardware_names

OWN: dict[str, Any] = {
    "name": "my box",
    "memory_bandwidth": 28e9,
    "peak": {"bf16": 2e12},
    "memory": 24e9,
}


def test_the_table_is_in_si_units_and_names_do_not_mind_case() -> None:
    assert hardware("b200") == hardware("B200")
    device = hardware("H100-SXM")
    assert (device.memory_bandwidth, device.memory) == (3.35e12, 80e9)
    assert device.peak_of("bf16") / device.memory_bandwidth == pytest.approx(295, abs=1)


def test_every_device_of_the_table_can_compute_and_says_where_it_is_from() -> None:
    kinds = ("H100", "MI300X", "TPU", "Apple", "Xeon", "EPYC", "RTX")
    assert all(any(name.startswith(kind) for name in hardware_names()) for kind in kinds)
    for name in hardware_names():
        device = hardware(name)
        assert device.source, name
        # two cores without a matrix unit have the fewest operations for each byte
        assert 5 < device.peak_of("fp4") / device.memory_bandwidth < 3000, name


def test_a_rate_that_is_missing_falls_to_the_next_wider() -> None:
    assert hardware("H200").peak_of("fp4") == hardware("H200").peak_of("fp8")
    assert hardware("A100-80GB-SXM").peak_of("fp8") == 312e12  # bf16, not int8
    assert hardware("A100-80GB-SXM").peak_of("int4") == 312e12  # weight-only


def test_a_device_of_ones_own_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "box.json"
    file.write_text(json.dumps(OWN))
    assert Hardware.from_file(file, "hardware") == Hardware(**OWN)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_bandwidth": -1}, "hardware.memory_bandwidth"),
        ({"memory_bandwidth": "28 GB/s"}, "hardware.memory_bandwidth"),
        ({"memory": 0}, "hardware.memory"),
        ({"peak": {}}, "hardware.peak"),
        ({"peak": {"bf16": 0}}, "hardware.peak.bf16"),
        ({"peak": {"bf16": 1e12, "fp6": 1e12}}, "hardware.peak.fp6"),
        ({"link_bandwidth": -1}, "hardware.link_bandwidth"),
        ({"name": ""}, "hardware.name"),
        ({"bandwidth": 1}, "hardware.bandwidth"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Hardware.read({**OWN, **changes}, "hardware")
    assert refused.value.field == field


def test_a_missing_field_and_an_unknown_device_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"hardware\.memory"):
        Hardware.read({key: OWN[key] for key in OWN if key != "memory"}, "hardware")
    with pytest.raises(InvalidRequest, match=r"'B300X'.*B200"):
        hardware("B300X")
    with pytest.raises(InvalidRequest, match="GH200-141GB, GH200-96GB"):
        hardware("gh200")  # two of them


def test_devices_go_by_the_names_that_people_use() -> None:
    assert hardware("h100") is hardware("H100-SXM") is hardware("h100 sxm")
    assert hardware("a100").name == "A100-80GB-SXM"
