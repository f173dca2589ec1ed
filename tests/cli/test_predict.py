"""`paceline predict`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.cli.predict import read_device
from paceline.roofline.architecture import model_config

DENSE = ("predict", "Qwen3-8B", "--hardware", "H100-SXM")
MTP = ("--drafter", "mtp:0.1,alpha=0.75")
DFLASH = ("--drafter", "dflash:0.1,block=15,al=5.5,draft_length=15")


def test_a_table_marks_the_optimum_and_flags_come_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*DENSE, *MTP, "--max-draft", "4"]) == 0
    shown = capsys.readouterr().out
    assert "Qwen3-8B (8.19B parameters" in shown and "batch 1, context 4096" in shown
    rows = [line.split() for line in shown.splitlines() if line.strip()[:2].strip().isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    marked = [row[0] for row in rows if "<" in " ".join(row)]
    assert len(marked) in (1, 2)
    best = marked[-1]
    said = " ".join(shown.split())
    assert f"mtp: draft {best} for" in said and "it pays above an AL of" in said
    assert f'"method": "mtp", "num_speculative_tokens": {best}' in shown


def test_every_number_of_the_table_is_that_of_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    more = ["--by-batch", "1,64", "--by-context", "1024,8192", "--components", "--json", str(path)]
    assert main([*DENSE, *MTP, *DFLASH, *more]) == 0
    shown = capsys.readouterr().out
    answer = json.loads(path.read_text())
    assert [drafter["name"] for drafter in answer["drafters"]] == ["mtp", "dflash"]
    for drafter in answer["drafters"]:
        for tier in ("roofline", "calibrated"):
            for speedup in drafter["curve"][tier]["speedup"]:
                assert f"{speedup:.2f}×" in shown
            for view in ("by_batch", "by_context"):
                best = drafter[view][tier]
                for length, speedup in zip(best["draft_length"], best["speedup"], strict=True):
                    assert f"{speedup:.2f}× at {length}" in shown
    assert "Where a step's time goes" in shown and "feed_forward" in shown
    assert answer["drafters"][1]["curve"]["acceptance_length"][15] == pytest.approx(5.5)


def test_a_folder_of_ones_own_a_device_of_ones_own_and_a_drafter_by_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("target", "small"):
        (tmp_path / name).mkdir()
    target, small = model_config("Qwen3-8B"), model_config("Qwen3-0.6B")
    (tmp_path / "target" / "config.json").write_text(json.dumps(target))
    (tmp_path / "small" / "config.json").write_text(json.dumps(small))
    device = {"name": "mine", "memory_bandwidth": 1e12, "peak": {"bf16": 1e14}, "memory": 48e9}
    (tmp_path / "device.json").write_text(json.dumps(device))
    (tmp_path / "mine.json").write_text(json.dumps({"memory_efficiency": 0.5}))
    out = tmp_path / "out.json"
    drafter = f"little=draft_model:{tmp_path}/small,conditional=0.8,0.7,0.6"
    arguments = ["predict", f"{tmp_path}/target", "--hardware", f"{tmp_path}/device.json",
                 "--drafter", drafter, "--calibration", f"{tmp_path}/mine.json",
                 "--precision", "fp8", "--json", str(out)]  # fmt: skip
    assert main(arguments) == 0
    answer = json.loads(out.read_text())
    assert answer["model"]["name"] == "target" and answer["hardware"]["name"] == "mine"
    assert answer["calibration"]["name"] == "fitted"
    assert answer["calibration"]["memory_efficiency"] == 0.5
    assert answer["drafters"][0]["name"] == "little"
    assert answer["drafters"][0]["curve"]["draft_length"] == [0, 1, 2, 3]
    shown = " ".join(capsys.readouterr().out.split())
    line = f"paceline serve {tmp_path}/target --drafter draft_model:{tmp_path}/small,max_draft_len="
    assert line in shown


def test_acceptance_of_drafters_that_state_none(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = [*DENSE, "--drafter", "mtp:0.1", "--drafter", "suffix,alpha=0.3"]
    assert main([*arguments, "--acceptance", "alpha=0.9", "--json", str(out)]) == 0
    first, second = json.loads(out.read_text())["drafters"]
    assert first["acceptance"][0] == pytest.approx(0.9)
    assert second["acceptance"][0] == pytest.approx(0.3)


def test_a_recorded_evaluation_is_an_acceptance(tmp_path: Path) -> None:
    rounds = [[1 + 5 * i, 4, (0, 2, 4)[i % 3]] for i in range(30)]
    row = {"counted_tokens": 200, "rounds": {"drafter/full": rounds}}
    result = {
        "format": "paceline-evaluation/1",
        "drafters": {"drafter": {"block": 4}},
        "settings": {"tokens": 256},
        "results": [{"rows": [row]}],
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(result))
    out = tmp_path / "out.json"
    drafter = f"dflash:0.1,block=4,trace={tmp_path}/evaluation.json"
    assert main([*DENSE, "--drafter", drafter, "--json", str(out)]) == 0
    found = json.loads(out.read_text())["drafters"][0]["curve"]["acceptance_length"]
    assert found == pytest.approx([1, 1 + 2 / 3, 1 + 4 / 3, 1 + 5 / 3, 3])


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_chart(suffix: str, tmp_path: Path) -> None:
    chart = tmp_path / f"chart{suffix}"
    assert main([*DENSE, *MTP, *DFLASH, "--plot", str(chart)]) == 0
    head = chart.read_bytes()[:200]
    assert b"<svg" in chart.read_bytes()[:1000] if suffix == ".svg" else head[1:4] == b"PNG"


def test_a_chart_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*DENSE, *MTP, "--plot", str(tmp_path / "chart.svg")]) == 1
    assert "--plot needs the package matplotlib: pip install 'matplotlib" in capsys.readouterr().err


def log(path: Path, ttft: float) -> str:
    lines = []
    for second in range(40):
        entry = {
            "usage": {"prompt_tokens": 900, "completion_tokens": 100},
            "start_time": 1000.0 + second,
            "first_token_time": 1000.0 + second + ttft,
            "end_time": 1004.0 + second,
        }
        lines.append(json.dumps(entry))
    path.write_text("\n".join(lines))
    return str(path)


def test_traffic_sets_batch_and_context_and_tells_the_gain_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    traffic = ["--traffic", log(tmp_path / "log.jsonl", ttft=1.0), "--json", str(out)]
    assert main([*DENSE, *MTP, *traffic]) == 0
    answer = json.loads(out.read_text())
    assert answer["scenario"]["batch"] == 3 and answer["scenario"]["context"] == 950
    assert answer["traffic"]["decode_share"] == pytest.approx(0.75)
    speedup = answer["drafters"][0]["optimum"]["calibrated"]["speedup"]
    assert answer["end_to_end"][0]["gain"] == pytest.approx(1 / (0.25 + 0.75 / speedup))
    shown = capsys.readouterr().out
    assert "time in decode: 75%; 3.7 requests at once" in shown and "from end to end" in shown


def test_traffic_of_prompts_is_plainly_not_worth_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*DENSE, *MTP, "--traffic", log(tmp_path / "log.jsonl", ttft=3.95)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mtp: not worth it, 1.01× from end to end: prompts and waiting dominate" in shown


def test_numbers_come_with_their_band_and_published_measurements(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "predict",
        "Qwen3.5-27B",
        "--hardware",
        "B200",
        "--drafter",
        "mtp,al=4.6,draft_length=7",
    ]
    assert main([*words, "--max-draft", "7"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mtp: draft 7 for 210 tok/s a request (175 to 298)" in shown
    assert "calibrated with sglang-b200: two model cards" in shown
    assert "mtp 7 5.36 244 2.91×" in shown  # the card's mean at batch 1
    assert "Paceline: none: Paceline does not serve the family qwen3_5" in shown
    assert main(["predict", "Qwen3-8B", "--hardware", "EPYC-Turin", *MTP]) == 0
    assert "never measured on EPYC-Turin" in " ".join(capsys.readouterr().out.split())


def test_where_no_draft_pays_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DENSE, "--drafter", "mtp:0.5,alpha=0.2"]) == 0
    shown = capsys.readouterr().out
    assert "mtp is not worth it here" in shown
    assert "vllm serve MODEL\n" in shown  # launched without speculation


def test_where_no_draft_fits_the_memory_it_says_that(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "Qwen3.5-35B-A3B", "--hardware", "B200", "--batch", "512"]
    assert main([*words, "--by-batch", "256,512,1024", *MTP]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mtp: no draft fits the memory beside the requests" in shown
    assert "drafts of 1 to 16 tokens do not fit the memory" in shown
    assert "faster than none" not in shown and "not worth it" not in shown
    assert "512 no draft fits no draft fits 1024 does not fit" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "gpt-9", "--hardware", "B200", *MTP], "model: got 'gpt-9'; expected a folder"),
        (["predict", "Qwen3-8B", "--hardware", "B9", *MTP], "hardware: got 'B9'; expected one of"),
        ([*DENSE, "--drafter", "mtp:0.1"], "drafters[0].acceptance: got null"),
        ([*DENSE, "--drafter", "dflash"], "block (tokens that one pass drafts, with a cost), acc"),
        ([*DENSE, "--drafter", "medusa:0.1,alpha=1"], "drafter: got 'medusa:0.1,alpha=1'"),
        ([*DENSE, "--drafter", "mtp:0.1,speed=3"], "drafter: got 'speed'; expected one of seconds"),
        ([*DENSE, "--drafter", "mtp:./nowhere,alpha=1"], "a cost (a number), a folder or"),
        ([*DENSE, "--drafter", "dflash:0.1,block=7,alpha=0.8,max_draft=9"], "max_draft: got 9"),
        ([*DENSE, *MTP, "--batch", "-2"], "batch: got -2"),
        ([*DENSE, *MTP, "--batch", "5000"], "batch: got 5000; expected at most"),
        ([*DENSE, *MTP, "--precision", "attention=fp3"], "precision.attention: got 'fp3'"),
        ([*DENSE, *MTP, "--calibration", "no.json"], "calibration: got 'no.json'"),
        ([*DENSE, *MTP, "--plot", "chart.pdf"], "plot: got 'chart.pdf'; expected a name that ends"),
        ([*DENSE, *MTP, "--traffic", "no.jsonl"], "traffic: got 'no.jsonl'"),
        ([*DENSE, *MTP, "--json", "/no/such/folder/out.json"], "json: got '/no/such/folder/out"),
    ],
)
def test_what_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_family_that_is_unknown_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {**model_config("Qwen3-8B"), "model_type": "mamba9"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["predict", str(tmp_path), "--hardware", "B200", *MTP]) == 2
    assert "does not know the family 'mamba9'" in capsys.readouterr().err


def test_a_listed_device_goes_before_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "B200").write_text("")
    assert read_device("B200").name == "B200"
