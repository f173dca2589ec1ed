"""`paceline synth`, from the command line on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli import main
from paceline.dataset import training_set
from paceline.dataset.training_set import read_manifest
from tests.synth.servers import Behaviour, serving
from tests.synth.tiny import description, save_target

FAST = ["--threads", "1", "--max-num-seqs", "8"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target") / "tiny-target")


@pytest.fixture
def app(target: Path, tmp_path: Path) -> Path:
    return write(tmp_path, target)


def write(folder: Path, target: Path | str, **changes: Any) -> Path:
    path = folder / "app.yaml"
    path.write_text(yaml.safe_dump(description(folder, target, **changes)))
    return path


def test_a_set_is_made_and_reported(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "set"
    assert main(["synth", str(app), "-o", str(out), *FAST]) == 0
    shown = capsys.readouterr().out
    for words in ("task", "on-task", "75.0%", "not stated", "40 rows with", "tokens/s"):
        assert words in shown
    assert main(["synth", str(app), "-o", str(out), "--rows", "50", "--json", *FAST]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["complete"] and done["counts"]["rows"] == 50 == read_manifest(out).counts["rows"]
    assert done["tokens_per_second"] > 0 and 1 < done["mean_batch"] <= 8
    assert read_manifest(out).user_data is False


def test_a_large_batch_can_be_asked_for(app: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert main(["synth", str(app), "-o", str(out), "--threads", "1", "--max-num-seqs", "600"]) == 0
    assert read_manifest(out).counts["rows"] == 40


def test_a_preview_shows_prompts_and_answers_and_writes_nothing(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(tmp_path.rglob("*"))
    assert main(["synth", str(app), "--preview", "1", *FAST]) == 0
    shown = capsys.readouterr().out
    assert "Be brief." in shown and "Q: task number" in shown and "far#" in shown
    assert set(tmp_path.rglob("*")) == before


def test_servers_answer_instead_of_an_engine(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = Behaviour()
    with serving(behaviour) as url:
        command = ["synth", str(app), "-o", str(tmp_path / "set"), "--url", url, "--json"]
        assert main([*command, "--api-key", "k"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["rows"] == 40
    assert behaviour.bodies[0]["model"] == "served-name"
    assert read_manifest(tmp_path / "set").target["answers"] == "endpoint: served-name"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "out: got null; expected a folder for the set, or --preview"),
        (["-o", "x", "--preview", "1"], "or --preview instead"),
        (["--preview", "0"], "preview: got 0; expected a whole number"),
        (["-o", "x", "--rows", "0"], "rows: got 0"),
        (["-o", "x", "--concurrency", "4"], "concurrency: got 4; expected --url beside it"),
        (["-o", "x", "--api-key", "k"], "api_key: got 'k'; expected --url beside it"),
        (["-o", "x", "--url", "http://127.0.0.1:9", "--concurrency", "0"], "concurrency: got 0"),
        (["-o", "x", "--url", "http://127.0.0.1:9", "--quantize", "int8"], "no such option with"),
        (["-o", "x", "--url", "http://127.0.0.1:9", "--drafter", "ngram"], "no such option with"),
        (["-o", "x", "--url", "http://127.0.0.1:9"], "no server at"),
        (["-o", "x", "-m", "nothing"], "no such model"),
        (["-o", "app.yaml"], "out: got 'app.yaml'; expected a folder"),
        (["-o", "."], "a new or empty folder"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_made(
    options: list[str],
    message: str,
    app: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    assert main(["synth", str(app), *options]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


def test_a_users_turn_cannot_be_asked_of_a_server(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write(tmp_path, target, sources=[{"name": "me", "kind": "self"}])
    assert main(["synth", str(app), "-o", str(tmp_path / "x"), "--url", "http://h"]) == 2
    assert "sources[0].kind: got 'self'; expected no such source" in capsys.readouterr().err


def test_users_data_is_refused_unless_allowed_and_then_recorded(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"name": "logs", "kind": "jsonl", "path": "task.jsonl", "user_data": True}
    app = write(tmp_path, target, sources=[source], size={"rows": 5})
    command = ["synth", str(app), "-o", str(tmp_path / "x"), *FAST]
    assert main(command) == 2 == main([*command, "--no-user-data"])
    assert "--user-data" in capsys.readouterr().err
    assert main([*command, "--user-data"]) == 0
    assert read_manifest(tmp_path / "x").user_data is True


def test_without_the_extra_its_name_is_told(
    app: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training_set.importlib.import_module

    def missing(name: str) -> Any:
        if not name.startswith("paceline"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(training_set.importlib, "import_module", missing)
    assert main(["synth", str(app), "--preview", "1"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"training sets need the package (\w+): pip install '\1[<>]", said)


@pytest.mark.model
@pytest.mark.slow
def test_the_support_application_makes_a_set_of_tool_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = Path(__file__).resolve().parents[2] / "apps" / "support.yaml"
    out = tmp_path / "set"
    command = ["synth", str(app), "-o", str(out), "--rows", "30", "--json"]
    assert main(command) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts["rows"] == 30 and counts["rows_on_task"] > 15

    from paceline.dataset.training_set import read_rows
    from paceline.models.loader import load_model

    words = load_model("smollm2-135m").tokenizer
    for row in read_rows(out, "train"):
        if row.part == "on_task":
            ((start, end),) = row.spans
            call = json.loads(words.decode(row.ids[start : end - 1]))
            assert set(call) == {"tool", "arguments"}
