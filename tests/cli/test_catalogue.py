"""`paceline list`, `show` and `rm`: what there is, what it needs, what is on disk."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import catalogue, main
from paceline.core.checksums import MANIFEST, write_manifest
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.models import packed_file
from paceline.models.catalog import CATALOGUE
from paceline.models.loader import load_folder
from paceline.models.networks import build_network
from tests.engine.tiny import save_tiny

NAME = "smollm2-135m"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Disks with a copy from PyPI, a GGUF file's folder, and one model in the hub's cache."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    hub = tmp_path / "hub" / "models--org--mine"
    commit = "0123456789abcdef0123456789abcdef01234567"
    folders = [
        tmp_path / "cache/models" / f"{NAME}-{CATALOGUE[NAME].sha256[:8]}-1",
        tmp_path / "cache/gguf/local-q4-0123456789abcdef",
        hub / "snapshots" / commit,
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        save_tiny(folder)
        if hub not in folder.parents:
            write_manifest(folder)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["list", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_says_what_models_need_and_what_is_on_disk(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = listed(capsys)
    models = {model["name"]: model for model in told["models"]}
    assert models[NAME]["on_disk"] > 0 and models["Qwen/Qwen3-8B"]["on_disk"] is None
    assert {other["name"] for other in told["others"]} == {"local-q4", "org/mine"}
    for model in models.values():
        needs, size = model["memory"], model["parameters"]
        assert 2 * size < needs["bf16"] < 2.2 * size + 2 * 2**30  # weights, KV and work space
        assert size < needs["int8"] < needs["bf16"]
        fits = [mode for mode in needs if needs[mode] <= told["free_memory"]]
        assert model["fits"] == fits
        written = re.search(r"([\d.]+)([BM])", model["name"].upper().replace("QWEN3", ""))
        assert written is not None
        stated = float(written[1]) * {"B": 1e9, "M": 1e6}[written[2]]
        assert 0.95 < size / stated < 1.25, model["name"]
    assert main(["list"]) == 0
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out


def test_only_networks_that_are_served_are_offered(cache: Path) -> None:
    names = {offer.name for offer in catalogue.catalogue([])}
    assert {"smollm2-135m", "Qwen/Qwen3-4B", "mistralai/Mistral-7B-Instruct-v0.3"} <= names
    assert not any("DeepSeek" in name or "A3B" in name for name in names)


def test_the_needs_are_those_of_the_engine(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    engine = build_engine(EngineConfig(model=str(folder), drafter=None, draft_policy="off"))
    _, shape, _ = catalogue.find_shape(str(folder), [])
    assert catalogue.parameters_of(shape) * 2 <= engine.plan.weight_bytes + 2**20
    assert catalogue.memory_needs("tiny", shape)["bf16"] > engine.plan.weight_bytes


@pytest.mark.parametrize(
    ("word", "name", "disk"),
    [("QWEN3-8b", "Qwen/Qwen3-8B", "nothing"), ("org/mine", "org/mine", "hub")],
)
def test_a_model_is_shown_without_being_fetched(
    word: str, name: str, disk: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", word, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == name and disk in told["on disk"]


def test_what_cannot_be_shown_is_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, said in [("other/model", "`paceline pull` fetches others"), ("deepseek-v3", "is not "
                       "supported"), ("nonesuch", "no such model")]:  # fmt: skip
        assert main(["show", word]) == 2
        assert said in capsys.readouterr().err


def test_models_are_deleted_by_their_whole_names(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "smollm2"]) == 2  # a start is not enough to delete something
    assert f"a model on disk ({NAME}" in capsys.readouterr().err.replace("org/mine, ", "").replace(
        "local-q4, ", ""
    )
    for name in (NAME, "LOCAL-Q4", "org/mine"):
        assert main(["rm", name]) == 0
    assert "deleted org/mine" in capsys.readouterr().out
    told = listed(capsys)
    assert told["others"] == [] and not any(model["on_disk"] for model in told["models"])
    assert main(["rm", NAME]) == 2


def test_a_folder_without_our_manifest_is_not_ours_to_delete(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = cache / "cache/gguf/my-notes"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert main(["rm", "my"]) == 2 and (mine / "notes.txt").exists()
    capsys.readouterr()
    assert "my" not in {other["name"] for other in listed(capsys)["others"]}


def test_of_several_models_with_one_name_the_folder_is_asked_for(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = cache / "cache/gguf/local-q4-0123456789abcdef"
    second = first.with_name("local-q4-fedcba9876543210")
    shutil.copytree(first, second)
    assert main(["rm", "local-q4"]) == 2
    told = capsys.readouterr().err
    assert str(first) in told and str(second) in told and first.exists() and second.exists()
    assert main(["rm", str(second)]) == 0
    assert (first / MANIFEST).exists() and not second.exists()


def test_packed_weights_go_with_their_model(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "LEAST_BYTES", 0)
    folder, packed = cache / "cache/gguf/local-q4-0123456789abcdef", cache / "cache/packed"
    of_others = save_tiny(cache)
    for each in (folder, of_others):
        build_network(load_folder(each, "it"), backend="native")
    assert len(list(packed.iterdir())) == 2
    assert main(["rm", "local-q4"]) == 0
    assert len(list(packed.iterdir())) == 1
