"""The doctor finds what was broken: each illness is given to a drafter that is well."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.core import ModelError
from paceline.evaluate.doctor import Report, examine
from paceline.models.dflash import torch_network
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import (
    authors_model,
    speculators_json,
    write_drafter,
    write_speculators,
)
from tests.models.dflash.trained import train_tiny

PROMPTS = ["the quick brown fox", "one two three", "zebra", "a b c d e f g", "lorem ipsum dolor"]
CONVERSATIONS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a drafter that is well."""
    home = tmp_path_factory.mktemp("doctor")
    (home / "target").mkdir()
    target = save_tiny(home / "target", blur=0.0, num_layers=5)
    options = {"taps": (1, 2), "target_layers": 5, "block": 6}
    return target, train_tiny(home / "drafter", target, PROMPTS, **options)


def diagnose(target: Path, drafter: Path | str, **options: Any) -> Report:
    fixed = {"dtype": "float32", "backend": "torch", "threads": 1}
    return examine(str(target), str(drafter), CONVERSATIONS, 48, **(fixed | options))


def infected(drafter: Path, folder: Path, provenance: Any = "kept", **changes: Any) -> Path:
    """A copy whose config was changed behind its digest; `provenance` None takes that away too."""
    shutil.copytree(drafter, folder)
    path = folder / "config.json"
    hf = json.loads(path.read_text())
    extra = changes.pop("dflash_config", {})
    hf |= changes | {"dflash_config": hf["dflash_config"] | extra}
    path.write_text(json.dumps(hf))
    own = json.loads((folder / "paceline.json").read_text())
    own.pop("sha256")
    if provenance != "kept":
        own["provenance"] = provenance or {}
    (folder / "paceline.json").write_text(json.dumps(own))
    return folder


def test_a_healthy_drafter_is_found_well(patient):
    report = diagnose(*patient)
    assert report.healthy, report.verdict
    assert report.verdict.startswith("Nothing is wrong: acceptance length")
    assert report.acceptance_length > 3 and report.rounds > 20
    assert report.acceptance[0] > 0.8 and len(report.acceptance) == 5
    assert report.acceptance == sorted(report.acceptance, reverse=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dflash_config": {"target_layer_ids": [2, 3]}}, "layer ids \\[1, 2\\] \\(off by one\\)"),
        ({"rope_theta": 1e7}, "rope_theta 10000"),
        ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True,
          "sliding_window": 2, "is_causal": False}, "no sliding window"),
    ],
    ids=["layer ids", "RoPE", "window"],
)  # fmt: skip
def test_a_wrong_config_is_found_without_any_provenance(patient, tmp_path, changes, named):
    target, drafter = patient
    report = diagnose(target, infected(drafter, tmp_path / "ill", provenance=None, **changes))
    assert not report.healthy
    assert re.search(f"the weights fit better when read with {named}", report.verdict)


@pytest.mark.parametrize(
    ("known", "changes", "verdict"),
    [
        ({"target_layer_ids": [1, 2]}, {"dflash_config": {"target_layer_ids": [2, 3]}},
         "layer ids: trained with (1, 2), served with (2, 3)."),
        ({"mask_token_id": 250}, {"dflash_config": {"mask_token_id": 249}},
         "mask token: trained with 250, served with 249."),
        ({"template": "feedface"}, {}, "chat template: trained with feedface, served with"),
        ({"dtype": "bfloat16"}, {}, "dtype: trained with bfloat16, served with float32."),
        ({"window": 32}, {}, "window: trained with 32, served with None."),
        ({"context": 20}, {}, "serve it with --draft-window 20."),
    ],
    ids=["layer ids", "mask", "template", "dtype", "window", "context"],
)  # fmt: skip
def test_what_differs_from_the_training_is_named(patient, tmp_path, known, changes, verdict):
    target, drafter = patient
    ill = infected(drafter, tmp_path / "ill", provenance=known, **changes)
    report = diagnose(target, ill, draft_window=0)
    assert verdict in report.verdict


def test_a_drafter_sees_the_context_that_it_was_trained_on(patient, tmp_path):
    target, drafter = patient
    trained = infected(drafter, tmp_path / "trained", provenance={"context": 20})
    report = diagnose(target, trained)
    assert report.healthy, report.verdict
    (context,) = [check for check in report.checks if check.name == "context"]
    assert context.detail == "trained on up to 20 tokens of context, and sees up to 20"
    assert "window" not in [check.name for check in report.checks]


def test_a_serving_path_that_computes_something_else_is_found(patient, monkeypatch):
    inject = torch_network.TorchDFlash.inject

    def late(self, features, positions, slots):
        inject(self, features, [place + 1 for place in positions], slots)

    monkeypatch.setattr(torch_network.TorchDFlash, "inject", late)
    report = diagnose(*patient)
    assert report.verdict.startswith("serving path: logits differ from the training form's by")


def test_a_drafter_that_learnt_something_else_is_told_from_a_broken_one(patient, tmp_path):
    stranger = write_drafter(tmp_path / "stranger", taps=(1, 2), target_layers=5)
    report = diagnose(patient[0], stranger)
    assert report.healthy and "still predicts little" in report.verdict


def test_a_drafter_that_is_refused_is_a_finding(patient, tmp_path):
    wrong = write_drafter(tmp_path / "wrong", taps=(1,), target_layers=9)
    report = diagnose(patient[0], wrong)
    assert report.verdict.startswith("the checkpoint: drafter")
    assert "num_target_layers is 9; expected 5" in report.verdict


def test_other_kinds_of_drafters_are_not_its_business(patient):
    with pytest.raises(ModelError, match="is no DFlash drafter"):
        diagnose(patient[0], "ngram")


# -- the commands ----------------------------------------------------------------------------------


def test_doctor_prints_a_sentence_and_exits_by_it(patient, tmp_path, capsys):
    target, drafter = patient
    prompts = [{"name": str(i), "kind": "x", "messages": c} for i, c in enumerate(CONVERSATIONS)]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    options = ["--prompts", str(tmp_path / "prompts.json"), "--dtype", "float32"]
    options += ["--max-tokens", "48"]
    assert main(["drafter", "doctor", str(target), str(drafter), *options]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is wrong" in shown and "accepted by position" in shown
    wrong = {"target_layer_ids": [2, 3]}
    ill = infected(drafter, tmp_path / "ill", None, dflash_config=wrong)
    assert main(["drafter", "doctor", str(target), str(ill), *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False and "off by one" in report["verdict"]


def test_inspect_says_what_a_checkpoint_is(patient, capsys):
    assert main(["drafter", "inspect", str(patient[1])]) == 0
    shown = capsys.readouterr().out
    assert "DFlash, z-lab format" in shown and "[1, 2] of 5" in shown
    assert main(["drafter", "inspect", str(patient[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mask token"] == 250


def test_inspect_refuses_what_is_no_drafter(patient, capsys):
    assert main(["drafter", "inspect", str(patient[0])]) == 2
    assert "Qwen2ForCausalLM is no DFlash drafter" in capsys.readouterr().err


def test_convert_writes_a_folder_that_serves_the_same(patient, tmp_path, capsys):
    target, drafter = patient
    (tmp_path / "ids.json").write_text(json.dumps(list(range(200))))
    out = tmp_path / "out"
    options = ["--dtype", "bfloat16", "--head-ids", str(tmp_path / "ids.json")]
    assert main(["drafter", "convert", str(drafter), str(out), *options]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert main(["drafter", "inspect", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["head"] == "may be cut to 200 tokens" and shown["trained for"]["context"] == 512
    assert diagnose(target, out).acceptance_length > 2


def test_convert_from_speculators_needs_the_targets_layers(tmp_path, capsys):
    theirs, out = write_speculators(tmp_path / "s", speculators_json()), tmp_path / "out"
    assert main(["drafter", "convert", str(theirs), str(out)]) == 2
    assert "num_target_layers: got null; expected the number" in capsys.readouterr().err
    assert main(["drafter", "convert", str(theirs), str(out), "--num-target-layers", "2"]) == 0
    assert authors_model(out).target_layer_ids == [0]


def test_convert_leaves_nothing_behind_when_it_fails(patient, tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "ids.json").write_text("[1, 999]")
    assert main(["drafter", "convert", str(patient[1]), str(out), "--head-ids",
                 str(tmp_path / "ids.json")]) == 2  # fmt: skip
    assert "head_token_ids must be token ids from 0 to 255" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    assert main(["drafter", "convert", str(patient[1]), str(out)]) == 2
    assert "a folder that does not exist yet" in capsys.readouterr().err
