"""Test the last turn of a distillation: the student that is kept gets its drafter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli import main
from paceline.core import InvalidRequest
from paceline.dataset.distilled import UNKNOWN, user_sets
from paceline.dataset.training_set import read_manifest, write_manifest
from paceline.distil.config import DistilConfig
from paceline.distil.run import distil, origin
from paceline.models.any_target import read_target
from paceline.models.loader import identity, tokenizer_digest
from paceline.synth.app import load_app
from paceline.synth.job import prepare, read
from tests.synth.tiny import description, save_target

# Of few tokens, so that text does not hold all spare ones.
SAMPLING = {"temperature": 3.0, "top_k": 4, "max_tokens": 24}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher, what it answered, another model with its tokens, and the application."""
    folder = tmp_path_factory.mktemp("last-turn")
    teacher, small = (save_target(folder / name, seed=i, spare=8) for i, name in enumerate("ab"))
    app = folder / "app.yaml"
    app.write_text(
        json.dumps(description(folder, teacher, size={"rows": 60}, held_out=0.2, sampling=SAMPLING))
    )
    loaded = load_app(app)
    job = prepare(loaded, read(loaded))
    job.make(folder / "set", job.own(threads=1))
    return {"teacher": teacher, "small": small, "app": app, "set": folder / "set"}


@pytest.fixture(autouse=True)
def every_student_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.distil.run.verdict", lambda *scores: [])


def options(made: dict[str, Path], out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "student": str(made["small"]), "sets": (str(made["set"]),), "out": str(out), "rank": 0,
        "steps": 2, "lr": 1e-3, "threads": 1, "prompts": 2, "drafter": str(made["app"]), **changes,
    }  # fmt: skip


def quiet(text: str) -> None:
    pass


def test_one_command_makes_a_student_and_its_drafter(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifests and its card say what it was made from, and the same command makes it once."""
    out = tmp_path / "run"
    command = [
        "distil", str(made["set"]), "--student", str(made["small"]), "--out", str(out),
        "--rank", "0", "--steps", "2", "--lr", "1e-3", "--threads", "1", "--prompts", "2",
        "--drafter", str(made["app"]), "--drafter-rows", "40", "--drafter-epochs", "2",
    ]  # fmt: skip
    assert main(command) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert f"the student is in {out / 'student'}" in told
    assert f"its drafter is in {out / 'training' / 'drafter'}" in told
    student = identity(read_target(str(out / "student")))
    before = identity(read_target(str(made["small"])))
    answers = read_manifest(out / "answers")
    # The student answered, and not the model that it was, nor its teacher.
    assert answers.target["weights_sha256"] == student["weights_sha256"] != before["weights_sha256"]
    assert answers.counts["rows"] == 40
    drafter = out / "training" / "drafter"
    record = json.loads((drafter / "provenance.json").read_text())
    assert record["target"]["weights_sha256"] == student["weights_sha256"]
    assert record["data"]["answers"]["digest"] == answers.digest
    stated = json.loads((out / "student" / "distilled.json").read_text())
    assert record["origin"] == stated
    assert stated["student"] == {"name": "b", "weights_sha256": before["weights_sha256"]}
    assert stated["teachers"] == ["a"] and stated["objective"] == "hard" and stated["steps"] == 2
    assert stated["sets"] == {"set": read_manifest(made["set"]).digest}
    assert stated["user_data"] == [], "the set is of no users"
    card = (drafter / "README.md").read_text()
    assert f"distilled by `paceline distil` from b (SHA-256 `{before['weights_sha256']}`)" in card
    assert "on what a answered in set." in card
    weights = (drafter / "model.safetensors").read_bytes()
    assert main(command) == 0
    assert (drafter / "model.safetensors").read_bytes() == weights
    assert read_manifest(out / "answers").digest == answers.digest


def test_a_student_says_which_sets_are_of_users(made: dict[str, Path], tmp_path: Path) -> None:
    """Also those that the model before was distilled from."""
    before = shutil.copytree(made["small"], tmp_path / "b")
    manifest = read_manifest(made["set"])
    manifests = {"shop": manifest, "logs": manifest.model_copy(update={"user_data": True})}
    config: Any = SimpleNamespace(objective="hard", seed=0, total_steps=lambda texts: 2)
    for earlier, said in (({}, ["logs"]), ({"user_data": ["chats"]}, ["chats", "logs"])):
        (before / "distilled.json").write_text(json.dumps(earlier))
        models = [read_target(str(folder)) for folder in (made["small"], before)]
        for student, teacher in (models, models[::-1], (models[1], None)):
            inputs: Any = SimpleNamespace(
                student=student, teacher=teacher, teachers=["a"], manifests=manifests, train=[]
            )
            assert origin(config, inputs)["user_data"] == said
    (before / "distilled.json").write_text(json.dumps({"sets": {}}))
    assert user_sets(before) == (UNKNOWN,)
    loaded = load_app(made["app"])
    assert not prepare(loaded, read(loaded)).manifest().user_data
    teacher = loaded.model_copy(update={"model": str(before)})
    assert prepare(teacher, read(teacher)).manifest().user_data, "its answers hold what it learnt"


def test_a_drafter_of_another_target_says_no_origin(made: dict[str, Path], tmp_path: Path) -> None:
    """Negative control: only what was distilled has one."""
    out = tmp_path / "run"
    train = [
        "train", str(made["set"]), "--model", str(made["teacher"]), "--out", str(out),
        "--epochs", "2", "--threads", "1",
    ]  # fmt: skip
    assert main(train) == 0
    assert "origin" not in json.loads((out / "drafter" / "provenance.json").read_text())
    assert "distilled" not in (out / "drafter" / "README.md").read_text()


def test_a_student_that_is_not_kept_gets_no_drafter(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.distil.run.verdict", lambda *scores: ["it is no better"])
    result = distil(DistilConfig(**options(made, tmp_path / "run")), quiet)
    assert result.student is None and result.drafter is None
    assert not (tmp_path / "run" / "answers").exists()


def test_an_application_that_the_student_cannot_answer_is_refused_first(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """The refusal comes before any training, so the run leaves no state."""
    other = tmp_path / "app.yaml"
    modes = {"chat_template_kwargs": {"enable_thinking": False}}
    other.write_text(json.dumps(description(tmp_path, made["teacher"], **modes)))
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        distil(DistilConfig(**options(made, tmp_path / "run", drafter=str(other))), quiet)
    assert not (tmp_path / "run").exists()


def test_a_student_without_a_spare_token_is_refused_first(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """Its drafter would have none for the mask slots."""
    bare, trainset = save_target(tmp_path / "bare", seed=1), tmp_path / "set"
    shutil.copytree(made["set"], trainset)
    manifest = read_manifest(trainset)
    target = manifest.target | {"tokenizer_sha256": tokenizer_digest(bare)}
    write_manifest(trainset, manifest.model_copy(update={"target": target}))
    changes = {"student": str(bare), "sets": (str(trainset),)}
    with pytest.raises(InvalidRequest, match=r"mask_token: .* none was found"):
        distil(DistilConfig(**options(made, tmp_path / "run", **changes)), quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"drafter": None, "drafter_rows": 9}, "drafter_rows: got 9; expected drafter beside it"),
        (
            {"drafter": None, "drafter_epochs": 2.0},
            r"drafter_epochs: got 2\.0; expected drafter beside it",
        ),
    ],
)
def test_options_of_no_drafter_are_refused(
    changes: dict[str, Any], match: str, made: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=match):
        DistilConfig(**options(made, tmp_path, **changes))


def test_an_application_that_is_not_there_is_refused(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["distil", str(made["set"]), "--student", str(made["small"]), "--out", "run"]
    assert main([*command, "--drafter", str(tmp_path / "none.yaml")]) == 2
    assert "drafter: got" in capsys.readouterr().err
