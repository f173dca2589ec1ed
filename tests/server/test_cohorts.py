"""The cohort of a request, and that there are never too many of them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from paceline.core.cohorts import NONE, OTHER, UNKNOWN, Cohort
from paceline.server import cohorts
from paceline.server.cohorts import Callers, CommonCohorts
from paceline.server.keys import read_keys
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.settings import ServerSettings

from .conftest import Client
from .fake import FakeAsyncEngine

GERMAN = "Bitte fasse die folgende E-Mail in zwei Sätzen zusammen."
FRENCH = "Quelle est la capitale de la France ?"


def chat(*messages: tuple[str, Any], **fields: Any) -> ChatRequest:
    said = [{"role": role, "content": content} for role, content in messages]
    return ChatRequest.read({"model": "m", "messages": said, **fields})


@pytest.fixture(scope="module")
def callers() -> Callers:
    made = Callers({key.name: key for key in read_keys(["team-a one tokens=own", "two"])})
    made.languages.load()
    return made


def test_headers_name_app_and_region(callers: Callers) -> None:
    headers = Headers({"x-paceline-app": "shop", "x-paceline-region": "eu-1"})
    caller = callers.of(chat(("user", GERMAN)), headers, "team-a")
    assert caller.cohort == Cohort("m", "shop", "de", "eu-1") == caller.counted
    assert caller.key is not None and (caller.key.name, caller.key.tokens) == ("team-a", "own")


def test_an_app_without_a_header_is_its_key_or_its_system_prompt(callers: Callers) -> None:
    def app(body: ChatRequest, key: str = "") -> str:
        return callers.of(body, Headers(), key).cohort.app

    support = ("system", "You answer questions about bicycles.")
    assert app(chat(support, ("user", "Hi")), "team-a") == "team-a"
    named = app(chat(support, ("user", "Hi")), "key-2")  # this key has no name of its own
    assert named.startswith("prompt-") and "bicycle" not in named
    assert named == app(chat(support, ("user", "another question")))
    parts = [{"type": "text", "text": "You answer "}, {"type": "text", "text": support[1][11:]}]
    assert named == app(chat(("system", parts), ("user", "Hi")))
    assert named != app(chat(("system", "You answer questions about trains."), ("user", "Hi")))
    assert app(chat(("user", "Hi"))) == NONE


def test_the_language_is_that_of_the_last_user_message(callers: Callers) -> None:
    def language(body: ChatRequest | CompletionRequest) -> str:
        return callers.of(body, Headers(), "").cohort.language

    assert language(chat(("user", GERMAN), ("assistant", "Ja."), ("user", FRENCH))) == "fr"
    assert language(CompletionRequest.read({"prompt": GERMAN, "model": "m"})) == "de"
    assert language(CompletionRequest.read({"prompt": [1, 2], "model": "m"})) == UNKNOWN
    for text in ("", "   ", "12345", "\ud800", "hi"):
        assert language(chat(("user", text))) == UNKNOWN


def test_without_the_detector_no_language_is_known() -> None:
    body = chat(("user", GERMAN))
    assert Callers({}).of(body, Headers(), "").cohort.language == UNKNOWN


def test_the_session_is_what_the_request_says(callers: Callers) -> None:
    def session(headers: dict[str, str], **fields: Any) -> str | None:
        return callers.of(chat(("user", "Hi"), **fields), Headers(headers), "").session

    assert session({"x-session-id": "s1"}, user="u") == "s1"
    assert session({}, user="u", prompt_cache_key="k") == "u"
    assert session({}, prompt_cache_key="k") == "k"
    assert session({}) is None


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Paceline-App", "a b"),
        ("X-Paceline-App", "../up"),
        ("X-Paceline-App", "a" * 65),
        ("X-Paceline-Region", "eu|us"),
        ("X-Session-ID", "s" * 257),
    ],
)
def test_a_header_that_is_no_name_is_refused(header: str, value: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = client.post("/v1/chat/completions", json=body, headers={header: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, header)
    assert "expected" in error["message"] and not client.engine.submitted


def test_the_engine_counts_acceptance_by_cohort() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    headers = {"X-Paceline-App": "shop", "X-Paceline-Region": "eu"}
    assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    assert [r.cohort for r in client.engine.submitted] == ["fake-model|shop|und|eu"]


def test_a_flood_of_cohorts_is_pooled_and_what_is_common_gets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cohorts, "MOST_COHORTS", 3)
    monkeypatch.setattr(cohorts, "WAITING", 8)
    table = CommonCohorts()
    common = Cohort("m", "shop")
    seen = {table.counted(Cohort("m", f"random-{index}")) for index in range(3)}
    shown = set()
    for index in range(20_000):
        shown.add(table.counted(Cohort("m", f"flood-{index}")))
        if index % 4 == 0:
            shown.add(table.counted(common))
    assert shown == {common, Cohort.pooled("m")}
    assert table.counted(common) == common and len(seen) == 3
    assert table.counted(Cohort("m", "new")).app == OTHER


def test_a_cohort_that_has_gone_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "MOST_COHORTS", 1)
    table = CommonCohorts()
    old, new = Cohort("m", "old"), Cohort("m", "new")
    for _ in range(10_000):
        assert table.counted(old) == old
    came = [table.counted(new) for _ in range(60_000)]
    assert came[0].is_pooled and came[-1] == new
    assert table.counted(old).is_pooled
