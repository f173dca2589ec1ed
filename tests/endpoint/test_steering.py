"""An endpoint's API: autospec's client steers replicas as it steers a server."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from paceline.autospec.server_client import DrafterClient, DrafterRoutes, RouteRule
from paceline.autospec.serving import (
    DrafterRefused,
    PacelineServing,
    ServedDrafters,
    ServingError,
    ServingFull,
)
from paceline.endpoint.replicas import DrafterReplicas
from paceline.endpoint.steering import SOCKET, ReplicaSteering
from tests.endpoint.fleet import Asker, comes_true, needs_envoy
from tests.endpoint.managed import managed, use_fake

pytestmark = needs_envoy


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrafterReplicas]:
    monkeypatch.setattr("paceline.endpoint.description.find_program", None)  # put back at the end
    use_fake()
    made = DrafterReplicas(tmp_path, managed())
    steering = ReplicaSteering(made)
    yield made
    steering.close()
    made.down(0)


@pytest.fixture
def served(replicas: DrafterReplicas) -> ServedDrafters:
    return PacelineServing(DrafterClient.connect(f"unix:{replicas.folder}/{SOCKET}"))


def test_autospec_steers_replicas_as_it_steers_a_server(
    replicas: DrafterReplicas, served: ServedDrafters
) -> None:
    served.route(DrafterRoutes(None, (), "salt"))  # nobody is there yet
    served.load("a", "ngram")
    served.route(DrafterRoutes("a"))
    served.load("b", "suffix")
    there = served.loaded()
    assert {name: (each.spec, each.state) for name, each in there.items()} == {
        "a": ("ngram", "live"), "b": ("suffix", "live"),
    }  # fmt: skip
    shop = DrafterRoutes(None, (RouteRule({"app": "shop"}, {"b": 1.0}),), "salt")
    served.route(shop)
    asker = Asker(replicas.endpoint.listen)
    assert (asker.drafter(), asker.drafter(X_Paceline_App="shop")) == ("a", "b")
    served.unload("a")  # the default stays
    served.route(DrafterRoutes("b"))
    served.unload("a")
    assert comes_true(lambda: served.loaded().keys() == {"b"})
    assert not served.takes_corpora(), "vLLM looks up none"


def test_refusals_are_those_of_a_server(replicas: DrafterReplicas, served: ServedDrafters) -> None:
    with pytest.raises(DrafterRefused, match="spec: got '/nowhere'; expected a drafter's folder"):
        served.load("a", "/nowhere")
    served.load("a", "ngram")
    served.load("b", "none")
    with pytest.raises(ServingFull, match="a, b have all 2; unload one of them"):
        served.load("c", "none")
    use_fake("--fail", "no such tensor")
    served.unload("b")
    assert comes_true(lambda: served.loaded().keys() == {"a"})
    with pytest.raises(DrafterRefused, match="no such tensor"):
        served.load("b", "suffix")
    with pytest.raises(ServingError, match=r"routes\.default: got 'c'; expected one of: a"):
        served.route(DrafterRoutes("c"))
    with pytest.raises(ServingError, match=r"404 from .*: name: got 'c'"):
        served.unload("c")


def test_only_its_owner_can_open_it_and_nonsense_is_refused(replicas: DrafterReplicas) -> None:
    path = replicas.folder / SOCKET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
        answers = [
            http.get("http://x/v1/models"),
            http.post("http://x/v1/drafters", content=b"no json"),
            http.post("http://x/v1/drafters", json={"name": "a", "spec": "ngram", "more": 1}),
            http.put("http://x/v1/drafters/routes", json={"default": 3}),
            http.post("http://x/v1/drafters", content=b" " * (2**20 + 1)),
        ]
    assert [answer.status_code for answer in answers] == [404, 400, 400, 400, 400]
    told = [answer.json()["error"]["message"] for answer in answers]
    assert (
        "no GET /v1/models" in told[0]
        and told[1].startswith("name, spec: missing")
        and "more" in told[2]
    )
