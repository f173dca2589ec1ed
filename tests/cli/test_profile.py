"""`paceline profile`: what it refuses before a model is loaded, and what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import llm
from paceline.cli import main
from tests.engine.tiny import save_tiny


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "0"),
        ("--batch", "0"),
        ("--batch", "65"),
        ("--max-tokens", "1"),
        ("--prompts", "no-such-set"),
        ("--device", "cuda"),
        ("--trace", "no/such/folder/trace.json"),
        ("--json", "."),
    ],
)
def test_bad_input_is_refused_by_name_before_a_model_is_loaded(
    option: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_model(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(llm, "LLM", no_model)
    assert main(["profile", option, value]) == 2
    told = capsys.readouterr().err
    assert option[2:].replace("-", "_") in told and "expected" in told


def test_an_unknown_model_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "./no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_a_profile_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, trace, numbers = tmp_path / "tiny", tmp_path / "trace.json", tmp_path / "numbers.json"
    model.mkdir()
    save_tiny(model)
    command = ["profile", str(model), "--drafter", "ngram", "--draft-policy", "fixed"]
    command += ["--steps", "5", "--max-tokens", "12", "--threads", "1", "--kv-memory", "4MiB"]
    assert main([*command, "--trace", str(trace), "--json", str(numbers)]) == 0
    shown = capsys.readouterr().out
    for name in ("schedule", "forward", "gate_up", "sample", "commit", "detokenise", "unaccounted"):
        assert f" {name} " in shown
    assert shown.count("Largest gap to the roofline") + shown.count("No gap: ") == 2
    told = json.loads(numbers.read_text("utf-8"))
    assert [one["pass"] for one in told["passes"]] == ["AR", "speculative"]
    assert all(one["decode_steps"] == 5 for one in told["passes"])
    for one in told["passes"]:
        leaves = sum(span["ms"] for span in one["spans"] if span["leaf"])
        assert leaves == pytest.approx(one["step_ms"]["mean"])
    assert [line["span"] for line in told["served"]] == ["step", "deliver", "format", "send"]
    assert all(line["per_step"] > 0 and line["ms_per_step"] > 0 for line in told["served"])
    assert json.loads(trace.read_text("utf-8"))["otherData"]["model"] == "tiny"
