"""Drafters that there are for a target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from paceline.cli import main
from paceline.core import ModelError
from paceline.drafters.found import FoundDrafter, find_drafters, target_name
from paceline.drafters.published import PUBLISHED
from paceline.models.catalog import CATALOGUE, entry_folder
from paceline.models.loader import identity, load_model
from tests.models.tiny import save_model


def run_of(folder: Path, target: str, weights: str | None = None) -> Path:
    """Make the folder of a training run, with as much as is looked at."""
    drafter = folder / "drafter"
    drafter.mkdir(parents=True)
    facts = {
        "target": {"name": target} | ({"weights_sha256": weights} if weights else {}),
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


def test_shipped_trained_and_public_drafters_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))  # no model is there
    mine = run_of(tmp_path / "deep" / "run-1", "smollm2-135m", "ab12")
    run_of(tmp_path / "run-2", "another")
    shipped, trained = find_drafters("smollm2-135m", [tmp_path])
    assert (shipped.drafter, shipped.source) == ("smollm2-135m", "shipped")
    told = (
        "learnt from shop, replay; weights were not compared: the model's are not on this machine"
    )
    assert trained == FoundDrafter(str(mine), "trained", told)
    (public,) = find_drafters("Qwen/Qwen3-8B", [tmp_path])
    assert public.drafter == "z-lab/Qwen3-8B-DFlash-b16" and "thinking" in public.note
    assert find_drafters("org/own-finetune", [tmp_path]) == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model, with a drafter for it in `tmp_path / "runs"`."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    save_model(folder)
    run_of(tmp_path / "runs" / "mine", "tiny", identity(load_model(str(folder)))["weights_sha256"])
    return folder


def found_for(folder: Path | str, runs: Path) -> list[tuple[str, str, bool | None]]:
    found = find_drafters(target_name(str(folder)), [runs])
    return [(Path(each.drafter).parent.name, each.note, each.same_weights) for each in found]


def test_a_target_on_this_machine_is_known_by_its_weights(model: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    ours = ("mine", "learnt from shop, replay", True)
    assert found_for(model, runs) == [ours]
    elsewhere = model.rename(tmp_path / "renamed")
    assert found_for(elsewhere, runs) == [ours]
    model.symlink_to(elsewhere)
    assert found_for(model, runs) == [ours]


def test_a_copy_of_a_model_gets_the_drafter_that_is_shipped_for_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped" / "smollm2-135m"
    shipped.mkdir(parents=True)
    facts = {"target": identity(load_model(str(model))), "data": {}}
    (shipped / "provenance.json").write_text(json.dumps(facts))
    monkeypatch.setattr("paceline.drafters.shipped.FOLDERS", tmp_path / "shipped")
    copy = shutil.copytree(model, tmp_path / "a copy")
    (found,) = find_drafters(target_name(str(copy)), [])
    assert (found.drafter, found.source, found.same_weights) == ("smollm2-135m", "shipped", True)
    save_model(copy, seed=1)
    assert find_drafters(target_name(str(copy)), []) == [], "other weights"


def test_other_weights_of_the_same_name_are_told_and_come_last(model: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    save_model(model, seed=1)
    note = "trained for other weights of this name; learnt from shop, replay"
    assert found_for(model, runs) == [("mine", note, False)]
    weights = identity(load_model(str(model)))["weights_sha256"]
    run_of(runs / "new", "another name", weights)
    run_of(runs / "unrelated", "another name", "ab12")
    assert found_for(model, runs) == [
        ("new", "learnt from shop, replay", True),
        ("mine", note, False),
    ]


def test_where_weights_cannot_be_compared_the_name_counts(model: Path, tmp_path: Path) -> None:
    run_of(tmp_path / "runs" / "old", "tiny")  # says no digest
    mine, old = found_for(model, tmp_path / "runs")
    assert mine[2] is True and old[2] is None
    assert old[1].endswith("weights were not compared: its provenance has no digest of them")
    (model / "model.safetensors").unlink()
    mine, old = found_for(model, tmp_path / "runs")
    assert mine[2] is None and old[2] is None
    assert mine[1].endswith("weights were not compared: the model's are not on this machine")


def test_a_model_of_the_catalogue_is_known_by_what_was_pulled(
    model: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    name = "qwen2.5-coder-0.5b"
    assert name in CATALOGUE and found_for(name, tmp_path / "runs") == []
    shutil.copytree(model, entry_folder(name))
    assert found_for(name, tmp_path / "runs") == [("mine", "learnt from shop, replay", True)]


def test_a_model_of_the_hub_is_known_by_its_cache(model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    name, commit = "org/own-finetune", "0" * 40
    assert found_for(name, tmp_path / "runs") == []
    assert found_for("org/no--name-of-the-hub", tmp_path / "runs") == []
    kept = tmp_path / "hub" / "models--org--own-finetune"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    shutil.copytree(model, kept / "snapshots" / commit)
    assert found_for(name, tmp_path / "runs") == [("mine", "learnt from shop, replay", True)]


def test_a_folder_goes_before_a_model_of_its_name(model: Path, tmp_path: Path, monkeypatch) -> None:
    """As for `paceline serve`."""
    monkeypatch.chdir(tmp_path)
    assert target_name("qwen3-8b") == "Qwen/Qwen3-8B"
    model.rename("qwen3-8b")
    assert target_name("qwen3-8b") == "qwen3-8b"


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
