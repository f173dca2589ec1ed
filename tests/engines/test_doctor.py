"""The doctor of served pairs finds what was broken at the engine, with the healthy pair at home."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.cli import main
from paceline.core import Round
from paceline.engines import connect
from paceline.engines.doctor import ServedReport, examine_served, target
from paceline.engines.doctor.answers import Asked
from paceline.models.dflash import torch_network
from tests.engines.served import PROMPTS, make_pair, serving, write_prompts
from tests.evaluate.test_doctor import infected

CONVERSATIONS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("served-doctor"))


@pytest.fixture(scope="module")
def url(pair: Pair) -> Iterator[str]:
    with serving(*pair) as address:
        yield address


def diagnose(url: str, pair: Pair, **options: Any) -> ServedReport:
    fixed = {"dtype": "float32", "backend": "torch", "threads": 1}
    client = connect(url)
    try:
        return examine_served(
            client, str(pair[0]), str(pair[1]), CONVERSATIONS, 48, **(fixed | options)
        )
    finally:
        client.close()


def found(report: ServedReport) -> dict[str, str]:
    return {finding.name: finding.sentence for finding in report.wrong}


def test_a_healthy_pair_is_found_well(pair: Pair, url: str) -> None:
    report = diagnose(url, pair)
    assert report.healthy, report.verdict
    assert report.verdict.startswith("Nothing is wrong: acceptance length")
    assert report.rounds > 20 and report.draft_len == 5
    assert report.achieved is not None and report.achieved > 3
    assert report.expected == pytest.approx(report.achieved, abs=0.05)
    assert [each.position for each in report.positions] == [1, 2, 3, 4, 5]
    assert report.achieved == pytest.approx(1 + sum(each.achieved for each in report.positions))
    assert all(abs(each.z) < 3 for each in report.positions)


def test_wrong_layers_are_named(pair: Pair, tmp_path: Path) -> None:
    ill = infected(pair[1], tmp_path / "ill", None, dflash_config={"target_layer_ids": [2, 3]})
    with serving(pair[0], ill) as url:
        report = diagnose(url, pair)
    wrong = found(report)
    assert report.achieved < report.expected - 0.5
    assert "acceptance" in wrong
    assert re.search(r"layer ids \[2, 3\] \(off by one\) explains \d+% of the engine's rounds",
                     wrong["how the engine reads the checkpoint"])  # fmt: skip


@pytest.mark.slow
def test_slots_off_by_one_are_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = torch_network.TorchDFlash.draft

    def late(self: Any, batch: Any, **options: Any) -> Any:
        output = draft(self, batch, **options)
        output.argmax = [*output.argmax[1:], output.argmax[0]]
        return output

    monkeypatch.setattr(torch_network.TorchDFlash, "draft", late)
    with serving(*pair) as url:
        wrong = found(diagnose(url, pair))
    assert "slots one place too late" in wrong["how the engine reads the checkpoint"]


def test_a_draft_below_the_block_is_named(pair: Pair) -> None:
    with serving(pair[0], Path(f"{pair[1]},max_draft_len=2")) as url:
        report = diagnose(url, pair)
    assert set(found(report)) == {"draft length"}, report.verdict
    assert re.search(
        r"draft length: the engine drafts 2 of the block's 5 tokens: acceptance length [23]\.\d+ "
        r"incl\. bonus with this drafter, [3-6]\.\d+ with the whole block; draft 5 tokens\.",
        report.verdict,
    )


@pytest.mark.slow
def test_the_window_that_a_folder_sets_is_no_fault(pair: Pair, tmp_path: Path) -> None:
    """Paceline lets the drafter see the context of its training only, and the doctor knows."""
    short = tmp_path / "short"
    shutil.copytree(pair[1], short)
    own = json.loads((short / "paceline.json").read_text())
    own["provenance"] = {**own.get("provenance", {}), "context": 6}
    (short / "paceline.json").write_text(json.dumps(own))
    with serving(pair[0], short) as url:
        report = diagnose(url, (pair[0], short))
    assert report.achieved is not None
    assert report.expected == pytest.approx(report.achieved, abs=0.05)
    assert "acceptance" not in found(report), report.verdict


def with_template(target: Path, folder: Path, template: str) -> Path:
    shutil.copytree(target, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return folder


@pytest.mark.slow
def test_another_template_is_named_with_its_first_difference(pair: Pair, tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    other = with_template(pair[0], tmp_path / "other", template)
    with serving(other, pair[1]) as url:
        wrong = found(diagnose(url, pair))
    assert set(wrong) == {"prompt"}
    assert "the chat template is another: at token 0 the engine's prompt" in wrong["prompt"]
    assert "goes on with '<user>', ours with 'user: '" in wrong["prompt"]


@pytest.mark.slow
def test_a_thinking_mode_is_named(pair: Pair, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
    )
    home = with_template(pair[0], tmp_path / "home", template)
    other = with_template(pair[0], tmp_path / "other", template.split("{% if")[0] + "</think>")
    with serving(other, pair[1]) as url:
        report = diagnose(url, (home, pair[1]))
    (told,) = (finding for finding in report.findings if finding.name == "prompt")
    assert (
        "thinking mode: the engine renders the template with enable_thinking off" in told.evidence
    )


def test_a_quantised_target_is_named(pair: Pair) -> None:
    options = {"dtype": "bfloat16", "backend": "auto", "quantize": "int8"}
    with serving(*pair, **options) as url:
        report = diagnose(url, pair)
    assert (
        "the engine serves quantised weights, or another revision" in found(report)["served target"]
    )


@pytest.mark.parametrize(("likely", "healthy"), [(0.5, True), (0.9, False)])
def test_sampling_that_rejects_too_much_is_named(
    monkeypatch: pytest.MonkeyPatch, likely: float, healthy: bool
) -> None:
    """Every second round of the engine accepts its first draft token; the target gives it more."""
    rounds = [Round(1 + place, 4, place % 2) for place in range(30)]
    asked = [Asked(str(i), [1, 2], list(range(60)), rounds) for i in range(6)]
    trained: Any = SimpleNamespace(config=None)
    monkeypatch.setattr(target, "draft_tokens", lambda *_: np.zeros((30, 4), int))
    monkeypatch.setattr(target, "_probabilities", lambda *_: np.full(30, likely))
    finding = target.sampled_finding(trained, trained, asked, 4)
    assert finding.ok is healthy
    share = f"50% of 180 rounds accept .* the target here gives it {100 * likely:.0f}%"
    assert re.search(share, finding.evidence)


def test_a_drafter_that_does_not_fit_here_is_a_finding(
    pair: Pair, url: str, tmp_path: Path
) -> None:
    ill = infected(pair[1], tmp_path / "ill", None, num_target_layers=9)
    report = diagnose(url, (pair[0], ill))
    assert "num_target_layers is 9; expected 5" in report.verdict and not report.healthy


def test_an_engine_that_drafts_nothing_is_a_finding(pair: Pair) -> None:
    with serving(pair[0], None) as url:
        assert "the engine drafts nothing" in diagnose(url, pair).verdict


def test_the_command_prints_and_exits_by_what_it_finds(
    pair: Pair, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--prompts",
        str(write_prompts(tmp_path)),
        "--max-tokens",
        "48",
        "--dtype",
        "float32",
    ]
    names = [str(pair[0]), str(pair[1])]
    assert main(["doctor", url, *names, *options]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is wrong" in shown and "accepted by position" in shown
    with serving(pair[0], Path(f"{pair[1]},max_draft_len=2")) as short:
        assert main(["doctor", short, *names, *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False and report["verdict"].startswith("draft length")
    assert report["positions"][0]["achieved"] > 0.5


def test_an_engine_that_is_not_there_is_an_error(pair: Pair, capsys: Any) -> None:
    names = [str(pair[0]), str(pair[1])]
    assert main(["doctor", "http://127.0.0.1:9", *names]) == 3
    assert "no engine at http://127.0.0.1:9" in capsys.readouterr().err
