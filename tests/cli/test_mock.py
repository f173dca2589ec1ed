"""`paceline mock` and `paceline roofline measure`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.roofline.device import Hardware
from paceline.roofline.fit import read_points
from tests.bench.mocks import TINY_DFLASH, config_file
from tests.engine.tiny import save_tiny

SHORT = ["--draft-lengths", "3", "--steps", "8", "--context", "60", "--threads", "1"]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    return capsys.readouterr().err


def test_a_mock_is_a_table_that_says_so_and_a_file_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "mock.json"
    words = ["mock", str(config_file(tmp_path)), "--acceptance-length", "1,4", "--batch", "1,2"]
    assert main([*words, *SHORT, "--drafter-cost", "0.3", "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "NOT lossless" in said.replace("\n", " ")
    assert "roofline" in said and "--calibration" in said
    rows = [line.split() for line in said.splitlines() if "±" in line and line.split()[0] == "3"]
    assert [row[1] for row in rows] == ["1.00", "4.00"] * 2
    assert [row[2] for row in rows] == ["1.00", "4.00"] * 2  # nothing to draw: exactly so
    written = json.loads(out.read_text("utf-8"))
    assert written["lossless"] is False
    assert [cell["batch"] for cell in written["cells"]] == [1, 1, 2, 2]
    assert len(read_points(out)) == 8  # `paceline roofline fit` reads them


def test_rates_set_the_draft_length_and_the_calibrated_tier_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = tmp_path / "calibration.json"
    calibration.write_text(json.dumps({"step_overhead": 1e-4}), "utf-8")
    words = ["mock", str(config_file(tmp_path)), "--rates", "1,1", "--steps", "8", "--context"]
    words += ["60", "--calibration", str(calibration), "--hardware", "H100-SXM", "--threads", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "calibrated" in said
    (row,) = [line.split() for line in said.splitlines() if "±" in line and "3.00" in line]
    assert row[:3] == ["2", "3.00", "3.00"]


@pytest.mark.parametrize(
    ("profile", "al"),
    [({"unconditional": [1.0, 0.0]}, "2.00"), ({"conditional": [1.0, 1.0]}, "3.00")],
)
def test_a_profile_says_which_rates_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: dict, al: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile), "utf-8")
    words = ["mock", str(config_file(tmp_path)), "--profile", str(path), "--steps", "8"]
    assert main([*words, "--context", "60", "--threads", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert ["2", al, al] in [row[:3] for row in rows]


def test_launch_prints_lines_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mock", "org/model", "--acceptance-length", "2", "--draft-lengths", "3"]
    assert main([*words, "--launch", "sglang", "--drafter", "mtp", "--tensor-parallel", "4"]) == 0
    said = capsys.readouterr().out
    assert "SGLANG_SIMULATE_ACC_LEN=2 " in said and "--tp-size 4" in said
    assert said.count("--load-format dummy") == 2  # AR too


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--acceptance-length", "9", "--draft-lengths", "3"], "acceptance_length: got 9.0"),
        (["--acceptance-length", "0.5"], "acceptance_length: got 0.5; expected 1 or more"),
        (["--rates", "0.5,1.5"], "conditional"),
        (["--rates", "0.5", "--draft-lengths", "3"], "draft_lengths: got 3; expected at most 1"),
        (["--context", "5"], "context: got 5; expected at least"),
        (["--batch", "-2"], "batches: got (-2,); expected whole numbers from 1"),
        (["--batch", "0"], "batches: got (0,)"),
        (["--batch", "1,5000"], "batches: got (1, 5000); expected whole numbers from 1 to 4096"),
        (["--drafter-cost", "2"], "drafter_cost: got 2.0"),
        (["--drafter-block", "4"], "drafter_block: got 4"),
        (["--drafter", "mtp"], "drafter: got 'mtp'; expected no value without --launch"),
        (["--launch", "vllm"], "drafter: got null; expected KIND"),
        (["--launch", "vllm", "--drafter", "mtp", "--steps", "9"], "steps: got '9'"),
        (["--profile", "nowhere.json"], "profile: got 'nowhere.json'"),
        (["--hardware", "abacus"], "hardware: got 'abacus'"),
        (["--drafter-config", "nowhere.json"], "drafter_config: got 'nowhere.json'"),
    ],
)
def test_bad_options_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert says in refusal(capsys, "mock", str(config_file(tmp_path)), *words)


def test_an_unknown_family_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, architectures=["MambaForCausalLM"], model_type="mamba9")
    assert "architecture MambaForCausalLM is not supported" in refusal(capsys, "mock", str(path))
    path = config_file(tmp_path, model_type="mamba9")
    assert "does not know the family 'mamba9'" in refusal(capsys, "mock", str(path))


def test_a_batch_beyond_the_memory_is_refused_with_both_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["mock", "Qwen3-8B", "--acceptance-length", "2", "--context", "32000"]
    said = refusal(capsys, *words, "--batch", "4096")
    assert "model: got 'Qwen3-8B'" in said
    assert "weights and KV need" in said and "are available" in said


def test_a_broken_drafter_config_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "drafter.json"
    words = ["mock", str(config_file(tmp_path)), *SHORT, "--acceptance-length", "2"]
    words += ["--drafter-config", str(broken)]
    broken.write_text('{"model_type": "qwen3", "text_config": "x"}', "utf-8")
    assert "drafter_config: config: text_config is 'x'" in refusal(capsys, *words)
    broken.write_text("[1]", "utf-8")
    assert "drafter_config: " in refusal(capsys, *words)


def test_a_dflash_config_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "drafter").mkdir()
    drafter = config_file(tmp_path / "drafter", TINY_DFLASH)
    words = ["mock", str(config_file(tmp_path)), "--acceptance-length", "2"]
    assert main([*words, *SHORT, "--drafter-config", str(drafter.parent)]) == 0
    assert main([*words, "--draft-lengths", "8", "--drafter-config", str(drafter)]) == 2
    assert (
        "max_draft_len: got 8; expected at most 7: it drafts blocks of 8" in capsys.readouterr().err
    )


def test_measured_steps_are_what_fit_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, machine = tmp_path / "points.json", tmp_path / "machine.json"
    model = tmp_path / "model"
    model.mkdir()
    words = ["roofline", "measure", str(save_tiny(model)), "--out", str(out), "--threads", "1"]
    words += ["--batch", "1,3", "--rows", "1,4", "--context", "20,50", "--rounds", "2"]
    assert main([*words, "--machine", str(machine)]) == 0
    assert "8 steps" in capsys.readouterr().out
    points = read_points(out)
    assert {(point.batch, point.rows) for point in points} == {(1, 1), (1, 4), (3, 1), (3, 4)}
    assert all(point.seconds > 0 for point in points)
    assert Hardware.from_file(machine, "hardware").memory_bandwidth > 1e8
    assert json.loads(out.read_text("utf-8"))["lossless"] is False
    assert "contexts: got" in refusal(capsys, *words[:5], "--context", "5000")
