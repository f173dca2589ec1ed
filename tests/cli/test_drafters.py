"""`paceline drafters`: a store of versions on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.store import DrafterStore, StoreLease
from paceline.cli import main
from tests.autospec.store.stores import COHORT, drafter_folder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["drafters", *words, "--store", str(tmp_path / "store")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def told(run: Run, *words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, ""), err
    return json.loads(out)


def add(run: Run, *names: str) -> None:
    for name in names:
        assert run("add", name, "suffix")[0] == 0


def test_a_version_goes_from_a_folder_to_live_and_back(run: Run, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path / "mine")
    made = told(run, "add", "app-1", f"dflash:{folder}", "--target", "tiny", "--note", "the first")
    assert (made["state"], made["target"]["name"]) == ("trained", "tiny")
    add(run, "app-2")
    assert run("promote", "app-1", "--to", "live")[:2] == (0, "app-1 is live\n")
    assert run("promote", "app-2", "--to", "live", "--reason", "faster")[:2] == (
        0,
        "app-2 is live; app-1 retired\n",
    )
    assert run("rollback", "--reason", "slower")[:2] == (0, "app-1 is live again; app-2 retired\n")
    listed = {each["name"]: each for each in told(run, "list")}
    assert listed["app-1"]["serves"] == [""] and listed["app-2"]["state"] == "retired"
    steps = told(run, "history", "app-2")
    assert [step["after"] for step in steps] == ["trained", "live", "retired"]
    assert [step["reason"] for step in steps] == ["", "faster", "slower"]
    assert all("@" in step["actor"] for step in steps)


def test_tables_say_the_same_for_people(run: Run, tmp_path: Path) -> None:
    add(run, "app-1", "app-2")
    with DrafterStore(tmp_path / "store") as store:
        store.add_score("app-1", COHORT, 2.0, 1.9, 2.1, 100, "traces of a day")
        store.add_score("app-2", COHORT, 2.5, 2.4, 2.6, 100, "traces of a day")
    run("promote", "app-2", "--to", "live", "--cohort", COHORT)
    out = run("list")[1]
    assert "app-1" in out and COHORT in out and "2.50" in out
    out = run("show", "app-2")[1]
    assert "2.50 (2.40–2.60)" in out and "trained → live" in out
    out = run("diff", "app-1", "app-2")[1]
    assert "2.00 (1.90–2.10)" in out and "better" in out
    assert "trained → live" in run("history")[1]


def test_a_store_is_named_where_there_is_none(run: Run, tmp_path: Path) -> None:
    code, _, err = run("list")
    assert code == 2 and f"store: got '{tmp_path / 'store'}'" in err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "app-9", "nonsense"), "drafter: got 'nonsense'; expected one of"),
        (("add", "app-1", "suffix"), "name: got 'app-1'; expected a name that no version has"),
        (("promote", "app-1", "--to", "scored"), "a score first: app-1 has none"),
        (("promote", "ap-1"), "did you mean app-1?"),
        (("promote", "app-1", "--to", "live", "--cohort", "x"), "cohort: got 'x'; expected model|"),
        (("retire", "app-2"), "did you mean app-1?"),
        (("rollback",), "cohort: nothing to go back to: no version was live for all requests"),
        (("diff", "app-1", "app-2"), "other: got 'app-2'"),
        (("history", "app-2"), "name: got 'app-2'"),
    ],
)
def test_a_wrong_command_is_refused_and_changes_nothing(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    add(run, "app-1")
    before = told(run, "history")
    code, _, err = run(*words)
    assert code == 2 and message in err, err
    assert told(run, "history") == before


def test_changed_files_are_told(run: Run, tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path / "mine")
    run("add", "app-1", f"dflash:{folder}")
    files = told(run, "show", "app-1")["files"]["network"]
    (Path(files) / "config.json").unlink()
    code, out, _ = run("show", "app-1")
    assert code == 1 and "config.json is missing" in " ".join(out.split())
    code, _, err = run("promote", "app-1", "--to", "live")
    assert code == 1 and "version app-1: its files" in err


def test_a_rollback_leaves_a_cohort_as_it_was(run: Run) -> None:
    add(run, "app-1", "app-2")
    run("promote", "app-1", "--to", "live")
    run("promote", "app-2", "--to", "live", "--cohort", COHORT)
    code, out, _ = run("rollback", "--cohort", COHORT)
    assert (code, out) == (0, f"no version of its own is live for {COHORT}; app-2 retired\n")
    assert told(run, "show", "app-1")["serves"] == [""]


def test_another_process_that_decides_is_told(run: Run, tmp_path: Path) -> None:
    add(run, "app-1")
    with DrafterStore(tmp_path / "store") as store, StoreLease(store, "autospec run"):
        code, _, err = run("promote", "app-1", "--to", "live")
    assert code == 0 and "(autospec run, since" in err and "decides for this store too" in err


def test_the_store_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    DrafterStore(tmp_path / "here", create=True).close()
    monkeypatch.setenv("PACELINE_STORE", str(tmp_path / "here"))
    assert main(["drafters", "list"]) == 0
    assert "no versions in" in capsys.readouterr().out
