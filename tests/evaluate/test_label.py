"""What a report calls a drafter: its own name, or what lies at the end of its folder or id."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.drafters.spec import label, parse_spec
from tests.models.dflash.tiny import write_drafter


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ngram", "ngram"),
        ("mine=suffix", "mine"),
        ("replay:answers.json", "replay"),
        ("small=draft_model:/models/tiny", "small"),
        ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("draft_model:/models/tiny", "tiny"),
    ],
)
def test_a_label_is_a_name_or_the_end_of_a_path(spec: str, expected: str) -> None:
    assert label(parse_spec(spec)) == expected


def test_a_trained_drafter_is_called_by_its_folder(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "support-v2")
    assert label(parse_spec(str(folder))) == "support-v2"
    assert label(parse_spec(f"fast={folder}")) == "fast"
