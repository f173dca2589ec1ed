"""The policy file: read, refused by name, and described in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.autospec.policy import AutospecPolicy
from paceline.core import InvalidRequest
from paceline.core.field_types import fields_of
from tests.docs.tables import check_page, field_table


def test_a_file_states_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("drift:\n  drop: 0.1\n  days: 5\ncanary:\n  steps: [10, 100]\n", "utf-8")
    policy = AutospecPolicy.from_yaml(path)
    assert (policy.drift.drop, policy.drift.days, policy.canary.steps) == (0.1, 5, (10, 100))
    assert policy.retrain == AutospecPolicy().retrain
    path.write_text("", "utf-8")
    assert AutospecPolicy.from_yaml(path) == AutospecPolicy()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drift: {dorp: 0.1}", r"drift\.dorp.*drop"),
        ("drift: {drop: 2.0}", r"drift\.drop: got 2\.0"),
        ("drift: {clears: 0.2}", r"clears: got 0\.2; expected less than drop"),
        ("canary: {steps: [50, 5, 100]}", r"canary\.steps: .*rising percentages"),
        ("canary: {steps: [1, 50]}", r"canary\.steps: .*end with 100"),
        ("canary: {steps: [100]}", r"canary\.steps: .*the first below 100"),
        ("drift: [1", "valid YAML"),
        ("retrain: {per_week: -1}", r"retrain\.per_week: got -1"),
    ],
)
def test_wrong_values_are_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidRequest, match=said):
        AutospecPolicy.from_yaml(path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="policy: got"):
        AutospecPolicy.from_yaml(tmp_path / "nope.yaml")


def test_the_page_has_every_field() -> None:
    sections = [field.annotation for field in fields_of(AutospecPolicy).values()]
    check_page("autospec.md", *(field_table(section, values=True) for section in sections))  # type: ignore[arg-type]
