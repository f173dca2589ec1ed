"""The page beside the API: what it may show without a key, and that it is no part of the schema."""

from __future__ import annotations

import json

import pytest

from paceline.server.settings import ServerSettings

from .conftest import Client
from .fake import FakeAsyncEngine

SCENARIO = {
    "model": "Qwen3-8B",
    "hardware": "H200",
    "drafters": [{"kind": "mtp", "cost": 0.1, "acceptance": {"alpha": 0.8}}],
}


def test_a_server_has_every_tab(client: Client) -> None:
    assert client.get("/").text.startswith("<!doctype html>")
    state = client.get("/ui/state").json()
    assert [tab["name"] for tab in state["tabs"]] == ["calculator", "timing", "playground", "live"]
    assert all(tab["available"] for tab in state["tabs"]) and not state["key_needed"]


def test_the_page_predicts(client: Client) -> None:
    answer = client.post("/ui/predict", json=SCENARIO).json()
    assert answer["drafters"][0]["optimum"]["ceiling"]["speedup"] > 1
    names = [model["name"] for model in client.get("/ui/models").json()["models"]]
    assert "Qwen3-8B" in names
    assert "H200" in [one["name"] for one in client.get("/ui/hardware").json()["hardware"]]


@pytest.mark.parametrize("path", ["/ui/predict", "/ui/timing", "/ui/measured", "/ui//state"])
def test_with_a_key_data_asks_for_it_and_the_page_does_not(path: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=("secret",)))
    assert client.get("/").status_code == client.get("/web/shell.js").status_code == 200
    assert client.get("/ui/state").json()["key_needed"] is True
    assert client.post(path, json=SCENARIO).status_code == 401
    key = {"Authorization": "Bearer secret"}
    assert client.post(path, json=SCENARIO, headers=key).status_code != 401


def test_the_schema_has_the_api_alone(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path.startswith(("/ui", "/web")) or path == "/"]


LONG_ROW = {"prompt": "p", "counted_tokens": 10**10, "rounds": {"drafter/throughput": [[1, 2, 1]]},
            "seconds": {"ar": [1.0], "drafter/throughput": [0.5]}}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({}, "counted_tokens"),
        ({"counted_tokens": 9, "rounds": {"drafter/throughput": []}}, "rounds"),
        ({"counted_tokens": 9, "seconds": {"ar": [1e999], "drafter/throughput": [1]}}, "seconds"),
    ],
)
def test_an_evaluation_that_cannot_be_played_is_refused(
    client: Client, changed: dict, param: str
) -> None:
    row = {**LONG_ROW, **changed}
    one = {"set": "a", "temperature": 0.0, "rows": [row]}
    body = json.dumps({"evaluation": {"format": "paceline-evaluation/1", "results": [one]}})
    answer = client.post("/ui/timing", content=body.replace("Infinity", "1e999"))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_arrivals_are_bounded_and_numbers(client: Client) -> None:
    many = {"arrivals_ms": {"ar": [0] * 100_001, "speculative": [0]}}
    refused = client.post("/ui/timing", json=many)
    assert refused.status_code == 400 and "at most 100000 tokens" in refused.text
    nothing = client.post("/ui/timing", content='{"arrivals_ms": {"ar": [NaN]}}')
    assert nothing.status_code == 400 and "NaN is no number" in nothing.text
