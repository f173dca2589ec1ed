"""`paceline explain`: what it refuses, and how it asks a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main, remote
from paceline.core import PacelineError

TOKEN = {"id": 1, "text": "Hi"}
ROUND: dict[str, Any] = {
    "position": 0, "proposed": 2, "verified": 2, "accepted": 1, "forced": 0, "cut_by": "cost",
    "drafter": "auto", "part": "suffix",
    "draft_ms": 0.5, "step_ms": 2.0, "step_requests": 1, "step_rows": 3,
    "hidden_tokens": 0,
    "drafted_tokens": [TOKEN, {"id": 2, "text": "x"}],
    "verified_tokens": [TOKEN, {"id": 2, "text": "x"}],
    "forced_places": [],
    "committed_tokens": [{**TOKEN, "kind": "accepted"}, {"id": 3, "text": "y", "kind": "bonus"}],
}  # fmt: skip
TOLD = {"id": "c-1", "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "rounds": [ROUND], "rounds_left_out": 0}]}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str | None]]:
    calls = []

    class Asked(remote.RemoteModel):
        def __init__(self, url: str, key: str | None, name: str | None) -> None:
            self.url, self.key, self.name = url, key, "m"

        def rounds(self, request_id: str) -> Any:
            calls.append((self.url, request_id, self.key))
            if request_id == "gone":
                raise PacelineError("404 from there")
            return TOLD

    monkeypatch.setattr(remote, "RemoteModel", Asked)
    return calls


def test_a_servers_rounds(
    asked: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    html = tmp_path / "rounds.html"
    assert (
        main(["explain", "c-1", "--url", "http://h:1", "--api-key", "k", "--html", str(html)]) == 0
    )
    assert asked == [("http://h:1", "c-1", "k")]
    shown = capsys.readouterr().out
    assert "2 2 1" in shown and "cost" in shown and "AL 2.00" in shown
    assert "1 of them drafted (by suffix 1×)" in shown and shown.count("suffix") == 2
    assert "drafted 2 by suffix, verified 2, accepted 1" in html.read_text(encoding="utf-8")


def test_as_json(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "c-1", "--url", "http://h:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == TOLD


def test_a_refusal_is_told(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gone", "--url", "http://h:1"]) == 1
    assert "404" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["c-1"], ["c-1", "--prompt", "x"]])
def test_one_source_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert "expected" in capsys.readouterr().err
