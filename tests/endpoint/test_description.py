"""What users write about an endpoint: bad input is refused by field, value and what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.endpoint.description import EndpointDescription, ManagedEndpoint
from paceline.endpoint.envoy.files import EnvoyFiles
from paceline.endpoint.envoy.program import INSTALL, find_envoy, reason_of
from paceline.endpoint.envoy.routing import PARTS, weights
from paceline.endpoint.errors import EndpointError
from paceline.engines.kind import Program
from tests.engines.configs import DFLASH, folder

MANAGED: dict[str, Any] = {
    "listen": "127.0.0.1:8000",
    "engine": "vllm",
    "target": "t",
    "slots": [{"port": 8001}],
}
DESCRIBED: dict[str, Any] = {
    "listen": "127.0.0.1:8000",
    "replicas": [{"name": "a", "url": "http://127.0.0.1:8001"}],
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"listen": "localhost:80"}, r"listen: got 'localhost:80'; expected ADDRESS:PORT"),
        ({"engine": "tgi"}, r"engine: got 'tgi'; expected one of paceline, vllm, sglang"),
        ({"slots": []}, r"slots: got \[\]; expected a list that is not empty"),
        ({"slots": [{"port": 8000}]}, r"slots\[0\].port: got 8000; expected a port of its own"),
        ({"health_path": "health"}, r"health_path: got 'health'; expected a path, as /health"),
        ({"session_header": "a b"}, r"session_header: got 'a b'; expected the name of a header"),
        ({"times": {"idle": 0.0}}, r"times.idle: got 0.0; expected a number above 0"),
        ({"tiems": {}}, r"tiems: unknown field; did you mean times\?"),
        ({"traces": {"folder": "t", "tokens": ["a b"]}}, r"traces.tokens\[0\]: got 'a b'"),
        ({"traces": {"folder": "t"}, "engine": "sglang"}, r"traces: got 't'; expected none for sg"),
    ],
)
def test_a_managed_endpoint_is_checked(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ManagedEndpoint.read({**MANAGED, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replicas": [{"name": "a", "url": "https://127.0.0.1:1"}]}, r"replicas\[0\].url: got"),
        ({"replicas": [{"name": "a", "url": "http://host:1"}]}, r"expected http://ADDRESS:PORT"),
        ({"replicas": DESCRIBED["replicas"] * 2}, r"replicas\[1\].url: .*an address for each"),
        ({"routes": {"default": "b"}}, r"routes.default: got 'b'; expected one of: a"),
        ({"routes": {}}, r"routes.default: got null; expected a replica's name"),
        ({"standins": {"b": "c"}}, r"standins.b: got 'c'; expected one of: a"),
    ],
)
def test_a_description_is_checked(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        EndpointDescription.read({**DESCRIBED, **fields})


def test_routes_may_match_the_model_that_is_served_and_no_other() -> None:
    cohorts = [{"match": {"model": "m"}, "shares": {"a": 1.0}}]
    routes = {"default": "a", "cohorts": cohorts}
    assert EndpointDescription.read({**DESCRIBED, "model": "m", "routes": routes})
    with pytest.raises(InvalidRequest, match=r"cohorts\[0\].match.model: got 'm'; expected no oth"):
        EndpointDescription.read({**DESCRIBED, "routes": routes})


def test_shares_become_whole_parts_that_add_up() -> None:
    thirds = weights({"c": 1 / 3, "a": 1 / 3, "b": 1 / 3})
    assert list(thirds) == ["a", "b", "c"] and sum(thirds.values()) == PARTS
    assert weights({"a": 0.95, "b": 0.05}) == {"a": 950_000, "b": 50_000}
    assert weights({"a": 1.0, "b": 0.0}) == {"a": PARTS, "b": 0}


def test_a_spec_becomes_a_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = Program(("vllm", "serve"))
    monkeypatch.setattr("paceline.endpoint.description.find_program", lambda *_: program)
    endpoint = ManagedEndpoint.read({**MANAGED, "extra": ["--dtype", "bfloat16"]})
    drafter = folder(tmp_path / "drafter", DFLASH)
    plan = endpoint.plan(str(drafter), 8001)
    assert (plan.drafter, plan.kind, plan.port) == (drafter, None, 8001)
    assert plan.extra == ("--dtype", "bfloat16")
    assert endpoint.plan("ngram", 8001).kind == "ngram"
    none = endpoint.plan("none", 8001)
    assert (none.drafter, none.kind) == (None, None)


def test_a_missing_envoy_is_an_error_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paceline.endpoint.envoy.program.find_spec", lambda _: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EndpointError) as error:
        find_envoy()
    assert INSTALL in str(error.value)
    program = tmp_path / "envoy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_envoy() == program


def test_a_folder_with_too_long_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"folder: got .*expected a path of fewer than 90 b"):
        EnvoyFiles(tmp_path / ("x" * 90))


def test_a_reason_is_told_without_the_configuration() -> None:
    said = "goo.gle name: 1\n: Proto constraint validation failed (A: b | caused by C.D: too short)"
    assert reason_of(said) == "C.D: too short"
    assert reason_of("unknown fields") == "unknown fields"
