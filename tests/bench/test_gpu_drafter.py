"""The recipe of a drafter within minutes: the same commands on a GPU and in a rehearsal."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.evaluate import EvaluateCommand
from paceline.cli.options import add_options, read_options
from paceline.cli.synth import SynthCommand
from paceline.cli.train import TrainCommand

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
APP = {
    "name": "tiny",
    "sampling": {"temperature": 0, "max_tokens": 16},
    "held_out": 0.3,
    "sources": [
        {"name": "asks", "kind": "phrases", "path": "phrases.yaml"},
        {"name": "others", "kind": "phrases", "path": "others.yaml", "part": "foreign"},
    ],
}
Run = Callable[..., None]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_drafter")


@pytest.fixture
def run(recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    def run(*words: str) -> None:
        argv = ["gpu_drafter.py", "--out", str(tmp_path / "out"), *words]
        monkeypatch.setattr(sys, "argv", argv)
        recipe.main()

    return run


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name in ("phrases", "others"):
        phrases = [f"{name} {{number}} of {letter}?" for letter in "abcdef"]
        text = {"phrases": phrases, "slots": {"number": ["###"]}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(text))
    path = tmp_path / "app.yaml"
    path.write_text(json.dumps(APP))
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "minutes: got 0.0; expected a number from 1 to 600"),
        (["--minutes", "nan"], "minutes: got"),
        (["--model", "no-such-model"], "'no-such-model': no such model"),
        (["--app", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_bad_input_is_refused_by_name(words: list[str], said: str, run: Run) -> None:
    with pytest.raises(SystemExit, match="error: ") as caught:
        run("--device", "cpu", *words)
    assert said in str(caught.value)


def test_a_folder_with_something_in_it_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "set").touch()
    with pytest.raises(SystemExit, match=r"out: got .* expected a new or empty folder"):
        run("--device", "cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_commands_are_ones_that_paceline_takes(
    device: str, recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recipe.torch.cuda, "mem_get_info", lambda: (0, 139 << 30))
    args = argparse.Namespace(model="m", app=tmp_path / "a.yaml", device=device, out=tmp_path)
    words = {
        SynthCommand: recipe.synth_words(args, 0.05),
        TrainCommand: recipe.train_words(args, 0.05),
        EvaluateCommand: recipe.evaluate_words(args, "demo", tmp_path / "demo.html"),
    }
    read = {}
    for kind, given in words.items():
        parser = argparse.ArgumentParser(exit_on_error=False)
        add_options(parser, kind)
        read[kind] = read_options(parser.parse_args(given), kind)
    synth, train, evaluate = read.values()
    assert synth.engine.device == train.device == evaluate.engine.device == device
    assert synth.hours == train.hours == 0.05
    assert train.features_gb == {"cpu": 1, "cuda": 69}[device]


def test_training_has_what_is_left_and_is_not_begun_with_next_to_nothing(recipe: Any) -> None:
    now = time.monotonic()
    assert recipe.Plan(10, start=now).synth_hours == pytest.approx(4 / 60)
    assert recipe.Plan(10, start=now - 270).train_hours == pytest.approx(3.5 / 60, abs=1e-3)
    with pytest.raises(SystemExit, match=r"no time is left to train: 7\.\d of 10 minutes are gone"):
        _ = recipe.Plan(10, start=now - 465).train_hours


def test_sets_are_measured_as_long_as_there_is_time(
    recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    args = argparse.Namespace(model="m", device="cpu", out=tmp_path, minutes=10)
    plan, asked = recipe.Plan(10, start=time.monotonic() - 530), []
    numbers = {"requests": 5, "rounds": 9, "drafted_rounds": 9, "al_mean_of_requests": 4.0}
    numbers |= {"al": 4.0, "al_interval": [3.5, 4.5], "positions": [], "contexts": []}
    acceptance = {recipe.DRAFTER: recipe.AcceptanceNumbers.read(numbers, "acceptance")}
    result = argparse.Namespace(acceptance=acceptance)
    evaluation = argparse.Namespace(results=[result], text_is_broken=True)

    def command(name: str, words: list[str], shown: bool, written: Path) -> str:
        asked.append(words[2])
        object.__setattr__(plan, "start", plan.start - 40)  # it took 40 seconds
        return ""

    monkeypatch.setattr(recipe, "command", command)
    manifest = argparse.Namespace(counts={"rows_foreign": 1})
    monkeypatch.setattr(recipe, "read_manifest", lambda folder: manifest)
    monkeypatch.setattr(recipe.Evaluation, "read_file", lambda path, field: evaluation)
    results = recipe.evaluate(args, plan)
    assert asked == [str(tmp_path / "set")] and list(results) == ["held out"]
    said = capsys.readouterr().out
    assert "held out: TEXTS DIFFER" in said and "no time is left for demo" in said
    plan, manifest.counts = recipe.Plan(10), {}
    assert list(recipe.evaluate(args, plan)) == ["held out", "demo"]
    lines = list(recipe.lines_of(results))
    assert lines == [
        ("held out", 5, 9, "4.00 (3.50–4.50)", "met"),
        ("mean of 1", "", "", "4.00", "met"),
    ]
    assert recipe.verdict(3.99) == "missed" and recipe.verdict(None) == "not measured"


def test_a_command_that_fails_ends_the_run_unless_it_wrote_its_report(
    recipe: Any, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    with pytest.raises(SystemExit, match="no-such-command: exit code 2"):
        recipe.command("no-such-command", [], written=report)
    report.touch()
    assert recipe.command("no-such-command", [], written=report) == ""


@pytest.mark.slow
@pytest.mark.model
def test_a_rehearsal_makes_a_drafter(app: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, str(BENCHMARKS / "gpu_drafter.py"), "--model", "smollm2-135m"]
    command += ["--device", "cpu", "--minutes", "1", "--app", str(app), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "run" / "drafter" / "model.safetensors").is_file()
    assert "| held out |" in done.stdout and "| mean of " in done.stdout
    assert "missed" in done.stdout or "met" in done.stdout
