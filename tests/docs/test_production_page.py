"""The tables of memory and disk, and of fields that ask for nothing, say what the code does."""

from __future__ import annotations

import re

import pytest

from paceline.cli.catalogue import catalogue, find_shape
from paceline.models.mocked import kv_bytes
from paceline.server.idle_values import IDLE_VALUES
from tests.docs.blocks import ROOT

GIB, MIB = 2**30, 2**20
ROW = re.compile(r"^\| `(\S+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", re.MULTILINE)


def table() -> dict[str, tuple[float, ...]]:
    page = (ROOT / "docs" / "production.md").read_text("utf-8")
    return {name: tuple(map(float, cells)) for name, *cells in ROW.findall(page)}


def computed() -> dict[str, tuple[float, ...]]:
    """GiB of files, of memory in bf16 and in int8, and MiB of KV for 1000 tokens."""
    return {
        offer.name: (
            2 * offer.parameters / GIB,
            offer.needs["bf16"] / GIB,
            offer.needs["int8"] / GIB,
            kv_bytes(find_shape(offer.name, [])[1], "bfloat16", 1000) / MIB,
        )
        for offer in sorted(catalogue([]), key=lambda offer: offer.parameters)
        if offer.source == "hub"
    }


def test_the_table_has_every_model_of_the_hub_with_its_needs() -> None:
    shown, right = table(), computed()
    assert list(shown) == list(right)
    for name, cells in shown.items():
        # rounded; and packed weights are a little larger or smaller by the machine
        assert cells == pytest.approx(right[name], rel=0.06, abs=0.1), name


@pytest.mark.parametrize(
    ("row", "idle"),
    [("cache_prompt", {True}), ("mirostat", {0, 1}), ("guided_json", {None}), ("think", {None})],
)
def test_the_exceptions_are_those_of_the_code(row: str, idle: set[object]) -> None:
    page = (ROOT / "docs" / "production.md").read_text("utf-8")
    line = next(line for line in page.splitlines() if line.startswith(f"| `{row}"))
    named = re.findall(r"`([a-z_]+)(?:: \d)?`", line.split(" | ")[0])
    assert len(named) > 3
    assert {IDLE_VALUES[name] for name in named} <= idle
