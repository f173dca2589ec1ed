"""Drafters that there are for a target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.core import ModelError
from paceline.drafters.found import find_drafters, target_name
from paceline.drafters.published import PUBLISHED


def run_of(folder: Path, target: str) -> Path:
    """Make the folder of a training run, with as much as is looked at."""
    drafter = folder / "drafter"
    drafter.mkdir(parents=True)
    facts = {
        "target": {"name": target},
        "data": {"shop": {}, "replay": {}, "judged": {"trained_on": False}},
    }
    (drafter / "provenance.json").write_text(json.dumps(facts))
    return drafter


@pytest.mark.parametrize(
    "word, name",
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("qwen3.6-27b", "Qwen/Qwen3.6-27B"),  # no engine here serves it
        ("SmolLM2-135M-Instruct", "smollm2-135m"),
        ("org/own-finetune", "org/own-finetune"),
    ],
)
def test_a_target_goes_by_its_names(word: str, name: str) -> None:
    assert target_name(word) == name


def test_a_word_that_no_model_is_called_by_is_refused() -> None:
    with pytest.raises(ModelError, match="'qwen9-8b': no such model"):
        target_name("qwen9-8b")


def test_shipped_trained_and_public_drafters_are_found(tmp_path: Path) -> None:
    mine = run_of(tmp_path / "deep" / "run-1", "smollm2-135m")
    run_of(tmp_path / "run-2", "another")
    shipped, trained = find_drafters("smollm2-135m", [tmp_path])
    assert (shipped.drafter, shipped.source) == ("smollm2-135m", "shipped")
    assert (trained.drafter, trained.note) == (str(mine), "learnt from shop, replay")
    (public,) = find_drafters("Qwen/Qwen3-8B", [tmp_path])
    assert public.drafter == "z-lab/Qwen3-8B-DFlash-b16" and "thinking" in public.note
    assert find_drafters("org/own-finetune", [tmp_path]) == []


def test_each_public_drafter_is_found_by_its_target() -> None:
    for public in PUBLISHED:
        assert [each.drafter for each in find_drafters(target_name(public.target), [])] == [
            public.drafter
        ]


def test_the_command_lists_them(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["drafter", "find", "gpt-oss-20b"]) == 0
    told = capsys.readouterr().out
    assert "z-lab/gpt-oss-20b-DFlash" in told and "the hub" in told
    assert "paceline drafter inspect z-lab/gpt-oss-20b-DFlash" in told
    run_of(tmp_path / "runs" / "mine", "tiny")  # `runs` is looked at by itself
    (tmp_path / "tiny").mkdir()
    assert main(["drafter", "find", "./tiny", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["drafter"] == str(Path("runs/mine/drafter")) and only["source"] == "trained"


def test_none_is_said_with_the_way_to_one(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["drafter", "find", "org/own-finetune"]) == 1
    told = capsys.readouterr().out
    assert "No drafter is known for org/own-finetune" in told and "paceline synth" in told
    assert main(["drafter", "find", "org/own-finetune", "--runs", "nowhere"]) == 2
    assert "runs: got 'nowhere'; expected a folder with training runs" in capsys.readouterr().err
