"""The file of a store: made, brought up to date, shared by processes, and on a full disk."""

from __future__ import annotations

import multiprocessing
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.store import DrafterStore, StoreError, VersionState, schema
from paceline.autospec.store.database import FILE
from paceline.core import InvalidRequest, PacelineError
from tests.autospec.store.stores import ME, drafter_folder, faults, snapshot, store_with

FORKS = multiprocessing.get_context("forkserver")
LIVE = VersionState.LIVE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_only_adding_makes_a_store(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"store: got .*as `paceline drafters add` makes it"):
        DrafterStore(folder)
    assert not folder.exists()
    DrafterStore(folder, create=True).close()
    assert folder.stat().st_mode & 0o077 == 0  # a corpus in it has users' tokens
    DrafterStore(folder).close()


def test_an_older_store_is_brought_up_to_date(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with(folder, a="live").close()
    before = snapshot(folder)
    newer = (*schema.MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN colour TEXT DEFAULT 'blue'",))
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    with DrafterStore(folder) as store:
        assert schema.schema_version(store.database.connection) == len(newer)
        store.database.rows("SELECT colour FROM jobs")
    assert snapshot(folder) == before


def test_a_migration_that_breaks_off_leaves_the_older_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with(folder, a="live").close()
    before, older = snapshot(folder), schema.MIGRATIONS
    broken = ("ALTER TABLE jobs ADD COLUMN colour TEXT", "nonsense")
    monkeypatch.setattr(schema, "MIGRATIONS", (*older, broken))
    with pytest.raises(StoreError, match=r"syntax error"):
        DrafterStore(folder)
    monkeypatch.setattr(schema, "MIGRATIONS", older)
    assert snapshot(folder) == before and faults(folder) == []


def test_a_store_of_a_later_paceline_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DrafterStore(folder, create=True) as store:
        store.database.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(InvalidRequest, match=r"a later Paceline has brought this one to 99"):
        DrafterStore(folder)


def test_another_programs_file_is_not_touched(folder: Path) -> None:
    folder.mkdir()
    with sqlite3.connect(folder / FILE) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    content = (folder / FILE).read_bytes()
    with pytest.raises(InvalidRequest, match=r"expected a store of drafters"):
        DrafterStore(folder, create=True)
    assert (folder / FILE).read_bytes() == content


def test_a_store_that_another_process_makes_meanwhile_is_no_foreign_one() -> None:
    """The other one commits after the first look at the file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)

    class Other:
        looks = 0

        def execute(self, sql: str) -> sqlite3.Cursor:
            answer = connection.execute(sql)
            rows, self.looks = answer.fetchall(), self.looks + 1
            if self.looks == 1:
                schema.migrate(connection)
            return connection.execute("SELECT ?", rows[0])

    assert not schema.is_foreign(Other())  # type: ignore[arg-type]
    connection.execute("PRAGMA application_id = 7")
    assert schema.is_foreign(connection)


def test_a_file_that_is_no_database_is_told(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE).write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"autospec.db is no store of drafters"):
        DrafterStore(folder)


def test_a_folder_with_a_comma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"store: got .*without a comma"):
        DrafterStore(tmp_path / "a,b", create=True)


# -- races -----------------------------------------------------------------------------------------


def race(folder: Path, gate: Any, results: Any, change: str, values: tuple[Any, ...]) -> None:
    with DrafterStore(folder, create=True) as store:
        gate.wait()
        try:
            result = getattr(store, change)(*values)
        except PacelineError as error:
            results.put(str(error))
        else:
            results.put(result)


def outcomes(folder: Path, change: str, *entrants: tuple[Any, ...]) -> list[Any]:
    """Run the same change in several processes at once. Return what each got."""
    gate, results = FORKS.Barrier(len(entrants)), FORKS.SimpleQueue()
    processes = [
        FORKS.Process(target=race, args=(folder, gate, results, change, values))
        for values in entrants
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return [results.get() for _ in entrants]


@pytest.mark.parametrize("start", ["shadow", "canary"])
def test_of_two_promotions_at_once_one_happens(start: str, folder: Path) -> None:
    states = {"shadow": ("shadow", VersionState.CANARY), "canary": ("canary", LIVE)}
    for turn in range(5):
        place = folder / str(turn)
        store_with(place, a=states[start][0], old="live").close()
        values = ("a", ME, states[start][1])
        got = outcomes(place, "promote", values, values)
        refused = [text for text in got if isinstance(text, str)]
        # the other one was there first, before or after this one looked
        assert len(refused) == 1 and refused[0].startswith(("name: got 'a'", "to: got '")), got
        assert faults(place) == []
        with DrafterStore(place) as store:
            assert len(store.history("a")) == 3  # trained, then `start`, then one promotion


def test_of_two_versions_that_go_live_at_once_the_later_replaces_the_other(folder: Path) -> None:
    store_with(folder, a="canary", b="canary", old="live").close()
    first, second = outcomes(folder, "promote", ("a", ME, LIVE), ("b", ME, LIVE))
    assert sorted(first.retired + second.retired) in (["a", "old"], ["b", "old"])
    assert faults(folder) == []
    with DrafterStore(folder) as store:
        assert list(store.live()) == [""]


def test_of_two_rollbacks_at_once_one_happens(folder: Path) -> None:
    store_with(folder, a="live", b="live").close()
    got = outcomes(folder, "rollback", (ME,), (ME,))
    assert sum(isinstance(outcome, str) for outcome in got) == 1
    assert faults(folder) == []
    with DrafterStore(folder) as store:
        assert store.live() == {"": "a"}


def test_the_same_files_added_at_once_are_there_once(folder: Path, tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "n", b"x" * 1_000_000)
    store_with(folder).close()
    with DrafterStore(folder) as store:
        for name in ("a", "b", "c"):
            store.register(name, ME)
    outcomes(folder, "complete", *((name, str(source), ME) for name in ("a", "b", "c")))
    assert faults(folder) == []
    with DrafterStore(folder) as store:
        assert len([path for path in store.artefacts.folder.iterdir() if path.is_dir()]) == 1


def test_a_new_store_may_be_opened_by_several_at_once(folder: Path) -> None:
    outcomes(folder, "versions", (), (), ())
    assert faults(folder) == []


# -- a full disk -----------------------------------------------------------------------------------


def starved(folder: Path, limit: int, results: Any, source: str | None) -> None:
    """Change a store while no file may grow beyond a limit, as on a disk that is full."""
    store = DrafterStore(folder)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        if source is None:
            store.promote("a", ME, LIVE)
        else:
            store.register("b", ME, spec=source)
    except StoreError as error:
        results.put(str(error))
    else:
        results.put(None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.retire("old", ME)  # the same process goes on once there is room
    store.close()


def told_when_starved(folder: Path, limit: int, source: str | None = None) -> str | None:
    results = FORKS.SimpleQueue()
    process = FORKS.Process(target=starved, args=(folder, limit, results, source))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    told: str | None = results.get()
    return told


def test_a_full_disk_is_told_and_the_store_is_as_it_was(folder: Path) -> None:
    told = []
    for limit in (1, 1000, 5000, 9000, 13000):
        place = folder / str(limit)
        store_with(place, a="canary", old="live").close()
        error = told_when_starved(place, limit)
        told.append(error)
        assert error is None or (str(place) in error and "free space" in error), error
        assert faults(place) == []
        with DrafterStore(place) as store:
            state = store.version("a").state
            assert state is (LIVE if error is None else VersionState.CANARY)
            assert store.version("old").state is VersionState.RETIRED
    assert told[0] is not None


def test_files_that_do_not_fit_are_told_and_nothing_stays(folder: Path, tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "n", b"x" * 2_000_000)
    store_with(folder, a="canary", old="live").close()
    error = told_when_starved(folder, 1_000_000, str(source))
    assert error is not None and "cannot keep files (File too large); free space there" in error
    assert faults(folder) == []
    with DrafterStore(folder) as store:
        assert store.find("b") is None
        assert [path for path in store.artefacts.folder.iterdir() if path.is_dir()] == []
