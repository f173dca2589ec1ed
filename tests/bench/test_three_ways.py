"""Drafters of three ways are compared with our engine's: of the same seed, and over all seeds."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def three_ways(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("three_ways")


def pairs(*tokens: float) -> Any:
    """Tokens of each text, of ten rounds."""
    return np.array([(each, 10) for each in tokens], np.float64)


def test_a_way_is_compared_with_our_engine_of_the_same_seed_and_over_all(three_ways: Any) -> None:
    first, second = pairs(20, 30, 20, 30, 20), pairs(40, 40, 40, 40, 40)
    results = {
        "paceline": {0: {"on task": first}, 1: {"on task": second}},
        "vllm": {0: {"on task": pairs(30, 45, 30, 45, 30)}, 1: {"on task": second}},
    }
    rows = three_ways.rows_of(results)
    assert rows[0] == ["our engine", "0", "2.400 (1.000 to 1.000)"]
    assert rows[2] == ["our engine", "all", "3.200 (1.000 to 1.000)"]
    assert rows[3] == ["vLLM", "0", "3.600 (1.500 to 1.500)"]
    assert rows[4] == ["vLLM", "1", "4.000 (1.000 to 1.000)"]
    way, seeds, cell = rows[5]
    assert (way, seeds) == ("vLLM", "all") and cell.startswith("3.800 (1.1")


def test_only_parts_that_the_set_has_are_judged(
    three_ways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_texts(folders: list[Path], split: str, longest: int, parts: tuple[str]) -> list[str]:
        return [f"{split} {parts[0]} {number}" for number in range(3)]

    manifest = argparse.Namespace(counts={"rows_on_task": 5, "rows_foreign": 3})
    monkeypatch.setattr(three_ways, "read_manifest", lambda folder: manifest)
    monkeypatch.setattr(three_ways, "read_texts", read_texts)
    texts = three_ways.unseen(argparse.Namespace(set="set", texts=2))
    assert texts == {
        "on task": ["held_out on_task 0", "held_out on_task 1"],
        "foreign": ["foreign foreign 0", "foreign foreign 1"],
    }


@pytest.mark.parametrize("option", ["--steps", "--seeds", "--texts"])
def test_nothing_to_do_is_refused_by_name(
    option: str, three_ways: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["three_ways.py", "m", "set", option, "0"])
    with pytest.raises(SystemExit):
        three_ways.main()
    assert f"{option}: got 0; expected at least 1" in capsys.readouterr().err
