"""Replicas behind Envoy: loaded, routed to, drained, rolled back, crashed, found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.server_client import DrafterRoutes, RouteRule
from paceline.autospec.serving import DrafterRefused, ServingFull
from paceline.endpoint.description import ManagedEndpoint
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.replicas import DrafterReplicas
from paceline.endpoint.state import EndpointState
from tests.endpoint.fleet import FAKE, Asker, Load, comes_true, is_gone, kill, needs_envoy
from tests.endpoint.managed import STEPS, managed, routes, use_fake

pytestmark = needs_envoy


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.endpoint.description.find_program", None)  # put back at the end
    use_fake()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[DrafterReplicas]:
    """An endpoint that serves with `a`, and where streams last longer than `times.idle`."""
    made = DrafterReplicas(tmp_path / "endpoint", managed(slots=3, times={"idle": 1.0}))
    made.load("a", "ngram")
    made.route(routes(a=1.0))
    yield made
    end(made.folder, made.endpoint, made)


def end(folder: Path, endpoint: ManagedEndpoint, replicas: DrafterReplicas | None = None) -> None:
    """End an endpoint, whoever has steered it."""
    if replicas is not None:
        replicas.close()
    DrafterReplicas(folder, endpoint).down(0)


def running(endpoint: ManagedEndpoint) -> list[int]:
    """Return the port of every fake worker that runs for an endpoint, once for each process."""
    listed = subprocess.run(
        ["ps", "-e", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in listed.stdout.splitlines())
    own = (words for words in rows if len(words) > 1 and words[1] == FAKE)
    ports = [int(words[words.index("--port") + 1]) for words in own]
    return sorted(port for port in ports if port in {slot.port for slot in endpoint.slots})


def kinds(replicas: DrafterReplicas) -> list[tuple[str, str | None]]:
    return [(event.kind, event.replica) for event in replicas.events]


def test_a_drafter_is_replaced_under_load_without_a_failed_request(
    replicas: DrafterReplicas,
) -> None:
    with Load(replicas.endpoint.listen, delay=0.01) as load:
        replicas.load("b", "suffix")
        assert {name: each.state for name, each in replicas.loaded().items()} == {
            "a": "live", "b": "live",
        }  # fmt: skip
        assert not load.drafters["b"]
        replicas.route(routes(a=0.5, b=0.5))
        assert comes_true(lambda: load.drafters["b"] > 10)
        replicas.route(routes(b=1.0))
        replicas.unload("a")
        assert comes_true(lambda: "a" not in replicas.loaded())
    assert set(load.statuses) == {"200"} and len(load.texts) == 1
    assert len(running(replicas.endpoint)) == 1
    assert kinds(replicas)[-2:] == [("retiring", "a"), ("stopped", "a")]


def test_a_retiring_replica_ends_after_its_last_stream(replicas: DrafterReplicas) -> None:
    replicas.load("b", "suffix")
    asker = Asker(replicas.endpoint.listen)
    with asker.stream(tokens=40, delay=0.05) as events:
        told = [next(events)]
        replicas.route(routes(b=1.0))
        replicas.unload("a")
        assert asker.drafter() == "b"
        assert comes_true(lambda: replicas.loaded()["a"].state == "retiring")
        assert replicas.loaded()["a"].requests == 1
        told += events
    assert len(told) == 41 and len(running(replicas.endpoint)) == 2 - ("a" not in replicas.loaded())
    assert comes_true(lambda: "a" not in replicas.loaded())


def test_a_retiring_replica_that_hangs_gives_its_slot_back(
    replicas: DrafterReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.endpoint.replica_processes.METRICS_SECONDS", 0.2)
    monkeypatch.setattr("paceline.endpoint.replica_processes.GRACE_SECONDS", 0.5)
    for name in ("b", "c"):
        replicas.load(name, "suffix")
    replicas.route(routes(a=1.0))
    pid = replicas.loaded()["b"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    replicas.unload("b")
    assert comes_true(lambda: "b" not in replicas.loaded()) and is_gone(pid)
    replicas.load("d", "suffix")


def test_one_call_rolls_back(replicas: DrafterReplicas) -> None:
    with pytest.raises(EndpointError, match="no earlier routes"):
        replicas.rollback()
    replicas.load("b", "suffix")
    replicas.route(routes(b=1.0))
    asker = Asker(replicas.endpoint.listen)
    assert asker.drafter() == "b"
    assert replicas.rollback() == routes(a=1.0)
    assert asker.drafter() == "a"
    replicas.rollback()  # and forward again
    assert asker.drafter() == "b"
    replicas.unload("a")
    with pytest.raises(EndpointError, match="no earlier routes"):
        replicas.rollback()


def test_others_take_over_from_a_replica_that_crashes(replicas: DrafterReplicas) -> None:
    replicas.load("b", "suffix")
    replicas.route(routes(a=0.5, b=0.5))
    pid = replicas.loaded()["b"].pid
    assert pid is not None
    with Load(replicas.endpoint.listen, delay=0.01) as load:
        assert comes_true(lambda: load.drafters["b"] > 10)
        kill(pid)
        assert comes_true(lambda: ("failed", "b") in kinds(replicas))
        assert comes_true(lambda: load.drafters["a"] > 100)
        (event,) = [event for event in replicas.events if event.kind == "failed"]
        assert event.text.startswith("b has ended. a takes its requests over.")
        assert f"worker {replicas.loaded()['b'].url.rpartition(':')[2]} listens" in event.text
        assert replicas.loaded()["b"].state == "failed" and is_gone(pid)
        replicas.load("b", "suffix")  # started again, and gets its share again
        before = load.drafters["b"]
        assert comes_true(lambda: load.drafters["b"] > before + 10)
    assert set(load.statuses) == {"200"}


def test_one_that_does_not_come_up_harms_nobody(replicas: DrafterReplicas) -> None:
    use_fake("--fail", "no such tensor")
    with pytest.raises(DrafterRefused, match=r"(?s)b did not come up: it has ended\..*no such"):
        replicas.load("b", "suffix")
    assert comes_true(lambda: set(replicas.loaded()) == {"a"})
    assert Asker(replicas.endpoint.listen).drafter() == "a"


def test_what_cannot_be_done_is_refused_by_name(replicas: DrafterReplicas) -> None:
    for spec, words in (
        (
            "suffix,corpus=/tmp",
            "spec: got .*expected a drafter's folder, mtp, ngram, suffix, or no",
        ),
        ("/nowhere", "spec: got '/nowhere'"),
    ):
        with pytest.raises(DrafterRefused, match=words):
            replicas.load("b", spec)
    with pytest.raises(DrafterRefused, match=r"name: got 'a'; expected a name that is not taken"):
        replicas.load("a", "suffix")
    with pytest.raises(DrafterRefused, match=r"name: got '\.\./b'"):
        replicas.load("../b", "suffix")
    with pytest.raises(EndpointError, match=r"routes\.default: got 'b'; expected one of: a"):
        replicas.route(routes(b=1.0))
    german = DrafterRoutes("a", (RouteRule({"language": "de"}, {"a": 1.0}),))
    with pytest.raises(EndpointError, match=r"cohorts\[0\].match.language.*no language: Envoy"):
        replicas.route(german)
    with pytest.raises(EndpointError, match="name: got 'a'; expected a drafter that no route"):
        replicas.unload("a")
    with pytest.raises(EndpointError, match="name: got 'b'; expected one of: a"):
        replicas.unload("b")
    replicas.load("b", "suffix")
    replicas.load("c", "none")
    with pytest.raises(ServingFull, match="slots: got 3; expected a free slot: a, b, c have"):
        replicas.load("d", "none")


def test_without_a_default_the_present_one_stays(replicas: DrafterReplicas) -> None:
    replicas.load("b", "suffix")
    replicas.route(DrafterRoutes(None, (RouteRule({"app": "shop"}, {"b": 1.0}),)))
    asker = Asker(replicas.endpoint.listen)
    assert (asker.drafter(), asker.drafter(X_Paceline_App="shop")) == ("a", "b")


def test_a_new_endpoint_serves_nobody_and_says_so(tmp_path: Path) -> None:
    with DrafterReplicas(tmp_path, managed()) as replicas:
        replicas.route(DrafterRoutes(None, (), "salt"))
        assert Asker(replicas.endpoint.listen).response().status_code == 503
    end(tmp_path, replicas.endpoint)


def test_too_little_memory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    endpoint = managed(memory_gb=1e6)
    with DrafterReplicas(tmp_path, endpoint) as replicas:
        with pytest.raises(ServingFull, match=r"memory_gb: got 1000000.0; expected at most the"):
            replicas.load("a", "ngram")
        assert not replicas.loaded() and not running(endpoint)
    end(tmp_path, endpoint)


def test_the_next_controller_finds_what_runs(replicas: DrafterReplicas) -> None:
    before = replicas.loaded()
    with pytest.raises(EndpointError, match=r"another controller steers .* \(process \d+\)"):
        DrafterReplicas(replicas.folder, replicas.endpoint)
    with Load(replicas.endpoint.listen) as load:
        replicas.close()
        with DrafterReplicas(replicas.folder, replicas.endpoint) as following:
            assert {**following.loaded()}.keys() == before.keys()
            assert following.loaded()["a"].pid == before["a"].pid
            assert following.routes == routes(a=1.0)
            assert kinds(following) == [("envoy", None)]
            following.load("a", "ngram")  # is there already
            assert len(running(replicas.endpoint)) == 1
    assert set(load.statuses) == {"200"}


def test_one_that_came_up_while_nobody_steered_goes_live(replicas: DrafterReplicas) -> None:
    pid = replicas.loaded()["a"].pid
    replicas.close()
    state = EndpointState.load(replicas.folder)
    late = state.replicas["a"].model_copy(update={"phase": "loading", "since": 0.0})
    state.with_replica("a", late).save(replicas.folder)
    with DrafterReplicas(replicas.folder, replicas.endpoint) as following:
        assert comes_true(lambda: ("ready", "a") in kinds(following), seconds=5)
        assert following.loaded()["a"].pid == pid


def test_an_ended_endpoint_leaves_nothing(tmp_path: Path) -> None:
    endpoint = managed()
    replicas = DrafterReplicas(tmp_path, endpoint)
    replicas.load("a", "ngram")
    pid = replicas.loaded()["a"].pid
    assert pid is not None and len(running(endpoint)) == 1
    replicas.down(0)
    assert is_gone(pid) and not running(endpoint)
    with DrafterReplicas(tmp_path, endpoint) as following:
        assert not following.loaded() and following.routes == DrafterRoutes()
        following.down(0)


def take_steps(folder: Path, endpoint: Path, die_at: int, first: int) -> int | None:
    """Run a controller that kills itself; return the step that it was at, None for the end."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.endpoint.managed", folder, endpoint, str(die_at), str(first)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = told.stdout.split()
    assert told.returncode in (0, -9), told.stderr
    if told.returncode == 0:
        assert lines[-1] == "done"
        return None
    return int(lines[-1]) if lines else first


def check_killed_at(place: int, folder: Path) -> bool:
    """Let a controller die at one place, and the next one go on; return whether it came to that."""
    endpoint = managed()
    path = folder / "endpoint.json"
    path.write_text(endpoint.model_dump_json())
    step = take_steps(folder / "run", path, place, 0)
    try:
        with DrafterReplicas(folder / "run", endpoint) as following:
            envoy = following._keeper.gateway.process.identity()
            for each in STEPS[step:] if step is not None else ():
                each(following)
            assert comes_true(lambda: set(following.loaded()) == {"b"})
            assert following.loaded()["b"].state == "live"
            assert following.routes == routes(b=1.0)
            (port,) = running(endpoint)  # one process, nothing twice
            assert following.loaded()["b"].url.endswith(f":{port}")
            assert Asker(endpoint.listen).arms(5) == ["b"] * 5
            assert following._keeper.gateway.process.identity() == envoy
    finally:
        end(folder / "run", endpoint)
    return step is not None


def test_a_killed_controller_loses_and_doubles_nothing(tmp_path: Path) -> None:
    for place in (9, 12):  # in the middle of a start and of a change of routes
        (tmp_path / str(place)).mkdir()
        assert check_killed_at(place, tmp_path / str(place))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_controller_killed_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    place = 0
    while True:
        folder = tmp_path / str(place)
        folder.mkdir()
        if not check_killed_at(place, folder):
            break
        place += 1
    assert place > 40  # every write, start and end of the scenario, before and after it


def test_a_second_load_waits_for_the_first(replicas: DrafterReplicas) -> None:
    failures: list[Exception] = []

    def load() -> None:
        try:
            replicas.load("b", "suffix")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(running(replicas.endpoint)) == 2
    assert time.time() > replicas.events[0].time
