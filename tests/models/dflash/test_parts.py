"""A drafter's forward by part: the same draft as unrecorded, and bytes that add up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.core.spans import OFF, Recording
from paceline.models.batch import Part, forward_parts
from tests.models.dflash.test_networks import draft, features_of, inject, make_case
from tests.models.dflash.tiny import write_drafter

FORMS = ["torch-float32", "native-bfloat16"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_recording_changes_no_draft(form: str, second: bool, tmp_path: Path) -> None:
    case = make_case(form, write_drafter(tmp_path / "drafter", layers=2, block=5, second=second))
    blocks = list(range(4))
    inject(case, features_of(case, 20), blocks, 0, 20)
    plain = draft(case, [(blocks, 20, 4, 7)])
    lane = Recording().lane("engine")
    case.network.record(lane)
    with lane("propose"):
        recorded = draft(case, [(blocks, 20, 4, 7)])
    case.network.record(OFF)
    assert torch.equal(recorded.logits, plain.logits)
    assert recorded.argmax == plain.argmax
    propose, *parts = lane.spans()
    names = [part.name for part in parts]
    expected = (
        forward_parts(2) if "native" in form else [n for n in forward_parts(2) if n != "taps"]
    )
    assert names == list(expected)
    assert all(propose.start <= part.start <= part.end <= propose.end for part in parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [None, [1, 5, 9, 70]], ids=["full", "cut"])
def test_parts_stream_what_the_whole_streams(
    form: str, cut: list[int] | None, tmp_path: Path
) -> None:
    folder = write_drafter(tmp_path / "drafter", layers=2, block=5, second=True)
    network = make_case(form, folder, cut).network
    assert sum(network.streamed_parts.values()) == network.streamed_bytes
    assert set(network.streamed_parts) == {"qkv", "o", "gate_up", "down", "head", Part.CONVOLUTION}
