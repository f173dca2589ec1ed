"""`paceline autospec run`, `status` and `explain`, with a server in this process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.loop import Autospec
from paceline.autospec.server_client import DrafterClient
from paceline.autospec.store import DrafterStore, StoreLease, holder_of
from paceline.cli import main
from tests.autospec.fake_server import FakeServer
from tests.autospec.loop.worlds import SHOP, World, drifted

POLICY = """
canary: {steps: [20, 50, 100], least_hours: 0, cycle_hours: 0}
retrain: {gpu_hours_per_day: 1000}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    drifted(made)
    made.store.close()  # commands open it for themselves
    yield made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer("app-0")
    connect = staticmethod(lambda url, key=None: fake.client(key))
    monkeypatch.setattr(DrafterClient, "connect", connect)
    monkeypatch.setenv("PACELINE_ADMIN_KEY", "admin-secret")
    return fake


@pytest.fixture
def autospec(world: World, capsys: pytest.CaptureFixture[str]) -> Run:
    store, traces, policy = (world.folder / name for name in ("store", "traces", "policy.yaml"))
    policy.write_text(POLICY, "utf-8")
    there = ["--traces", str(traces), "--server", "http://here", "--policy", str(policy)]

    def call(job: str, *words: str) -> tuple[int, str, str]:
        more = there if job == "run" else []
        code = main(["autospec", job, str(store), *more, *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_turns_tell_each_step_once_and_the_server_follows(
    autospec: Run, server: FakeServer
) -> None:
    code, out, _ = autospec("run", "--once")
    lines = out.splitlines()
    assert code == 0 and "autospec watches" in lines[0] and "nothing is scored" in lines[0]
    assert any(f"within: build corpus ({SHOP}). AL of {SHOP} is 2." in line for line in lines), out
    assert any(f"change 1 (drift): auto-1 for {SHOP}, in place of base: scoring" in line
               for line in lines)  # fmt: skip
    told = [autospec("run", "--once")[1] for _ in range(4)]
    assert "loading: not scored: there is no --model to score with" in told[0]
    assert "canary, 20% of the requests" in told[1]
    assert not any("change 1" in line for out in told[2:] for line in out.splitlines()[2:])
    assert "change 1 (drift)" in told[2], "a new process says what goes on"
    assert sorted(server.drafters) == ["app-0", "auto-1", "base"]
    (rule,) = server.routes["cohorts"]
    assert rule["shares"] == {"auto-1": 0.2, "base": 0.8} and server.routes["default"] == "base"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    autospec: Run, server: FakeServer, world: World
) -> None:
    before = contents(world.folder)
    code, out, _ = autospec("run", "--dry-run")
    assert code == 0 and f"would decide: within: build corpus ({SHOP})" in out
    assert "would tell the server: load base (suffix)" in out
    assert "would tell the server: route all others: base" in out
    autospec("run", "--once")
    autospec("run", "--once")
    del server.drafters["auto-1"]  # somebody has started the server again
    log, middle = [*server.log], contents(world.folder)
    code, out, _ = autospec("run", "--dry-run")
    assert code == 0 and "would go on: change 1 (drift)" in out
    assert "would tell the server: load auto-1 (suffix,corpus=" in out
    assert server.log == log and contents(world.folder) == middle != before


def test_a_first_dry_run_leaves_no_trace(autospec: Run, server: FakeServer, world: World) -> None:
    before = contents(world.folder) | {"policy.yaml": POLICY.encode()}
    assert autospec("run", "--dry-run")[0] == 0
    assert contents(world.folder) == before and server.log == []


def test_a_dry_run_needs_no_lease(autospec: Run, server: FakeServer, world: World) -> None:
    with DrafterStore(world.folder / "store") as store, StoreLease(store, "another"):
        code, _, err = autospec("run", "--once")
        assert code == 1 and "is held by process" in err and "(another, since" in err
        assert autospec("run", "--dry-run")[0] == 0


def test_a_dry_run_brings_no_store_up_to_date(
    autospec: Run, server: FakeServer, world: World
) -> None:
    database = sqlite3.connect(world.folder / "store" / "autospec.db")
    database.executescript("DROP TABLE seen_cohorts; DROP TABLE routings; PRAGMA user_version = 2;")
    database.close()
    code, _, err = autospec("run", "--dry-run")
    assert code == 2 and "brought up to date" in err
    assert autospec("status")[0] == 0 and autospec("run", "--dry-run")[0] == 0


def test_status_says_where_each_cohort_stands(
    autospec: Run, server: FakeServer, world: World
) -> None:
    assert "last look: –" in autospec("status")[1]
    for _ in range(3):
        autospec("run", "--once")
    told = json.loads(autospec("status", "--json")[1])
    rows = {row["cohort"]: row for row in told["cohorts"]}
    shop = rows[SHOP]
    assert shop["al"] == pytest.approx(2.4, abs=0.2) and shop["usual"] == pytest.approx(3, abs=0.1)
    assert shop["change"] == pytest.approx(-0.2, abs=0.05)
    assert (shop["live"], shop["has_own"]) == ("base", False)
    assert (shop["under_way"]["stage"], shop["under_way"]["percent"]) == ("canary", 20)
    assert rows[""]["has_own"] and told["runs"] is None
    assert {d["action"] for d in told["decisions"]} >= {"wait"}
    out = autospec("status")[1]
    assert "auto-1: canary 20%" in " ".join(out.split()) and "autospec does not run" in out
    with DrafterStore(world.folder / "store") as store, StoreLease(store, "a loop"):
        assert "autospec runs: process" in autospec("status")[1]


def test_explain_says_why_and_why_not(autospec: Run, server: FakeServer) -> None:
    assert "nothing was decided yet" in autospec("explain")[1]
    for _ in range(3):
        autospec("run", "--once")
    code, out, _ = autospec("explain", SHOP)
    assert code == 0 and "why: AL of" in out and "worth: gain" in out
    assert f"why not: Another drafter for {SHOP} is under way" in out
    assert f"1  auto-1 for {SHOP}, in place of base (drift): canary, 20% of the requests" in out
    assert "decided before, the latest first" in out and "build corpus" in out
    assert "why not: No training: a corpus of the cohort's answers costs none" in out
    told = json.loads(autospec("explain", SHOP, "--json")[1])
    assert told["changes"][0]["version"] == "auto-1" and told["earlier"][0]["ended"]
    assert all(SHOP in each["cohorts"] for each in told["decisions"] if each["cohorts"])
    assert json.loads(autospec("explain", "--limit", "1", "--json")[1])["cohort"] is None


def test_an_unknown_cohort_is_named_with_those_that_are_like_it(
    autospec: Run, server: FakeServer
) -> None:
    autospec("run", "--once")
    code, _, err = autospec("explain", "tiny|shop|fr|eu")
    assert code == 2 and "cohort: got 'tiny|shop|fr|eu'; expected a cohort that the store" in err
    assert SHOP in err


def test_sigterm_ends_it_after_the_turn(
    autospec: Run, server: FakeServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, turns = Autospec.tick, []

    def tick(loop: Autospec) -> Any:
        turns.append(holder_of(loop.store))
        if len(turns) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(loop)

    monkeypatch.setattr(Autospec, "tick", tick)
    usual = signal.getsignal(signal.SIGTERM)
    code, out, _ = autospec("run", "--every", "0.1")
    assert code == 0 and len(turns) == 2 and all(turns)
    assert out.splitlines()[-1].endswith("ended; the store has all that was done")
    assert signal.getsignal(signal.SIGTERM) == usual
    with DrafterStore(world.folder / "store") as store:
        assert holder_of(store) is None


def test_a_server_that_is_not_there_yet_is_waited_for(
    autospec: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    server.fails["GET"] = (503, "starting")
    plain, turns = Autospec.tick, []

    def tick(loop: Autospec) -> Any:
        turns.append(1)
        if len(turns) == 2:
            server.fails.clear()
        if len(turns) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(loop)

    monkeypatch.setattr(Autospec, "tick", tick)
    code, out, _ = autospec("run", "--every", "0.1")
    assert code == 0 and "starting; tried again in" in caplog.text
    assert "build corpus" in out
    server.fails["GET"] = (503, "starting")
    assert autospec("run", "--once")[0] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--traces", "/nowhere"], "traces: got '/nowhere'; expected a folder of `paceline serve"),
        (["--every", "0"], "every: got 0.0; expected a number from 0.1 to 86400"),
        (["--policy", "/nowhere.yaml"], "policy: got '/nowhere.yaml'; expected a readable YAML"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_wrong_values_are_refused_by_name(
    autospec: Run, server: FakeServer, words: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    try:
        code, _, err = autospec("run", *words, "--once")
    except SystemExit as leaving:
        code, err = int(str(leaving.code)), capsys.readouterr().err
    assert code in (1, 2) and message in err, err


def test_a_wrong_admin_key_is_said_at_once(
    autospec: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ADMIN_KEY", "wrong")
    code, _, err = autospec("run")
    assert code == 1 and "PACELINE_ADMIN_KEY" in err and "wrong" not in err


def test_a_store_is_named_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in ("status", "explain"):
        assert main(["autospec", job, str(tmp_path / "none")]) == 2
        assert f"store: got '{tmp_path / 'none'}'" in capsys.readouterr().err
