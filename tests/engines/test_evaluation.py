"""`paceline evaluate --engine`: the same report of an engine that is asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.evaluate.evaluation import evaluate
from paceline.evaluate.result import Evaluation, EvaluationSettings
from tests.engines.served import ENGINE, make_pair, serving, write_prompts

SHORT = ["--tokens", "40", "--temperatures", "0,1"]
SETTINGS = EvaluationSettings(tokens=40, temperatures=(0.0, 1.0))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def url(pair: tuple[Path, Path]) -> Iterator[str]:
    with serving(*pair) as address:
        yield address


def run(pair: tuple[Path, Path], home: Path, engine: str, *more: str) -> tuple[int, dict[str, Any]]:
    out = home / "report.html"
    sets = str(write_prompts(home))
    names = [str(pair[0]), f"mine={pair[1]}", sets]
    code = main(["evaluate", *names, "--engine", engine, "--out", str(out), *SHORT, *more])
    path = out.with_suffix(".json")
    return code, json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.slow
def test_our_server_gives_the_rows_of_our_engine(
    pair: tuple[Path, Path], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, served = run(pair, tmp_path, url)
    assert code == 0
    drafter = f"mine={pair[1]}"
    sets = [str(tmp_path / "few.jsonl")]
    ours = evaluate(str(pair[0]), drafter, sets, SETTINGS, **ENGINE).as_json()
    assert served["model"] == ours["model"] and served["same_text"] is True
    assert len(served["results"]) == 2
    for one, expected in zip(served["results"], ours["results"], strict=True):
        assert one["acceptance"]["drafter"] == expected["acceptance"]["drafter"]
        assert one["acceptance"]["drafter"]["rounds"] > 10
        for row, same in zip(one["rows"], expected["rows"], strict=True):
            for key in ("prompt", "prompt_sha256", "prompt_tokens", "output_sha256", "seed",
                        "counted_tokens", "finish_reason"):  # fmt: skip
                assert row[key] == same[key]
            assert row["rounds"]["drafter/full"] == same["rounds"]["drafter/full"]
        assert set(one["speed"]) == {"drafter/throughput", "drafter/full"}
        assert one["speed"]["drafter/full"]["speedup"] > 0
    shown = capsys.readouterr().out
    assert "same text: yes" in shown and "accepted by position" in shown
    assert Evaluation.from_json(served, "served").engine.promises_text
