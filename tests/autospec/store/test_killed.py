"""A store outlives `kill -9` at any point of any change: it is as before the change or as after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.autospec.store import DrafterStore, VersionState
from paceline.autospec.store.states import all_transitions
from tests.autospec.store.killed import CHANGES, MAKE, killed_after, killed_at
from tests.autospec.store.stores import (
    COHORT,
    ME,
    drafter_folder,
    faults,
    snapshot,
    store_with,
)

MOST_POINTS = 60


def change_of(before: VersionState | None, after: VersionState) -> tuple[str, tuple[object, ...]]:
    """Return the change that makes this transition of version `a`."""
    match before, after:
        case None, VersionState.REGISTERED:
            return "register", ("a", None)
        case None, _:
            return "register", ("a", "suffix")
        case VersionState.REGISTERED, VersionState.TRAINED:
            return "complete", ("a", "suffix")
        case VersionState.RETIRED, VersionState.LIVE:
            return "rollback", ()
        case _, VersionState.RETIRED:
            return "retire", ("a",)
        case VersionState.LIVE, VersionState.LIVE:
            return "promote", ("a", "live", COHORT)
    return "promote", ("a", str(after))


def prepare(folder: Path, before: VersionState | None, after: VersionState) -> None:
    """Make a store in which version `a` can make a transition, and another version is live."""
    if (before, after) == (VersionState.RETIRED, VersionState.LIVE):
        with store_with(folder, a="live", other="trained") as store:
            store.promote("other", ME, VersionState.LIVE)
        return
    states = {"other": "live"} if before is not VersionState.LIVE else {}
    with store_with(folder, **states, **({} if before is None else {"a": str(before)})):
        pass


def try_every_point(
    folder: Path, make: Callable[[Path], None], change: str, *values: object, files: bool = False
) -> int:
    """Kill a change at each of its points, each time in a fresh store, and judge the store. Return
    the number of points."""
    make(folder / "ready")
    before = snapshot(folder / "ready")
    shutil.copytree(folder / "ready", folder / "done")
    killed_after(folder / "done", change, *values)
    after = snapshot(folder / "done")
    assert faults(folder / "done") == [] and after != before
    seen = set()
    for point in range(MOST_POINTS):
        place = folder / f"point-{point}"
        shutil.copytree(folder / "ready", place)
        was_killed = killed_at(point, place, change, *values, files=files)
        now = snapshot(place)
        assert faults(place) == [], f"killed before point {point}"
        assert now in (before, after), f"killed before point {point}"
        seen.add("before" if now == before else "after")
        if was_killed and now == before:  # whoever was killed comes back and does it once more
            with DrafterStore(place) as store:
                CHANGES[change](store, *values)
            assert snapshot(place) == after and faults(place) == []
        shutil.rmtree(place)
        if not was_killed:
            assert seen == {"before", "after"}
            return point
    raise AssertionError(f"{change} has more than {MOST_POINTS} points")


@pytest.mark.parametrize(
    ("before", "after"), [*all_transitions()], ids=lambda state: str(state or "none")
)
def test_every_transition_happens_once_or_not_at_all(
    before: VersionState | None, after: VersionState, tmp_path: Path
) -> None:
    change, values = change_of(before, after)
    points = try_every_point(
        tmp_path, lambda folder: prepare(folder, before, after), change, *values
    )
    assert points >= 4  # begin, two statements, commit
    with DrafterStore(tmp_path / "done") as store:
        last = store.history("a")[-1]
        assert (last.before, last.after) == (before, after)


@pytest.mark.parametrize("change", ["rollback", "score"])
def test_every_other_change_happens_once_or_not_at_all(change: str, tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        with store_with(folder, other="live", a="trained") as store:
            store.promote("a", ME, VersionState.LIVE, cohort=COHORT)

    values = (COHORT,) if change == "rollback" else ("a",)
    try_every_point(tmp_path, make, change, *values)


def test_files_are_in_the_store_whole_or_not_at_all(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "source")
    points = try_every_point(
        tmp_path,
        lambda folder: store_with(folder, other="live").close(),
        "register",
        "a",
        str(source),
        files=True,
    )
    assert points > 15  # three files copied and synced, the manifest, two checksums, the rename


def test_files_of_a_trained_version_are_in_the_store_whole_or_not_at_all(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "source")
    make = lambda folder: store_with(folder, a="registered").close()  # noqa: E731
    assert try_every_point(tmp_path, make, "complete", "a", f"hybrid:{source}", files=True) > 15


def test_discarded_files_are_never_missed(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "source")

    def make(folder: Path) -> None:
        with DrafterStore(folder, create=True) as store:
            store.register("a", ME, spec=str(source))
            store.retire("a", ME)

    try_every_point(tmp_path, make, "discard", "a", files=True)


def test_what_a_killed_copy_leaves_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path / "source", b"one")
    folder = tmp_path / "store"
    store_with(folder).close()
    for point in range(3, 30, 3):
        killed_at(point, folder, "register", "a", str(source), files=True)
    with DrafterStore(folder) as store:
        other = drafter_folder(tmp_path / "other", b"two")
        store.register("b", ME, spec=str(other))
        names = {path.name for path in store.artefacts.folder.iterdir() if path.is_dir()}
        wanted = {value for version in store.versions() for value in version.artefacts.values()}
    assert names == wanted


def test_a_store_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    for point in range(MOST_POINTS):
        folder = tmp_path / str(point)
        was_killed = killed_at(point, folder, MAKE)
        assert faults_or_none(folder) == []
        if not was_killed:
            assert point > 8
            return


def faults_or_none(folder: Path) -> list[str]:
    """Return the faults of a store that may have to be made first, as by the next command."""
    DrafterStore(folder, create=True).close()
    return faults(folder)
