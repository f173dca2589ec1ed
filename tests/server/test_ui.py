"""The page beside the API: what it may show without a key, and that it is no part of the schema."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.roofline.architecture import model_config
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from tests.evaluate.made import made_up, row

from .conftest import Client, in_process
from .fake import FakeAsyncEngine

SCENARIO = {
    "model": "Qwen3-8B",
    "hardware": "H200",
    "drafters": [{"kind": "mtp", "cost": 0.1, "acceptance": {"alpha": 0.8}}],
}

DEVICE = {"name": "mine", "memory_bandwidth": 1e12, "memory": 8e10, "peak": {"bf16": 1e14}}
SPEEDS = {"tokens": 100, "ar_tokens_per_second": 20, "tokens_per_second": 50, "ttft_ms": 10,
          "acceptance": {"alpha": 0.8}, "draft_length": 4}  # fmt: skip


def test_a_server_has_every_tab_but_those_of_a_store_and_of_training(client: Client) -> None:
    assert client.get("/").text.startswith("<!doctype html>")
    state = client.get("/ui/state").json()
    tabs = {tab["name"]: tab["available"] for tab in state["tabs"]}
    assert list(tabs) == ["calculator", "timing", "playground", "live", "autospec", "training"]
    assert [name for name, there in tabs.items() if not there] == ["autospec", "training"]
    assert not state["key_needed"]
    assert state["opens_on"] == "playground"


def test_the_page_predicts(client: Client) -> None:
    answer = client.post("/ui/predict", json=SCENARIO).json()
    assert answer["drafters"][0]["optimum"]["roofline"]["speedup"] > 1
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
    answer = client.send("/ui/timing", body.replace("Infinity", "1e999"))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_arrivals_are_bounded_and_numbers(client: Client) -> None:
    many = {"arrivals_ms": {"ar": [0] * 100_001, "speculative": [0]}}
    refused = client.post("/ui/timing", json=many)
    assert refused.status_code == 400 and "up to 100000 tokens" in refused.text
    nothing = client.send("/ui/timing", '{"arrivals_ms": {"ar": [NaN]}}')
    assert nothing.status_code == 400 and "NaN is no number" in nothing.text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/ui/predict", {**SCENARIO, "precision": True}, "precision"),
        ("/ui/predict", {**SCENARIO, "precision": 5}, "precision"),
        ("/ui/predict", {**SCENARIO, "precision": ["fp8"]}, "precision"),
        ("/ui/predict", {**SCENARIO, "hardware": {**DEVICE, "memory": 10**400}}, "hardware.memory"),
        ("/ui/predict", {**SCENARIO, "hardware": {**DEVICE, "memory_bandwidth": 1e-320}},
         "hardware.memory_bandwidth"),
        ("/ui/predict", {**SCENARIO, "calibration": {"row_overhead": 10**400}},
         "calibration.row_overhead"),
        ("/ui/predict", {**SCENARIO, "calibration": {"row_overhead": 1e300}},
         "calibration.row_overhead"),
        ("/ui/timing", {**SPEEDS, "ttft_ms": 10**400}, "ttft_ms"),
        ("/ui/timing", {**SPEEDS, "tokens_per_second": 10**309}, "tokens_per_second"),
        ("/ui/measured", {"points": [{"acceptance_length": 10**400, "speedup": 1}]},
         "measured.points[0].acceptance_length"),
    ],
)  # fmt: skip
def test_numbers_and_types_that_no_device_has_are_refused_by_name(
    client: Client, path: str, body: dict, param: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_the_page_sends_back_what_cannot_be_encoded(client: Client) -> None:
    config = {**model_config("Qwen3-8B"), "note": "\ud800"}
    body = {**SCENARIO, "model": {"config": config}}
    answer = client.send("/ui/predict", json.dumps(body))
    assert answer.json()["scenario"]["model"]["config"]["note"] == "\ud800"
    refused = client.send("/ui/predict", json.dumps({**SCENARIO, "checkpoint": "\ud800"}))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "checkpoint"


def test_bodies_of_the_page_are_bounded(client: Client) -> None:
    recorded = b'{"recorded":[' + b",".join([b"[]"] * 1_000_000) + b"]}"
    answer = client.send("/ui/timing", recorded)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "recorded"
    assert client.send("/ui/timing", b"[" * 100_000).status_code == 400


JSON = {"Content-Type": "application/json"}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 64, 65, 10**6, 2**63, 10**308, 10**309, 10**400, 0.0, 0.5, 1e-320,
    1e-300, 1e300, 1.7e308, float("inf"), -5.5, "", "a", "fp8", "auto", "x" * 300, "\ud800", [], {},
    [1], [[]], {"a": 1}, [None], {"": {}}, [0.5] * 3, {"alpha": 0.5}, [1e308] * 2, [1] * 70, [{}],
]  # fmt: skip
BODIES: list[tuple[str, Any]] = [
    ("/ui/predict", {**SCENARIO, "precision": "fp8", "batch": 8, "contexts": [100, 200]}),
    ("/ui/predict", {**SCENARIO, "hardware": DEVICE, "calibration": {"row_overhead": 1e-6}}),
    ("/ui/predict", {**SCENARIO, "precision": {"attention": "fp8", "kv": "fp8"}}),
    ("/ui/predict", {**SCENARIO, "model": {"config": model_config("Qwen3-8B"), "name": "mine"}}),
    ("/ui/predict", {**SCENARIO, "drafters": [
        {"kind": "eagle3", "config": "Qwen3-8B", "acceptance": {"al": 3.5, "draft_length": 7}},
        {"kind": "dflash", "cost": 0.2, "block": 15, "acceptance": {"conditional": [0.8, 0.7]}},
        {"kind": "ngram", "seconds": 0.001, "acceptance": {"beta": [2, 1]}},
    ]}),
    ("/ui/timing", SPEEDS),
    ("/ui/timing", {"arrivals_ms": {"ar": [1, 2, 3], "speculative": [1, 1, 2]}}),
    ("/ui/timing", {"evaluation": made_up({"mine": [row([3, 1])]}), "row": 0}),
    ("/ui/measured", made_up({"mine": [row([3, 1])]})),
    ("/ui/measured", {"points": [{"acceptance_length": 2, "speedup": 1.5, "batch": 1}]}),
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of `value` with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.slow
def test_no_value_of_another_type_is_a_server_error() -> None:
    """Bodies that are right but for one to three values: 200 or a 400 that names a field."""
    draw = random.Random(11)

    async def test() -> Counter[int]:
        seen: Counter[int] = Counter()
        app = create_app(FakeAsyncEngine(), ServerSettings())  # type: ignore[arg-type]
        async with in_process(app) as http:
            for _ in range(2500):
                path, body = copy.deepcopy(draw.choice(BODIES))
                for _ in range(draw.choice([1, 1, 1, 2, 3])):
                    container, key = draw.choice(list(places(body)))
                    container[key] = copy.deepcopy(draw.choice(VALUES))
                content = json.dumps(body).replace("Infinity", "1e999")
                answer = await http.post(path, content=content, headers=JSON)
                seen[answer.status_code] += 1
                assert answer.status_code in (200, 400), content
                if answer.status_code == 400:
                    assert answer.json()["error"]["param"], content
        return seen

    seen = asyncio.run(test())
    assert seen[200] > 100 and seen[400] > 1000, seen
