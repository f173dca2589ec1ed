"""GET /v1/requests/{id}/rounds: opt-in, one's own requests only, for a while."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from paceline.bench.report.rounds import page, summary, table
from paceline.core import (
    CutReason,
    ExplainedRound,
    FinishReason,
    OutputDelta,
    Round,
    StepInfo,
    StreamInfo,
    TokenKind,
    TokenLogprobs,
)
from paceline.server import rounds as rounds_module
from paceline.server.errors import ApiError
from paceline.server.round_bodies import RequestRounds
from paceline.server.rounds import RoundLog, RoundStore
from paceline.server.settings import ServerSettings

from .conftest import TEXT as FAKE_TEXT
from .conftest import Client, eventually, listening
from .fake import FakeAsyncEngine
from .test_real_engine import PROMPT, TEXT, tiny_engine

KEYS = ("mine", "yours")
TEXTS: Any = type("Texts", (), {"__getitem__": lambda *_: ("x", b"x")})()


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
        return str(json.loads(response.text.partition("\n")[0].removeprefix("data: "))["id"])
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


def test_the_latest_requests_of_a_key_are_listed(base: str) -> None:
    answered(base, explain=False)
    first, second = answered(base), answered(base, n=2, stream=True)
    listed = ask(base, "GET", "/ui/requests").json()["requests"]
    assert [one["id"] for one in listed[:2]] == [second, first]
    assert [one["tokens"] for one in listed[:2]] == [2 * TEXT["max_tokens"], TEXT["max_tokens"]]
    assert listed[0]["finish_reasons"] == ["length", "length"]
    choices = ask(base, "GET", f"/v1/requests/{second}/rounds").json()["choices"]
    rounds = [one for choice in choices for one in choice["rounds"]]
    assert listed[0]["rounds"] == len(rounds)
    drafted = [one for one in rounds if one["verified"]]
    accepted = sum(one["accepted"] for one in drafted)
    assert listed[0]["acceptance_length"] == pytest.approx(1 + accepted / len(drafted))
    others = ask(base, "GET", "/ui/requests", "yours").json()["requests"]
    assert not {one["id"] for one in others} & {first, second}
    assert ask(base, "GET", "/ui/requests", "nobody's").status_code == 401


def test_a_key_is_needed(base: str) -> None:
    response = ask(base, "GET", f"/v1/requests/{answered(base)}/rounds", "nobody's")
    assert response.status_code == 401


def delta(tokens: int = 4, *, last: FinishReason | None = None, choice: int = 0) -> OutputDelta:
    """What a round brings, with objects of its own as in a running engine."""
    # ids past the small numbers that all of Python shares
    ids = [1000 + random.getrandbits(15) for _ in range(tokens)]
    stream = StreamInfo(
        request="".join(["cmpl-", "0" * 32, "-0#0"]), cohort="tiny", drafter="auto", version="1",
        rule="match", temperature=1.0, grammar=False,
    )  # fmt: skip
    step = StepInfo(time.time(), 1, 300 + tokens, random.random(), random.random())
    drafts = tuple(1000 + random.getrandbits(15) for _ in ids)
    return OutputDelta(
        request_id="r",
        choice=choice,
        token_ids=tuple(ids),
        kinds=(TokenKind.ACCEPTED,) * tokens,
        logprobs=tuple(TokenLogprobs(token, -0.5) for token in ids),
        text="x" * 1000,
        finish_reason=last,
        round=Round(
            random.getrandbits(15), tokens, tokens, proposed=tokens, verified=tokens,
            part="suffix", cut_by=CutReason.COST, seconds=random.random(),
            ar_seconds=random.random(), stream=stream, step=step,
        ),
        explained=ExplainedRound(drafts, drafts, (), tuple(random.random() for _ in ids)),
    )  # fmt: skip


def opened(store: RoundStore, name: str, choices: int = 1) -> RoundLog:
    return store.open(name, "", created=1, model="tiny", choices=choices)


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_module, "MOST_REQUESTS", 3)
    store = RoundStore(TEXTS)
    logs = [opened(store, f"j{index}") for index in range(5)]
    assert store.find("j4", "") is logs[4]
    with pytest.raises(ApiError):
        store.find("j1", "")
    monkeypatch.setattr(rounds_module, "MOST_BYTES", 100_000)
    while store.estimated_bytes < 90_000:
        logs[4].note(0, delta())
    kept = len(logs[4].choices[0].rounds)
    long = opened(store, "long")
    while len(long.choices[0].rounds) < kept:
        long.note(0, delta())
        assert store.estimated_bytes <= 100_000
    assert store.find("long", "") is long
    with pytest.raises(ApiError):
        store.find("j4", "")
    logs[4].note(0, delta())  # it still runs: what it adds is not kept
    assert store.estimated_bytes == long.estimated_bytes


def test_a_request_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_module, "MOST_REQUEST_BYTES", 40_000)
    store = RoundStore(TEXTS)
    log = opened(store, "r")
    for _ in range(99):
        log.note(0, delta())
    log.note(0, delta(last=FinishReason.LENGTH))
    told = json.loads(log.writer()())["choices"][0]
    assert store.estimated_bytes <= 40_000
    assert len(told["rounds"]) + told["rounds_left_out"] == 100 and told["rounds_left_out"] > 50
    assert told["finish_reason"] == "length"
    assert "later rounds were not kept" in summary(told)


def test_an_answer_is_put_together_of_what_is_kept() -> None:
    """Rounds may be megabytes: nothing reads or writes them a second time."""
    texts: Any = type("Texts", (), {"__getitem__": lambda *_: ("é☕", b"")})()
    log = opened(RoundStore(texts), "naïve", choices=2)
    for index in range(6):
        log.note(index // 4, delta(last=FinishReason.STOP if index == 3 else None))
    write = log.writer()
    log.note(0, delta())  # what comes later is not in it
    written = write()
    kept = [choice.rounds for choice in log.choices]
    assert all(entry in written for entry in [*kept[0][:4], *kept[1]])
    assert json.loads(written) == {
        "id": "naïve",
        "object": "request.rounds",
        "created": 1,
        "model": "tiny",
        "choices": [
            {
                "index": index,
                "finish_reason": reason,
                "rounds": list(map(json.loads, rounds)),
                "rounds_left_out": 0,
            }
            for index, reason, rounds in ((0, "stop", kept[0][:4]), (1, None, kept[1]))
        ],
    }
    TypeAdapter(RequestRounds).validate_json(written)
    assert json.loads(opened(RoundStore(texts), "new").writer()())["choices"][0]["rounds"] == []


def test_answers_are_put_together_on_a_thread_of_their_own(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, written = list[str](), rounds_module._written

    def watched(*answer: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return written(*answer)

    monkeypatch.setattr(rounds_module, "_written", watched)
    assert ask(base, "GET", f"/v1/requests/{answered(base)}/rounds").json()["choices"]
    assert threads == ["AnyIO worker thread"]


@pytest.mark.parametrize("tokens", [1, 6, 16])
def test_the_estimate_is_what_is_held(tokens: int) -> None:
    store = RoundStore(TEXTS)
    log = opened(store, "r", choices=4)
    for _ in range(20):
        log.note(0, delta(tokens))
    gc.collect()
    tracemalloc.start()
    try:
        before, estimated = tracemalloc.get_traced_memory()[0], store.estimated_bytes
        for index in range(400):
            log.note(index % 4, delta(tokens))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.9 * held <= store.estimated_bytes - estimated <= 1.3 * held


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_kept_of_a_client_that_hung_up(stream: bool) -> None:
    """Armour's case D3: jobs of clients that had left stayed, with their prompts."""
    engine = FakeAsyncEngine(step=0.01)
    body = {**FAKE_TEXT, "max_tokens": 500, "ignore_eos": True, "explain": True, "stream": stream}
    with listening(engine) as server:
        url = f"{server.url}/v1/requests/{{}}/rounds"
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            if stream:
                with http.stream("POST", "/v1/completions", json=body) as response:
                    lines = response.iter_lines()  # held: a dropped one hangs up
                    next(lines)
                    request_id = engine.submitted[0].id.rsplit("-", 1)[0]
                    running = httpx.get(url.format(request_id), trust_env=False)
                    assert running.status_code == 200
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post("/v1/completions", json=body, timeout=0.2)
            eventually(lambda: engine.stats().running == 0)
        request_id = engine.submitted[0].id.rsplit("-", 1)[0]
        eventually(lambda: httpx.get(url.format(request_id), trust_env=False).status_code == 404)


def test_nothing_is_kept_of_a_request_that_failed() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    assert client.complete(explain=True).status_code == 500
    request_id = client.engine.submitted[0].id.rsplit("-", 1)[0]
    assert client.get(f"/v1/requests/{request_id}/rounds").status_code == 404


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
