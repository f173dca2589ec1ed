"""The drafters in the repository: small, whole, and for the very models that carry their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.cli import main
from paceline.core import SpeculationStats
from paceline.drafters import shipped
from paceline.drafters.shipped import PROVENANCE
from paceline.models.catalog import CATALOGUE
from paceline.training.provenance import as_text, shortened
from tests.engine.test_real_model import TALKS

FOLDERS = sorted(path for path in shipped.FOLDERS.iterdir() if (path / "config.json").is_file())
MOST_BYTES = 30_000_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_each_is_small_and_says_what_it_is_for(folder: Path) -> None:
    assert folder.name in CATALOGUE
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST_BYTES
    text = (folder / PROVENANCE).read_text()
    made_for = json.loads(text)["target"]
    assert text.count("\n") < 300, "a manifest, short enough to be read"
    assert as_text(shortened(json.loads(text))) == text, "it is what training would write"
    card = (folder / "README.md").read_text()
    assert made_for["weights_sha256"] in card and "## Served" in card


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_inspect_says_in_words_what_each_was_trained_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drafter", "inspect", str(folder)]) == 0
    told = capsys.readouterr().out
    layers = json.loads((folder / "config.json").read_text())["dflash_config"]["target_layer_ids"]
    assert f"target: {folder.name}" in told
    assert f"target layer ids: {', '.join(map(str, layers))}" in told
    assert "{" not in told, "a person reads this"


@pytest.mark.model
def test_the_demos_model_is_drafted_for_and_says_the_same() -> None:
    llm = LLM("smollm2-135m", "auto", draft_policy="fixed", max_model_len=1024)
    assert llm.engine.drafters["auto"].start_up_rows[0][1].startswith("used: ")
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=48, seed=3)
        alone = [llm.chat(talk, params, "off") for talk in TALKS]
        drafted = [llm.chat(talk, params, {"drafter": "auto"}) for talk in TALKS]
        assert [r.token_ids for r in drafted] == [r.token_ids for r in alone]
        if temperature == 0:
            total = SpeculationStats()
            for result in drafted:
                total += result.stats
            own = total.parts["dflash"]
            assert own.draft_rounds > 20 and own.acceptance_length > 1.3
