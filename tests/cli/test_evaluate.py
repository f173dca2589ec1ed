"""`paceline evaluate`, end to end over a tiny model and a DFlash drafter with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load.answers import MeasuredAnswer
from paceline.cli import main
from paceline.evaluate import measure
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter

FIXED = ["--dtype", "bfloat16", "--threads", "1", "--kv-memory", "16MiB"]
SHORT = ["--tokens", "16", "--prompts", "3", "--temperatures", "0,1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("evaluate-cli")
    (home / "target").mkdir()
    save_tiny(home / "target", blur=0.0)
    write_drafter(home / "drafter")
    lines = [json.dumps({"prompt": f"say {i}"}) for i in range(5)]
    (home / "few.jsonl").write_text("\n".join(lines))
    return home


def evaluate(home: Path, out: Path, *more: str, sets: tuple[str, ...] = ()) -> int:
    chosen = sets or (f"own={home}/few.jsonl:on_task", f"{home}/few.jsonl")
    arguments = [str(home / "target"), str(home / "drafter"), *chosen, "--out", str(out)]
    return main(["evaluate", *arguments, *SHORT, *FIXED, *more])


def test_it_writes_a_page_with_json_beside_it_and_prints_a_table(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert evaluate(home, out) == 0
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["format"] == "paceline-evaluation/1" and result["drafter"] == "drafter"
    assert result["drafters"]["drafter"]["block"] == 5
    found = [(r["set"], r["role"], r["temperature"], r["requests"]) for r in result["results"]]
    assert found == [
        ("own", "on task", 0, 3),
        ("few", "out of domain", 0, 3),
        ("own", "on task", 1, 3),
        ("few", "out of domain", 1, 3),
    ]
    assert str(tmp_path) not in out.read_text() + (tmp_path / "report.json").read_text()
    assert out.read_text().count("<svg") == 2 * (2 + 2 * 3)
    shown = capsys.readouterr().out
    assert "own" in shown and "accepted by position" in shown and "same text: yes" in shown


def test_an_earlier_evaluation_is_compared_with(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(home, tmp_path / "a.html", "--temperatures", "0") == 0
    before = json.loads((tmp_path / "a.json").read_text())
    for one in before["results"]:
        one["acceptance"]["drafter"]["al"] *= 2
    (tmp_path / "better.json").write_text(json.dumps(before))
    same = ["--before", str(tmp_path / "a.json"), "--fail-on-regression", "--temperatures", "0"]
    assert evaluate(home, tmp_path / "b.html", *same) == 0
    assert "+0.0%" in capsys.readouterr().out
    better = ["--before", str(tmp_path / "better.json"), "--temperatures", "0"]
    assert evaluate(home, tmp_path / "b.html", *better) == 0
    assert "REGRESSION few (out of domain, T = 0)" in capsys.readouterr().out
    assert evaluate(home, tmp_path / "b.html", *better, "--fail-on-regression") == 3


def test_an_unequal_text_exits_with_1(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ask = measure.ask_engine

    def lossy(engine: Any, ids: Any, params: Any, wish: Any, **more: Any) -> MeasuredAnswer:
        answer = ask(engine, ids, params, wish, **more)
        if wish.policy == "throughput":
            answer.finish_reason = "error"
        return answer

    monkeypatch.setattr(measure, "ask_engine", lossy)
    assert evaluate(home, tmp_path / "report.html", "--temperatures", "0") == 1
    assert "same text: NO" in capsys.readouterr().out
    assert "same text: NO" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tokens", "300"], "tokens: got 300; expected from 2 to 256"),
        (["--out", "report.pdf"], "out: got 'report.pdf'; expected a name that ends in .html"),
        (["--out", "/no/such/folder/r.html"], "a file in a folder that exists"),
        (["--fail-on-regression"], "fail_on_regression: got true; expected --before"),
        (["--before", "/no/such.json"], "before: got '/no/such.json'"),
        (["--temperatures", "-1"], "temperature: got -1"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    home: Path, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(home, tmp_path / "report.html", *more) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_of_other_settings_is_refused_before_anything_is_measured(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert evaluate(home, tmp_path / "a.html", "--temperatures", "0") == 0
    monkeypatch.setattr(measure, "ask_engine", None)
    other = ["--before", str(tmp_path / "a.json"), "--seed", "3"]
    assert evaluate(home, tmp_path / "b.html", *other) == 2
    assert "before: got 'seed 0'; expected an evaluation with seed 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sets", "said"),
    [(("no-such-set",), "shipped set: demo"), (("a=demo", "a=demo"), "a name of its own")],
)
def test_bad_sets_are_refused(
    home: Path, tmp_path: Path, sets: tuple[str, ...], said: str, capsys: Any
) -> None:
    assert evaluate(home, tmp_path / "report.html", sets=sets) == 2
    assert said in capsys.readouterr().err


def test_temperatures_that_are_no_numbers_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        evaluate(home, tmp_path / "report.html", "--temperatures", "hot")
    assert "write it like 0,1" in capsys.readouterr().err
