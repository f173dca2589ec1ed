"""One process decides for a store: others are told who, and take over when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec import processes
from paceline.autospec.store import (
    DrafterStore,
    LeaseLost,
    StoreHeld,
    StoreLease,
    VersionState,
    holder_of,
)
from paceline.autospec.store.database import StoreDatabase
from paceline.autospec.store.lease import renew
from tests.autospec.store.killed import killed_after, killed_at
from tests.autospec.store.stores import ME, faults, store_with

FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture
def store(tmp_path: Path) -> DrafterStore:
    return store_with(tmp_path / "store", a="canary", b="live")


def hold(folder: Path, seconds: float, ready: Any) -> None:
    with DrafterStore(folder) as store, StoreLease(store, "autospec run", seconds):
        ready.set()
        time.sleep(300)


def holding(folder: Path, seconds: float = 30.0) -> Any:
    """Start a process that holds the lease of a store."""
    ready = FORKS.Event()
    process = FORKS.Process(target=hold, args=(folder, seconds, ready), daemon=True)
    process.start()
    assert ready.wait(60)
    return process


def test_a_second_holder_is_told_who_the_first_is(store: DrafterStore) -> None:
    other = holding(store.folder)
    with pytest.raises(StoreHeld, match=rf"held by process {other.pid} on .*\(autospec run, since"):
        StoreLease(store, "another")
    holder = holder_of(store)
    assert holder is not None and holder.pid == other.pid
    other.kill()
    other.join()


def test_a_dead_holder_is_replaced_at_once_where_that_is_seen(store: DrafterStore) -> None:
    other = holding(store.folder)
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert holder_of(store) is None
    with StoreLease(store, "another"):
        holder = holder_of(store)
        assert holder is not None and holder.pid == os.getpid()


def test_a_holder_elsewhere_is_replaced_when_its_lease_has_run_out(
    store: DrafterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = holding(store.folder, 0.6)
    os.kill(other.pid, signal.SIGKILL)
    monkeypatch.setattr(processes, "machine_id", lambda: "another machine")
    monkeypatch.setattr("paceline.autospec.store.lease.machine_id", lambda: "another machine")
    end = time.monotonic() + 30
    while True:
        try:
            StoreLease(store, "another").close()
            break
        except StoreHeld:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_living_holder_keeps_its_lease(store: DrafterStore) -> None:
    other = holding(store.folder, 0.5)
    for _ in range(30):
        with pytest.raises(StoreHeld):
            StoreLease(store, "another")
        time.sleep(0.05)
    other.kill()
    other.join()


def test_a_lease_that_is_given_back_is_free(store: DrafterStore) -> None:
    StoreLease(store, "one").close()
    assert holder_of(store) is None
    StoreLease(store, "two").close()


def test_a_holder_whose_lease_was_taken_cannot_write(store: DrafterStore) -> None:
    lease = StoreLease(store, "slow", 0.3)
    with DrafterStore(store.folder) as another:
        while True:
            another.database.connection.execute("UPDATE lease SET until = 0")  # its time ran out
            with suppress(StoreHeld):  # it was renewed in between
                quick = StoreLease(another, "quick")
                break
        with quick:
            with pytest.raises(LeaseLost, match=r"stops writing to the store"):
                store.promote("a", ME, VersionState.LIVE)
            with pytest.raises(LeaseLost), StoreDatabase(store.folder) as database:
                renew(database, lease.token, 30.0)
            end = time.monotonic() + 30
            while not lease.is_lost:  # its heartbeat notices
                assert time.monotonic() < end
                time.sleep(0.02)
            lease.close()  # takes nothing from the other one
            assert holder_of(another) is not None
        assert another.version("a").state is VersionState.CANARY


def test_a_person_may_change_a_store_that_is_held(store: DrafterStore) -> None:
    with DrafterStore(store.folder) as another, StoreLease(another, "autospec run"):
        store.promote("a", ME, VersionState.LIVE)
        assert another.live() == {"": "a"}
        another.rollback(ME)


def test_a_lease_outlives_a_kill_at_every_point(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store_with(folder, a="live").close()
    for point in range(20):
        was_killed = killed_at(point, folder, "lease")
        assert faults(folder) == []
        with DrafterStore(folder) as store:
            StoreLease(store, "the next one").close()
        if not was_killed:
            assert point >= 4
            break
    else:
        raise AssertionError("taking a lease has more points than were tried")
    killed_after(folder, "lease")
    with DrafterStore(folder) as store:
        StoreLease(store, "the next one").close()
