"""Envoy by its files alone, with two fake workers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.endpoint.description import EndpointDescription
from paceline.endpoint.envoy.files import ROUTE_FILE
from paceline.endpoint.envoy.routing import DRAFTER_HEADER, ROUTE_HEADER
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.gateway import EnvoyGateway
from paceline.engine.routes import Routes
from tests.endpoint.fleet import (
    Asker,
    Load,
    Worker,
    comes_true,
    described,
    is_gone,
    kill,
    needs_envoy,
    opened,
    workers,
)

pytestmark = needs_envoy
SESSIONS = 300


def shared(share: float, salt: str = "", **match: str) -> Routes:
    """Routes that give b its share, and a the rest."""
    shares = {"a": 1 - share, "b": share}
    return Routes.read(
        {"default": "a", "cohorts": [{"match": match, "shares": shares}], "salt": salt}
    )


@dataclass
class Fleet:
    gateway: EnvoyGateway
    description: EndpointDescription
    workers: list[Worker]

    @property
    def asker(self) -> Asker:
        return Asker(self.description.listen)

    def apply(self, routes: Routes) -> None:
        self.gateway.apply(self.description.model_copy(update={"routes": routes}))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with workers("a", "b") as running:
        description = described(running, Routes(default="a"))
        with opened(tmp_path_factory.mktemp("endpoint"), description) as gateway:
            yield Fleet(gateway, description, running)


def test_weight_is_moved_by_the_route_file_alone(fleet: Fleet) -> None:
    fleet.apply(Routes(default="a"))
    folder = fleet.gateway.files.folder
    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    assert fleet.asker.chosen("b", 20) == set()
    fleet.apply(Routes(default="b"))
    assert fleet.asker.chosen("b", 20) == set(range(20))  # from the first request on
    after = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {ROUTE_FILE, "whole.json"}


def test_a_session_keeps_its_drafter_and_a_share_grows_without_giving_any_away(
    fleet: Fleet,
) -> None:
    fleet.apply(shared(0.05))
    small = fleet.asker.chosen("b", SESSIONS)
    assert small == fleet.asker.chosen("b", SESSIONS)
    fleet.apply(shared(0.2))
    large = fleet.asker.chosen("b", SESSIONS)
    assert 0 < len(small) < len(large) < SESSIONS / 2
    assert small < large
    fleet.apply(shared(0.2, salt="another \\1 canary"))
    assert fleet.asker.chosen("b", SESSIONS) not in (small, large)


def test_requests_without_a_session_are_drawn_by_their_id(fleet: Fleet) -> None:
    fleet.apply(shared(0.5))
    ids = [{"x_request_id": f"id {place}"} for place in range(40)]
    arms = [fleet.asker.drafter(**each) for each in ids]
    assert set(arms) == {"a", "b"}
    assert arms == [fleet.asker.drafter(**each) for each in ids]
    assert {fleet.asker.drafter() for _ in range(40)} == {"a", "b"}  # each with an id of its own


def test_cohorts_are_matched_by_headers(fleet: Fleet) -> None:
    fleet.apply(shared(1.0, app="shop", region="eu"))
    ask = fleet.asker.drafter
    assert ask(x_paceline_app="shop", x_paceline_region="eu") == "b"
    assert ask(x_paceline_app="shop", x_paceline_region="us") == "a"
    assert ask(x_paceline_app="shop") == ask() == "a"
    fleet.apply(shared(1.0, app="none"))
    assert ask() == "b" and ask(x_paceline_app="shop") == "a"


def test_an_answer_says_why_it_came_from_its_drafter(fleet: Fleet) -> None:
    fleet.apply(shared(1.0, app="shop"))
    ask = fleet.asker.response
    assert ask().headers[ROUTE_HEADER] == "default"
    why = "m|a%7Cb|none|eu by scores"
    routes = shared(1.0)
    rule = routes.cohorts[0].model_copy(update={"why": why})
    fleet.apply(routes.model_copy(update={"cohorts": [rule]}))
    assert ask().headers[ROUTE_HEADER] == f"route 0: {why}"
    assert ask().headers[DRAFTER_HEADER] == "b"


def test_an_open_stream_survives_four_reloads(fleet: Fleet) -> None:
    fleet.apply(Routes(default="a"))
    with fleet.asker.stream(tokens=20, delay=0.05) as events:
        told = [next(events)]
        for share in (0.1, 0.5, 0.9, 1.0):
            fleet.apply(shared(share))
        assert fleet.asker.drafter() == "b"
        told += events
    said = [event["choices"][0]["delta"]["content"] for event in told if event["choices"]]
    assert said == [f"tide-{place} " for place in range(20)]
    assert {event.get("worker") for event in told if event["choices"]} == {told[0]["worker"]}


def test_a_client_that_leaves_cancels_its_request(fleet: Fleet) -> None:
    fleet.apply(Routes(default="a"))
    worker = fleet.workers[0]
    before = worker.counts()["cancelled"]
    with fleet.asker.stream(tokens=2000, delay=0.02) as events:
        next(events)
        assert worker.counts()["running"] == 1
        assert fleet.gateway.active_requests()[worker.port] == 1
    assert comes_true(lambda: worker.counts()["running"] == 0)
    assert worker.counts()["cancelled"] == before + 1


def test_a_broken_file_is_refused_while_the_one_before_serves(fleet: Fleet) -> None:
    fleet.apply(Routes(default="b"))
    files = fleet.gateway.files
    broken = files.folder / ".broken"
    broken.write_text('{"version_info": "broken", "resources": [')
    broken.replace(files.folder / ROUTE_FILE)
    assert fleet.asker.chosen("b", 20) == set(range(20))
    fleet.apply(Routes(default="a"))  # writes the file anew
    assert fleet.asker.chosen("a", 20) == set(range(20))


def test_what_envoy_cannot_read_is_refused_before_it_is_written(fleet: Fleet) -> None:
    files = fleet.gateway.files
    fleet.apply(Routes(default="a"))
    before = (files.folder / ROUTE_FILE).read_bytes()
    unreadable = fleet.description.model_copy(update={"session_header": ""})
    with pytest.raises(
        EndpointError, match=r"Envoy refuses .*whole.json: \S*HeaderName: value length"
    ):
        fleet.gateway.apply(unreadable)
    assert (files.folder / ROUTE_FILE).read_bytes() == before
    fleet.apply(Routes(default="a"))


def test_a_running_envoy_is_found_and_not_started_twice(fleet: Fleet, tmp_path: Path) -> None:
    pid = fleet.gateway.process.identity()
    again = EnvoyGateway(fleet.gateway.files.folder.parent)
    assert again.open(fleet.description) is False
    assert again.process.identity() == pid
    with pytest.raises(EndpointError, match="runs with another `listen`"):
        again.open(fleet.description.model_copy(update={"listen": "127.0.0.1:1"}))
    with pytest.raises(InvalidRequest, match=r"listen: got .*a free port"):
        EnvoyGateway(tmp_path).open(fleet.description)


def test_an_envoy_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with workers("a") as running:
        description = described(running, Routes(default="a"))
        with opened(tmp_path, description) as gateway:
            identity = gateway.process.identity()
            assert identity is not None
            kill(identity.pid)
            assert comes_true(lambda: not gateway.process.is_running())
            assert is_gone(identity.pid)
            assert comes_true(lambda: gateway.keep(description))
            assert comes_true(gateway.files.admin.is_ready)
            assert Asker(description.listen).drafter() == "a"


def test_no_request_fails_where_a_worker_is_killed(tmp_path: Path) -> None:
    with workers("a", "b") as running:
        description = described(running, shared(0.5))
        with opened(tmp_path, description), Load(description.listen, delay=0.01) as load:
            assert comes_true(lambda: load.drafters["b"] > 20)
            running[1].kill()
            served = load.drafters["a"]
            assert comes_true(lambda: load.drafters["a"] > served + 50)
            others = load.drafters["b"]
            assert comes_true(lambda: load.drafters["a"] > served + 200)
            assert load.drafters["b"] == others  # a dead replica gets nothing
    assert set(load.statuses) == {"200"} and len(load.texts) == 1


def test_a_stand_in_takes_the_place_of_one_that_is_gone_and_no_other_session_moves(
    tmp_path: Path,
) -> None:
    with workers("a", "b", "c") as running:
        shares = {"a": 0.4, "b": 0.3, "c": 0.3}
        routes = Routes.read({"default": "a", "cohorts": [{"shares": shares}]})
        description = described(running, routes)
        with opened(tmp_path, description) as gateway:
            asker = Asker(description.listen)
            before = asker.arms(100)
            left = [worker.described() for worker in running if worker.name != "b"]
            gateway.apply(description.model_copy(update={"replicas": left, "standins": {"b": "a"}}))
            assert asker.arms(100) == ["a" if arm == "b" else arm for arm in before]


def test_without_routes_every_request_is_refused(tmp_path: Path) -> None:
    with workers("a") as running:
        description = described(running, Routes(default="a")).model_copy(update={"routes": None})
        with opened(tmp_path, description):
            answer = Asker(description.listen).response()
            assert (answer.status_code, answer.text) == (
                503,
                "no replica serves here at the moment",
            )
