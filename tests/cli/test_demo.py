"""What the demo concludes, with made-up answers; and the whole of it, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Pair
from paceline.bench.prompts import BenchPrompt
from paceline.cli import demo
from paceline.drafters.shipped import FOLDERS
from paceline.models import catalog


def pair(last_token: int) -> Pair:
    def answer(last: int) -> MeasuredAnswer:
        return MeasuredAnswer(0.0, [1, 2, last], [0.1, 0.2, 0.3], "text", "stop")

    prompt = BenchPrompt("one", "copying", ({"role": "user", "content": "Copy this."},))
    drafted = answer(last_token)
    drafted.parts = {"dflash": DraftCounts(rounds=4, tokens=28, accepted=9)}
    return Pair(prompt, off=[answer(3)], on=[drafted])


class FakeServer:
    url, clean = "http://127.0.0.1:1", True

    def __init__(self, arguments: list[str], log: Path) -> None:
        pass

    def wait_until_healthy(self, seconds: float) -> None:
        pass

    def output(self) -> str:
        return "start-up table"

    def stop(self) -> bool:
        return self.clean


outcomes = pytest.mark.parametrize(
    ("last_token", "clean", "code", "line"),
    [
        (3, True, 0, "same text: yes"),
        (4, True, 1, "same text: no"),
        (3, False, 1, "did NOT stop cleanly; it said:\nstart-up table\n"),
    ],
)


@outcomes
def test_the_exit_code_tells_whether_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last_token: int,
    clean: bool,
    code: int,
    line: str,
) -> None:
    async def measure(*_: Any) -> list[Pair]:
        return [pair(last_token)]

    monkeypatch.setattr(catalog, "pull", lambda name: None)
    monkeypatch.setattr(demo, "ServerProcess", FakeServer)
    monkeypatch.setattr(FakeServer, "clean", clean)
    monkeypatch.setattr(demo, "measure", measure)
    assert demo.main([]) == code
    out = capsys.readouterr().out
    assert line in out
    rows = [row.split() for row in out.splitlines()]
    assert ["copying", "dflash", "4", "9", "28", "3.25"] in rows


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_says_that_the_text_is_the_same(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "paceline.cli.demo", "--runs", "1", "--svg", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nsame text: yes\n" in done.stdout
    assert "server stopped cleanly" in done.stdout
    shipped = (FOLDERS / demo.MODEL).is_dir()
    assert shipped == ("used: DFlash" in done.stdout)
    assert re.search(r" suffix +\d", done.stdout)
    assert shipped or not re.search(r" dflash +\d", done.stdout)
    drawn = picture.read_text("utf-8")
    assert "speedup" in drawn and "@font-face" not in drawn
