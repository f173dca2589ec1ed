"""The drafter that is shipped for a target: used by `auto` for that very target, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.cli import main
from paceline.core import InvalidRequest, ModelError
from paceline.drafters import shipped
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.shipped import PROVENANCE
from paceline.drafters.spec import network_folders
from paceline.engine.engine import Engine
from paceline.engine.startup import start_up_rows
from paceline.models.catalog import CATALOGUE, CatalogueEntry
from paceline.models.dflash.checkpoint import MASK_FILE, OWN_FILE, load_checkpoint
from paceline.models.loader import LoadedModel, identity, load_folder, load_model
from paceline.models.native_network import native_available
from tests.drafters.watched import jobs, make_engine, run
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter

Target = Callable[[], LoadedModel]
NAME = "tiny-shipped"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target of the catalogue, in files, for which a drafter is shipped."""
    (tmp_path / "target").mkdir()
    folder = save_tiny(tmp_path / "target")
    monkeypatch.setattr(shipped, "FOLDERS", tmp_path / "shipped")
    monkeypatch.setitem(CATALOGUE, NAME, CatalogueEntry("tiny==1.0", "0" * 64, "a test"))
    drafter = write_drafter(tmp_path / "shipped" / NAME, seed=1)
    made_for = identity(load_folder(folder, NAME))
    (drafter / PROVENANCE).write_text(json.dumps({"target": made_for}))
    return lambda: load_folder(folder, NAME)


def row(engine: Engine) -> str | None:
    return dict(start_up_rows(engine)).get("shipped drafter")


def test_auto_has_the_shipped_drafter_for_its_target(target: Target) -> None:
    engine = make_engine("auto", target())
    drafter = engine.drafters["auto"]
    assert isinstance(drafter, HybridDrafter) and engine.default_drafter == "auto"
    assert row(engine) == f"used: DFlash, trained for these weights of {NAME}"
    work = jobs(6)
    assert run(engine, work, 4) == run(make_engine(None, target()), work, 1)
    assert engine.stats().speculation.draft_tokens > 100


def test_auto_keeps_its_name_its_options_and_its_refusals(target: Target) -> None:
    engine = make_engine(("mine=auto,max_draft_len=3", "ngram"), target(), draft_window=20)
    mine = engine.drafters["mine"]
    assert isinstance(mine, HybridDrafter)
    assert (mine.max_draft_len, mine.dflash.max_draft_len, mine.dflash.window) == (3, 3, 20)
    for spec, message in (("auto,head=full", "got 'head'"), ("auto:x", "no value after auto")):
        with pytest.raises(InvalidRequest, match=message):
            make_engine(spec, target())


def test_the_name_of_a_model_means_its_drafter_where_one_is_expected(
    target: Target, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = str(shipped.FOLDERS / NAME)
    for spec in (NAME, f"dflash:{NAME}", f"hybrid:{NAME}"):
        engine = make_engine(f"d={spec}", target())
        drafter: Any = engine.drafters["d"]
        assert str(getattr(drafter, "dflash", drafter).checkpoint.path) == shown
    assert network_folders([f"d={NAME}", "auto"], NAME) == [Path(shown)] * 2
    for word in (NAME, shown):
        assert main(["drafter", "inspect", word, "--json"]) == 0
    by_name, by_folder = capsys.readouterr().out.split("}\n{")
    assert by_name.strip("{}\n") == by_folder.strip("{}\n")
    assert main(["drafter", "convert", NAME, str(tmp_path / "converted")]) == 0
    assert load_checkpoint(tmp_path / "converted").config == load_checkpoint(Path(shown)).config


def test_a_model_that_has_no_drafter_is_refused_before_it_is_fetched(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "pull", pytest.fail)
    with pytest.raises(ModelError, match=f"no drafter is shipped .* one of {NAME}"):
        shipped.drafter_folder("qwen2.5-coder-0.5b")


def change_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][5] += 2**-6
    save_file(weights, folder / "model.safetensors")


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + "\n")


def change_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (change_weights, "weights"),
        (change_tokenizer, "tokenizer"),
        (change_template, "template"),
    ],
)
def test_a_target_that_differs_by_a_little_does_not_get_it_and_is_told(
    target: Target, change: Any, what: str
) -> None:
    made_for = identity(target())
    change(target().path)
    engine = make_engine("auto", target())
    assert isinstance(engine.drafters["auto"], ChainDrafter)
    assert engine.drafters["auto"].kv is None and engine.plan.drafter_weight_bytes == 0
    said = row(engine)
    assert said.startswith(f"NOT used: it was trained for another {NAME}: {what} ")
    for digest in (made_for, identity(target())):
        key = next(key for key, word in shipped.COMPARED.items() if word == what)
        assert digest[key][:12] in said


def test_weights_that_were_handed_over_are_not_taken_for_those_on_disk(target: Target) -> None:
    loaded = target()
    loaded = replace(loaded, weights={name: loaded.weights[name] for name in loaded.weights})
    engine = make_engine("auto", loaded)
    assert isinstance(engine.drafters["auto"], ChainDrafter)
    assert "nothing says what they are" in row(engine)


@pytest.mark.parametrize("spec", [None, "suffix", "ngram"])
def test_who_asks_for_another_drafter_gets_that_and_nothing_is_hashed(
    target: Target, spec: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "identity", pytest.fail)
    engine = make_engine(spec, target())
    assert row(engine) is None
    assert not any(isinstance(d, HybridDrafter) for d in engine.drafters.values())


def test_a_model_without_a_shipped_drafter_has_the_auto_it_had(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "identity", pytest.fail)
    for loaded in (replace(target(), name="somebody/else"), replace(target(), name="..")):
        engine = make_engine("auto", loaded)
        assert type(engine.drafters["auto"]) is ChainDrafter and row(engine) is None
    with pytest.raises(InvalidRequest, match="draft_window"):
        make_engine("auto", replace(target(), name="somebody/else"), draft_window=8)


def test_a_shipped_folder_that_is_incomplete_is_an_error(target: Target) -> None:
    path = shipped.FOLDERS / NAME / PROVENANCE
    path.write_text('{"target": {"weights_sha256": "0"}}')
    with pytest.raises(ModelError, match="target must have weights_sha256, tokenizer_sha256"):
        make_engine("auto", target())
    path.unlink()
    with pytest.raises(ModelError, match=r"no provenance\.json"):
        make_engine("auto", target())


def test_how_the_target_is_quantised_when_loaded_makes_no_difference(target: Target) -> None:
    runs, why = native_available(target().config)
    if not runs:
        pytest.skip(why)
    options = {"backend": "native", "dtype": "bfloat16", "quantize": "int8"}
    engine = make_engine("auto", target(), **options)
    drafter = engine.drafters["auto"]
    assert isinstance(drafter, HybridDrafter) and drafter.dflash._quantize == "int8"
    assert row(engine).startswith("used")


def complete() -> list[Path]:
    return [f for f in shipped.FOLDERS.iterdir() if f.is_dir() and f.name != "__pycache__"]


@pytest.mark.parametrize("folder", complete(), ids=lambda folder: folder.name)
def test_every_shipped_drafter_is_whole_small_and_for_a_model_of_the_catalogue(
    folder: Path,
) -> None:
    """Of those that lie in the repository."""
    files = {file.name for file in folder.iterdir()} - {MASK_FILE}
    assert files == {"config.json", "model.safetensors", OWN_FILE, PROVENANCE, "README.md"}
    assert folder.name in CATALOGUE
    assert sum(file.stat().st_size for file in folder.iterdir()) < 30e6
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.layers.num_layers <= 3 and checkpoint.head_ids is not None
    assert all(checkpoint.weights[name].dtype == torch.bfloat16 for name in checkpoint.weights)
    assert set(shipped.COMPARED) <= set(json.loads((folder / PROVENANCE).read_text())["target"])


@pytest.mark.model
@pytest.mark.parametrize("folder", complete(), ids=lambda folder: folder.name)
def test_every_shipped_drafter_is_for_the_weights_that_the_catalogue_gives(folder: Path) -> None:
    found = shipped.find(load_model(folder.name))
    assert found is not None and found.mismatch is None
