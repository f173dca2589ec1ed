"""Drafters over HTTP: loaded, routed to and retired while the server serves, by the admin alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.core import InvalidRequest
from paceline.dataset.traces.reader import read_requests
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.newcomers import DrafterBuilder
from paceline.server.run import Server
from paceline.server.settings import ServerSettings
from tests.models.dflash.tiny import write_drafter

from .conftest import Client, eventually, listening
from .fake import FakeAsyncEngine
from .test_real_engine import PROMPT, TEXT, tiny_engine

ADMIN, KEY = "admin-secret", "sk-app"
PATH, ROUTES = "/v1/drafters", "/v1/drafters/routes"
ADMINS = {"Authorization": f"Bearer {ADMIN}"}
# of metrics, beside the model's name
LABELS = ("drafter", "version", "route", "state", "part", "app", "language", "region")
PARTS = ("model", "app", "language", "region")
CALLS = [("GET", PATH), ("POST", PATH), ("PUT", ROUTES), ("DELETE", f"{PATH}/ngram")]


@contextmanager
def served(**options: Any) -> Iterator[tuple[AsyncEngine, Server, httpx.Client]]:
    """A server of the real engine with the drafter `ngram`, and a client with the admin key."""
    settings = {"admin_key": ADMIN, **options.pop("settings", {})}
    make = options.pop("make", tiny_engine)
    engine = make(**{"drafter": "ngram", "spare_drafter_memory": 2**24, **options})
    with (
        listening(engine, **settings) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60, headers=ADMINS) as http,
    ):
        yield engine, server, http


def load(http: httpx.Client, name: str, spec: str) -> httpx.Response:
    return http.post(PATH, json={"name": name, "spec": spec})


def route(http: httpx.Client, default: str | None, *cohorts: Any, **more: Any) -> httpx.Response:
    return http.put(ROUTES, json={"default": default, "cohorts": list(cohorts), **more})


def names(http: httpx.Client) -> dict[str, str]:
    return {each["name"]: each["state"] for each in http.get(PATH).json()["drafters"]}


def ask(http: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
    body = {**TEXT, "prompt": PROMPT, "max_tokens": 4, **body}
    answer = http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def why(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["metrics"]["drafter"], answer["metrics"]["route"]


# -- who may ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_only_the_admin_may(method: str, path: str) -> None:
    engine = FakeAsyncEngine()
    for settings, key, status, code, said in [
        (ServerSettings(), "", 403, "no_admin_key", "start it with --admin-key"),
        (ServerSettings(api_keys=(KEY,)), KEY, 403, "no_admin_key", "PACELINE_ADMIN_KEY"),
        (ServerSettings(admin_key=ADMIN), "", 401, "invalid_admin_key", "the admin key is needed"),
        (ServerSettings(admin_key=ADMIN, api_keys=(KEY,)), KEY, 401, "invalid_admin_key", "admin"),
    ]:
        client = Client(engine, settings)
        answer = client.request(method, path, headers={"Authorization": f"Bearer {key}"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert said in error["message"] and ADMIN not in answer.text


def test_the_admin_key_opens_nothing_else() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(admin_key=ADMIN, api_keys=(KEY,)))
    assert client.get(PATH, headers=ADMINS).status_code == 200
    assert client.get("/v1/models", headers=ADMINS).status_code == 401


def test_an_admin_key_that_cannot_be_one_is_refused_and_not_shown() -> None:
    for keys in ({"admin_key": ""}, {"admin_key": "a b"}, {"admin_key": KEY, "api_keys": (KEY,)}):
        with pytest.raises(InvalidRequest, match="admin_key: got '<hidden>'") as refused:
            ServerSettings(**keys)
        assert KEY not in str(refused.value)


# -- what they can do ------------------------------------------------------------------------------


def test_a_drafter_is_loaded_routed_to_and_retired(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")
    with served() as (_, _, http):
        before = http.get(PATH).json()
        assert before["routes"] == {"default": "ngram", "cohorts": [], "salt": ""}
        (only,) = before["drafters"]
        assert only == {
            "name": "ngram", "version": "1", "spec": "ngram", "state": "live", "requests": 0,
            "weight_bytes": 0, "kv_bytes": 0,
        }  # fmt: skip
        assert why(ask(http)) == ("ngram", "default")
        loaded = load(http, "app-3", f"dflash:{folder}")
        assert loaded.status_code == 201
        shown = loaded.json()
        assert (shown["name"], shown["state"]) == ("app-3", "live")
        assert shown["spec"] == f"dflash:{folder}" and shown["version"]
        assert shown["weight_bytes"] > 0 and shown["kv_bytes"] > 0
        assert why(ask(http)) == ("ngram", "default"), "nothing is routed to it yet"
        assert why(ask(http, speculative={"drafter": "app-3"})) == ("app-3", "named")
        routed = route(http, "app-3")
        assert routed.status_code == 200 and routed.json()["routes"]["default"] == "app-3"
        answer = ask(http, speculative={"policy": "fixed"})
        assert why(answer) == ("app-3", "default")
        assert answer["metrics"]["drafter_version"] == shown["version"]
        retired = http.delete(f"{PATH}/ngram")
        assert (retired.status_code, retired.json()["state"]) == (200, "retired")
        assert names(http) == {"app-3": "live"}
        plain = http.put(ROUTES, json={})
        assert plain.json()["routes"]["default"] is None
        assert why(ask(http)) == (None, None), "plain decoding"


def test_a_drafter_with_requests_waits_for_them() -> None:
    with served(drafter=("ngram", "suffix")) as (engine, server, http):
        # hot, so that no draft stands: hundreds of steps
        long = {**TEXT, "prompt": PROMPT, "max_tokens": 900, "temperature": 5, "n": 8}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**long, "stream": True}, trust_env=False) as stream:
            lines = stream.iter_lines()  # kept: the stream ends with it
            next(lines)
            assert route(http, "suffix").status_code == 200
            waiting = http.delete(f"{PATH}/ngram")
            assert waiting.status_code == 202
            assert (waiting.json()["state"], waiting.json()["requests"]) == ("retiring", 8)
            assert names(http) == {"ngram": "retiring", "suffix": "live"}
            assert why(ask(http)) == ("suffix", "default")
            refused = http.post("/v1/completions", json={**TEXT, "prompt": PROMPT,
                                "speculative": {"drafter": "ngram"}})  # fmt: skip
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "speculative.drafter"
        eventually(lambda: names(http) == {"suffix": "live"})
        assert engine.alive


def test_requests_follow_the_headers_of_their_cohort_and_session() -> None:
    with served(drafter=("a=ngram", "b=suffix")) as (_, _, http):
        half = {"match": {"app": "shop", "region": "eu"}, "shares": {"a": 0.5, "b": 0.5}}
        whole = {"match": {"app": "shop"}, "shares": {"b": 1}}
        assert route(http, "a", half, whole, salt="canary-7").status_code == 200
        shop = {"X-Paceline-App": "shop", "X-Paceline-Region": "eu"}
        assert why(ask(http)) == ("a", "default")
        assert why(ask(http, {**shop, "X-Paceline-Region": "us"})) == ("b", "route 1")
        got = {why(ask(http, {**shop, "X-Session-ID": f"s{place}"})) for place in range(24)}
        assert got == {("a", "route 0"), ("b", "route 0")}
        for said in ({"X-Session-ID": "s-1"}, {"user": "u-1"}, {"prompt_cache_key": "k-1"}):
            fields = {} if "X-Session-ID" in said else said
            headers = {**shop, **({} if fields else said)}
            assert len({why(ask(http, headers, **fields)) for _ in range(8)}) == 1
        stated = http.get(PATH).json()["routes"]
        assert stated["salt"] == "canary-7"
        assert stated["cohorts"][0]["match"] == {
            **dict.fromkeys(PARTS), "app": "shop", "region": "eu"
        }  # fmt: skip


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "new"}, "spec"),
        ({"spec": "suffix"}, "name"),
        ({"name": "a/b", "spec": "suffix"}, "name"),
        ({"name": "routes", "spec": "suffix"}, "name"),
        ({"name": "n" * 129, "spec": "suffix"}, "name"),
        ({"name": "new", "spec": 3}, "spec"),
        ({"name": "new", "spec": "nonsense"}, "spec"),
        ({"name": "new", "spec": "dflash:/no/such/folder"}, "spec"),
        ({"name": "new", "spec": "other=suffix"}, "spec"),
        ({"name": "new", "spec": "suffix", "sepc": "x"}, "sepc"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_its_field(
    admin: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = admin.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert names(admin) == {"ngram": "live"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"default": "gone"}, "default"),
        ({"cohorts": [{"shares": {"gone": 1}}]}, "cohorts[0].shares.gone"),
        ({"cohorts": [{"shares": {"ngram": 0.5}}]}, "cohorts[0].shares"),
        ({"cohorts": [{"shares": {"ngram": 1.5}}]}, "cohorts[0].shares.ngram"),
        ({"cohorts": [{"match": {"lang": "de"}, "shares": {"ngram": 1}}]}, "cohorts[0].match.lang"),
        ({"cohorts": [{}]}, "cohorts[0].shares"),
        ({"cohorts": 3}, "cohorts"),
        ({"defualt": "ngram"}, "defualt"),
    ],
)
def test_routes_that_mean_nothing_are_refused_and_change_nothing(
    admin: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = admin.put(ROUTES, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert admin.get(PATH).json()["routes"]["default"] == "ngram"


@pytest.fixture(scope="module")
def admin() -> Iterator[httpx.Client]:
    with served() as (_, _, http):
        yield http


def test_what_the_server_holds_refuses_with_409_and_404(
    admin: httpx.Client, tmp_path: Path
) -> None:
    large = write_drafter(tmp_path / "large", layers=40)
    for answer, status, code in [
        (load(admin, "ngram", "suffix"), 409, "drafter_in_use"),
        (admin.delete(f"{PATH}/ngram"), 409, "drafter_in_use"),
        (admin.delete(f"{PATH}/gone"), 404, "drafter_not_found"),
        (load(admin, "large", f"dflash:{large}"), 409, "no_room"),
    ]:
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert (
        "--spare-drafter-memory" in load(admin, "l", f"dflash:{large}").json()["error"]["message"]
    )


def test_a_second_drafter_like_the_first_fits_what_is_kept_by_default(tmp_path: Path) -> None:
    """The default keeps as much as the first one takes, whose layers may be int8."""
    spec = f"dflash:{write_drafter(tmp_path / 'd', layers=40)}"
    with served(drafter=f"first={spec}", spare_drafter_memory=None) as (engine, _, http):
        first = engine.engine.drafters["first"]
        assert load(http, "second", spec).status_code == 201
        assert engine.engine.drafters["second"].weight_bytes == first.weight_bytes
        assert load(http, "third", spec).json()["error"]["code"] == "no_room"


def test_a_load_that_dies_is_a_500_and_harms_nobody(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(DrafterBuilder, "_build", no_memory)
        answer = load(admin, "new", "suffix")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "load_failed")
    assert names(admin) == {"ngram": "live"} and why(ask(admin)) == ("ngram", "default")
    assert load(admin, "new", "suffix").status_code == 201
    assert admin.delete(f"{PATH}/new").status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"name": "\xff"}'])
def test_a_body_that_is_no_object_is_refused(admin: httpx.Client, body: bytes) -> None:
    for method, path in (("POST", PATH), ("PUT", ROUTES)):
        answer = admin.request(
            method, path, content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_json")


# -- what is told ----------------------------------------------------------------------------------


def samples(http: httpx.Client, name: str) -> dict[tuple[str, ...], float]:
    """The series of a metric, by the values of their labels without the model's name: each of them
    is there once."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == f"paceline:{name}":
                labels = tuple(sample.labels[label] for label in LABELS if label in sample.labels)
                assert labels not in found, f"{name} has {labels} twice"
                found[labels] = sample.value
    return found


def test_metrics_of_each_drafter_end_when_it_leaves() -> None:
    with served() as (_, _, http):
        assert load(http, "new", "suffix").status_code == 201
        assert load(http, "bad", "nonsense").status_code == 400
        half = {"shares": {"ngram": 0.5, "new": 0.5}}
        route(http, "ngram", half)
        told = [ask(http, max_tokens=30, speculative={"policy": "fixed"}) for _ in range(16)]
        ask(http, speculative={"drafter": "new"})
        requests = samples(http, "drafter_requests_total")
        assert sum(requests.values()) == 17 and requests["new", "1", "named"] == 1
        for name in ("ngram", "new"):
            routed = [each for each in told if why(each)[0] == name]
            assert requests[name, "1", "route 0"] == len(routed) > 0
            counts = [each["metrics"]["speculative_decoding"] for each in routed]
            accepted = sum(each["num_accepted_draft_tokens"] for each in counts)
            assert samples(http, "drafter_accepted_tokens_total")[name, "1"] >= accepted
            assert samples(http, "drafter_draft_rounds_total")[name, "1"] > 0
        assert samples(http, "drafters") == {("loading",): 0, ("live",): 2, ("retiring",): 0}
        assert samples(http, "drafter_bytes")["new", "1", "weights"] == 0
        assert samples(http, "drafter_loads_total") == {(): 1}
        assert samples(http, "drafter_load_failures_total") == {(): 1}
        assert samples(http, "drafter_load_seconds_total")[()] > 0
        route(http, "ngram")
        assert http.delete(f"{PATH}/new").status_code == 200
        for name in ("drafter_requests_total", "drafter_tokens_total", "drafter_bytes"):
            assert {labels[0] for labels in samples(http, name)} == {"ngram"}


def test_a_drafter_replaced_under_its_name_has_each_series_once(tmp_path: Path) -> None:
    folders = [write_drafter(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    with served() as (engine, _, http):
        versions = []
        for count, folder in enumerate(folders, 1):
            assert load(http, "tuned", f"dflash:{folder}").status_code == 201
            versions.append(engine.drafters["tuned"].version)
            for _ in range(count):
                ask(http, speculative={"drafter": "tuned"})
            route(http, "ngram")
            if count == 1:
                assert http.delete(f"{PATH}/tuned").status_code == 200
        assert len(set(versions)) == 2
        told = samples(http, "cohort_requests_total")
        assert [value for labels, value in told.items() if labels[0] == "tuned"] == [3]
        told = samples(http, "drafter_requests_total")
        assert {labels: value for labels, value in told.items() if labels[0] == "tuned"} == {
            ("tuned", versions[1], "named"): 2
        }
        groups = http.get("/ui/live").json()["groups"]
        (row,) = [each for each in groups if each["drafter"] == "tuned"]
        assert row["latency"]["streams"] == 3 and row["tokens"] == 12


def test_traces_say_what_a_request_got_and_why(tmp_path: Path) -> None:
    with served(settings={"traces": str(tmp_path)}, drafter=("a=ngram", "b=suffix")) as (
        _,
        _,
        http,
    ):
        route(http, "a", {"match": {"app": "shop"}, "shares": {"b": 1}})
        ask(http, {"X-Paceline-App": "shop"})
        ask(http)
        ask(http, speculative={"drafter": "b"})
        ask(http, speculative="off")
    rows = sorted((row.route, row.drafter or "", row.spec_off) for row in read_requests(tmp_path))
    assert rows == [
        ("default", "", True),
        ("default", "a", False),
        ("named", "b", False),
        ("route 0", "b", False),
    ]


def test_the_page_and_the_log_show_what_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with served() as (_, _, http):
        load(http, "new", "suffix")
        facts = http.get("/ui/serving").json()
        assert [each["name"] for each in facts["drafters"]] == ["ngram", "new"]
        route(http, "new")
        http.delete(f"{PATH}/ngram")
        assert http.get("/ui/serving").json()["default_drafter"] == "new"
    assert "drafter new is loaded after" in caplog.text and "ngram has left" in caplog.text
    assert ADMIN not in caplog.text
