"""The page beside the API: what it may show without a key, and that it is no part of the schema."""

from __future__ import annotations

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
