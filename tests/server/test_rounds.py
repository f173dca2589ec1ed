"""GET /v1/requests/{id}/rounds: opt-in, one's own requests only, for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from paceline.bench.rounds import page, summary, table
from paceline.server import rounds as rounds_module
from paceline.server.errors import ApiError
from paceline.server.rounds import RoundStore

from .conftest import listening
from .test_real_engine import PROMPT, TEXT, tiny_engine

KEYS = ("mine", "yours")


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with listening(tiny_engine(), api_keys=KEYS) as running:
        yield running.url


def ask(base: str, method: str, path: str, key: str = "mine", **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.request(method, base + path, headers=headers, trust_env=False, **options)


def answered(base: str, **changes: Any) -> str:
    wish = {"policy": "fixed"}
    body = {**TEXT, "prompt": PROMPT, "temperature": 0, "explain": True, "speculative": wish}
    body |= changes
    response = ask(base, "POST", "/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        return response.text.split('"id": "')[1].split('"')[0]
    return str(response.json()["id"])


def test_rounds_of_an_answer(base: str) -> None:
    told = ask(base, "GET", f"/v1/requests/{answered(base, n=2)}/rounds").json()
    assert told["object"] == "request.rounds" and len(told["choices"]) == 2
    for choice in told["choices"]:
        assert choice["finish_reason"] == "length"
        committed = [t for one in choice["rounds"] for t in one["committed_tokens"]]
        assert len(committed) == TEXT["max_tokens"]
        assert {t["kind"] for t in committed} == {"accepted", "bonus"}
        assert sum(one["accepted"] for one in choice["rounds"]) == sum(
            t["kind"] == "accepted" for t in committed
        )


def test_streamed_answers_have_them_too(base: str) -> None:
    told = ask(base, "GET", f"/v1/requests/{answered(base, stream=True)}/rounds").json()
    assert told["choices"][0]["rounds"]


@pytest.mark.parametrize("case", ["unknown", "not asked for", "somebody else's"])
def test_nobody_elses(base: str, case: str) -> None:
    request_id, key = "cmpl-nothing", "mine"
    if case == "not asked for":
        request_id = answered(base, explain=False)
    elif case == "somebody else's":
        request_id, key = answered(base), "yours"
    response = ask(base, "GET", f"/v1/requests/{request_id}/rounds", key)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "rounds_not_found" and request_id in error["message"]


def test_a_key_is_needed(base: str) -> None:
    response = ask(base, "GET", f"/v1/requests/{answered(base)}/rounds", "nobody's")
    assert response.status_code == 401


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(name: str, count: int) -> Any:
        return SimpleNamespace(id=name, choices=[SimpleNamespace(rounds=[None] * count)])

    monkeypatch.setattr(rounds_module, "MOST_REQUESTS", 3)
    monkeypatch.setattr(rounds_module, "MOST_ROUNDS", 100)
    store = RoundStore()
    for index in range(5):
        store.keep(job(f"j{index}", 10), "")
    assert store.find("j4", "").id == "j4"
    with pytest.raises(ApiError):
        store.find("j1", "")
    store.keep(job("long", 99), "")
    with pytest.raises(ApiError):
        store.find("j4", "")
    assert store.find("long", "").id == "long"


def test_text_and_page_for_people(base: str) -> None:
    told = ask(base, "GET", f"/v1/requests/{answered(base)}/rounds").json()
    choice = told["choices"][0]
    assert table(choice).row_count == len(choice["rounds"])
    line = summary(choice)
    assert f"{TEXT['max_tokens']} tokens in {len(choice['rounds'])} rounds" in line
    choice["rounds"][0]["committed_tokens"][0]["text"] = "<script>alert(1)</script>"
    html = page(told)
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "http" not in html, "the page loads nothing"
    assert html.count("<li>") == len(choice["rounds"])


def test_a_stream_tells_its_rounds_as_they_happen(base: str) -> None:
    wish = {"stream": True, "stream_options": {"include_rounds": True}}
    body = {**TEXT, "prompt": PROMPT, "temperature": 0, "explain": True, **wish}
    body["speculative"] = {"policy": "fixed"}
    text = ask(base, "POST", "/v1/completions", json=body).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    told = ask(base, "GET", f"/v1/requests/{chunks[0]['id']}/rounds").json()
    streamed = [c["choices"][0]["round"] for c in chunks if "round" in c["choices"][0]]
    assert streamed == told["choices"][0]["rounds"]
    assert sum(len(one["committed_tokens"]) for one in streamed) == TEXT["max_tokens"]


def test_rounds_in_a_stream_must_be_kept(base: str) -> None:
    wish = {"stream": True, "stream_options": {"include_rounds": True}}
    response = ask(base, "POST", "/v1/completions", json={**TEXT, "prompt": PROMPT, **wish})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options.include_rounds"
