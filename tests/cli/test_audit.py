"""`paceline audit`: its files, its exit codes, and what is left when an engine is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from paceline.cli import main
from paceline.engines.audit import AuditReport
from tests.engines.audit_fake import FakeEngine, serving
from tests.engines.fault_proxy import DroppedStop, proxy

QUICK = ["--only", "greedy", "--only", "stops", "--only", "choices"]
ALONE = (
    "import sys, time; from tests.engines.audit_fake import FakeEngine, serving\n"
    "with serving(FakeEngine()) as url:\n    print(url, flush=True)\n    time.sleep(120)\n"
)


def told(folder: Path) -> AuditReport:
    return AuditReport.model_validate_json((folder / "audit.json").read_text("utf-8"), strict=False)


def test_a_clean_server_exits_with_0_and_leaves_three_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeEngine()) as url:
        assert main(["audit", url, *QUICK, "--out", str(tmp_path / "audit.html")]) == 0
    out = capsys.readouterr().out
    assert "T = 0 is lossless" in out and "nothing wrong found; 3 of 3 checks done" in out
    report = told(tmp_path)
    assert [check.name for check in report.checks] == ["greedy", "stops", "choices"]
    assert report.exit_status() == 0 and report.requests > 0
    page = (tmp_path / "audit.html").read_text("utf-8")
    assert "T = 0 is lossless" in page and "<script" not in page
    suite = ElementTree.parse(tmp_path / "audit.xml").getroot()
    assert suite.attrib["tests"] == "3" and suite.attrib["failures"] == "0"
    assert [case.attrib["name"] for case in suite] == ["greedy", "stops", "choices"]


def test_a_fault_exits_with_1_and_is_a_failed_test_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeEngine()) as upstream, proxy(upstream, DroppedStop()) as url:
        assert main(["audit", url, *QUICK, "--out", str(tmp_path / "audit.html")]) == 1
    assert "stop strings are ignored" in " ".join(capsys.readouterr().out.split())
    suite = ElementTree.parse(tmp_path / "audit.xml").getroot()
    failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert failed == ["stops"] and suite.attrib["failures"] == "1"


def test_warnings_count_where_the_user_says_so(tmp_path: Path) -> None:
    arguments = ["--only", "prefix", "--out", str(tmp_path / "audit.html")]
    with serving(FakeEngine("no prefix hits")) as url:
        assert main(["audit", url, *arguments]) == 0
        assert main(["audit", url, *arguments, "--strict"]) == 1


def test_the_plan_is_printed_and_nothing_else_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = FakeEngine()
    with serving(engine) as url:
        assert main(["audit", url, "--plan", "--tokens", "20000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out: it needs" in out and "with speculation off" in out
    assert len(engine.bodies) < 30 and not list(tmp_path.iterdir())


def test_a_budget_that_reaches_nowhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeEngine()) as url:
        assert main(["audit", url, "--requests", "2"]) == 2
    assert "requests: got 2; expected enough" in capsys.readouterr().err


def test_a_server_that_is_not_there_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "http://127.0.0.1:9"]) == 3
    assert "no engine at http://127.0.0.1:9" in capsys.readouterr().err


def test_kill_9_of_the_engine_leaves_a_partial_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    url = engine.stdout.readline().strip()
    argv = [sys.executable, "-m", "paceline", "audit", url, "--out", str(tmp_path / "audit.html")]
    try:
        run = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        assert run.stdout is not None
        while "judged by" not in run.stdout.readline():
            assert run.poll() is None
        time.sleep(1.5)  # within the check `law`
        engine.send_signal(signal.SIGKILL)
        out = " ".join((run.communicate(timeout=60)[0]).split())
    finally:
        engine.kill()
        engine.wait()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert run.returncode == 3
    assert f"INCOMPLETE: the engine at {url}" in out or f"INCOMPLETE: no engine at {url}" in out
    report = told(tmp_path)
    states = {check.name: check.state.value for check in report.checks}
    assert states["greedy"] == "done" and states["recovery"] == "incomplete"
    suite = ElementTree.parse(tmp_path / "audit.xml").getroot()
    assert int(suite.attrib["errors"]) >= 5
