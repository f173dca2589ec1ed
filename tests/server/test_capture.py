"""What a server captures: every answer's rounds; token ids with consent alone; never text."""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow.parquet as parquet
import pytest

from paceline.dataset.traces import writer as writer_module
from paceline.dataset.traces.reader import (
    read_requests,
    read_rounds,
    read_tokens,
    request_tables,
)
from paceline.engine.async_engine import AsyncEngine
from paceline.server.run import Server

from .conftest import eventually, listening
from .fake import FakeAsyncEngine
from .test_real_engine import PROMPT, TEXT, tiny_engine

ONE, TWO, THREE = "sk-first", "sk-second", "sk-third"
KEYS = (f"open {ONE} tokens=shared", f"mine {TWO} tokens=own", f"quiet {THREE}")
SECRET_TEXT = "The password of the archive is Fahrradkette."
LONG = {**TEXT, "prompt": PROMPT, "temperature": 0}
ENDS_BY_ITSELF = {"ignore_eos": False}  # a grammar decides when


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PAUSE", 0.001)


@contextmanager
def serving(engine: Any, folder: Path, **settings: Any) -> Iterator[Server]:
    with listening(engine, traces=str(folder), **settings) as running:
        yield running


def ask(server: Server, path: str = "/v1/completions", key: str = "", **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= body.pop("headers", {})
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        answer = http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json() if not body.get("stream") else answer.text


def on_disk(folder: Path) -> tuple[bytes, str]:
    """Return all bytes of a folder, and all values in its Parquet files as JSON."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    values = [
        parquet.read_table(path, partitioning=None).to_pylist()
        for path in files
        if path.suffix == ".parquet"
    ]
    names = "\n".join(str(path.relative_to(folder)) for path in files)
    return b"".join(path.read_bytes() for path in files), names + json.dumps(values)


def as_bytes(ids: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def test_an_answer_leaves_its_counts_and_rounds(tmp_path: Path) -> None:
    headers = {"X-Paceline-App": "shop", "X-Paceline-Region": "eu", "X-Session-ID": "s-1"}
    with serving(tiny_engine(), tmp_path, api_keys=KEYS) as server:
        speculative = {"drafter": "ngram", "policy": "fixed"}
        body = {**LONG, "speculative": speculative, "n": 2, "headers": headers}
        told = ask(server, key=ONE, **body)
        plain = ask(server, key=TWO, **{**LONG, "speculative": "off", "max_tokens": 5})
    rows = {row.id: row for row in read_requests(tmp_path)}
    assert set(rows) == {f"{told['id']}-0#0", f"{told['id']}-0#1", f"{plain['id']}-0#0"}
    drafted = [row for row in rows.values() if row.app == "shop"]
    counts = told["metrics"]["speculative_decoding"]
    assert sum(row.draft_rounds for row in drafted) == counts["num_spec_steps"] > 0
    assert sum(row.drafted for row in drafted) == counts["num_draft_tokens"]
    assert sum(row.accepted for row in drafted) == counts["num_accepted_draft_tokens"]
    one = drafted[0]
    assert (one.cohort.label, one.key) == ("tiny|shop|und|eu", "open")
    assert (one.drafter, one.version, one.route, one.rule) == ("ngram", "1", "named", "match")
    assert (one.prompt_tokens, one.output_tokens, one.finish) == (len(PROMPT), 40, "length")
    assert not one.spec_off and one.engine == "paceline" and abs(time.time() - one.time) < 60
    assert one.ttft and one.tpot and one.total and one.total > one.ttft > 0
    assert one.drafted_by_position[0] == one.draft_rounds
    assert sum(one.accepted_by_position) == one.accepted
    assert {row.session for row in drafted} == {one.session} and "s-1" not in one.session
    bare = rows[f"{plain['id']}-0#0"]
    assert bare.spec_off and bare.drafter is None and (bare.rounds, bare.draft_rounds) == (5, 0)
    assert (bare.app, bare.key) == ("mine", "mine") and bare.session != one.session
    rounds = [round for round in read_rounds(tmp_path) if round.request == one.id]
    assert len(rounds) == one.rounds and sum(r.accepted for r in rounds) == one.accepted
    committed = sum(r.accepted + r.bonus + r.forced for r in rounds)
    assert [r.position for r in rounds] == sorted(r.position for r in rounds) and committed == 40
    assert rounds[0].cut_by == "prompt" and rounds[0].step_seconds and rounds[0].step_rows


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_endpoint_is_captured(tmp_path: Path, path: str, stream: bool) -> None:
    said = [{"role": "user", "content": "Hi"}]
    body: dict[str, Any] = {"model": "fake-model", "max_tokens": 6, "messages": said}
    if path == "/v1/responses":
        body = {"model": "fake-model", "max_output_tokens": 6, "input": "Hi"}
    with serving(FakeAsyncEngine(), tmp_path) as server:
        ask(server, path, **body, stream=stream)
    (row,) = read_requests(tmp_path)
    assert row.output_tokens == 6 and row.draft_rounds == 2 and row.finish == "length"


def test_without_consent_no_token_id_and_no_text_reaches_the_disk(tmp_path: Path) -> None:
    system = {"role": "system", "content": SECRET_TEXT}
    user = {"role": "user", "content": "Where is the Kettenschloss?"}
    with serving(tiny_engine(), tmp_path, api_keys=KEYS) as server:
        chat = {"model": "tiny", "messages": [system, user], "max_tokens": 20, "seed": 3}
        asked = [
            ask(server, "/v1/chat/completions", key=key, **chat, return_token_ids=True)
            for key in (ONE, TWO, THREE)
        ]
        ask(server, key=ONE, **LONG, user="anna@example.org")
        bound = {**LONG, **ENDS_BY_ITSELF, "structured_outputs": {"regex": "[ab]{3}-xyz"}}
        ask(server, key=ONE, **bound)
    rows = list(read_requests(tmp_path))
    assert len(rows) == 5 and max(row.forced for row in rows) > 2
    raw, values = on_disk(tmp_path)
    for row in json.loads(values[values.index("[[") :]):
        for record in row:
            assert record.get("prompt_ids") is None and record.get("output_ids") is None
            assert record.get("forced_places") is None
    said = asked[0]["choices"][0]["message"]["content"]
    for text in (SECRET_TEXT, "Fahrradkette", "Kettenschloss", "anna@example.org", said[:12]):
        assert text.encode() not in raw and text not in values
    for answer in asked:
        ids = answer["choices"][0]["token_ids"]
        assert json.dumps(ids[:4])[1:-1] not in values and as_bytes(ids[:4]) not in raw
    assert "sk-" not in values and b"sk-" not in raw


@pytest.fixture(scope="module")
def consenting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("traces")
    with serving(tiny_engine(), folder, api_keys=KEYS, traces_tokens=True) as server:
        body = {**LONG, "return_token_ids": True, "temperature": 1}
        told = {
            key: ask(server, key=key, **{**body, "seed": place})
            for place, key in enumerate((ONE, TWO, THREE))
        }
    return folder, told


def test_token_ids_are_kept_of_the_keys_that_consent(
    consenting: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = consenting
    output = {key: tuple(answer["choices"][0]["token_ids"]) for key, answer in told.items()}
    assert {each.output_ids for each in read_tokens(folder)} == {output[ONE]}
    mine = {each.key: each for each in read_tokens(folder, for_key="mine")}
    assert {name: each.output_ids for name, each in mine.items()} == {
        "open": output[ONE],
        "mine": output[TWO],
    }
    assert mine["mine"].prompt_ids == tuple(PROMPT)
    raw, values = on_disk(folder)
    quiet = list(output[THREE])
    assert len(list(read_requests(folder))) == 3
    assert json.dumps(quiet) not in values and as_bytes(quiet[:4]) not in raw
    assert json.dumps(list(output[TWO])) in values, "the search finds what is there"


def test_one_keys_token_ids_are_for_no_other_key(consenting: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = consenting
    for other in ("open", "quiet", "", None):
        assert "mine" not in {each.key for each in read_tokens(folder, for_key=other)}


def test_token_ids_expire_in_time(tmp_path: Path) -> None:
    with serving(tiny_engine(), tmp_path, traces_tokens=True, traces_ttl=2.0) as server:
        ask(server, **LONG)
    (table,) = (parquet.read_table(p, partitioning=None) for p in tmp_path.glob("requests/*/*/*"))
    (row,) = table.to_pylist()
    assert row["expires"] == pytest.approx(row["time"] + 2 * 86_400)
    assert row["prompt_ids"] == PROMPT and len(row["output_ids"]) == row["output_tokens"] == 40


def test_where_a_grammar_forced_tokens_is_kept_beside_them(tmp_path: Path) -> None:
    bound = {**LONG, **ENDS_BY_ITSELF, "structured_outputs": {"regex": "[ab]{3}-[cd]{2}-xyz"}}
    with serving(tiny_engine(), tmp_path, traces_tokens=True) as server:
        told = ask(server, **bound, speculative={"drafter": "ngram", "policy": "fixed"})
        ask(server, **{**LONG, "max_tokens": 4})
    bound_trace, free = sorted(read_tokens(tmp_path), key=lambda each: -len(each.forced_places))
    assert re.fullmatch("[ab]{3}-[cd]{2}-xyz", told["choices"][0]["text"])
    # a token is a character here; the last one is the end of the text
    assert bound_trace.forced_places == (3, 6, 7, 8, 9, 10)
    assert len(bound_trace.output_ids) == 11 and free.forced_places == ()
    rows = {row.id: row for row in read_requests(tmp_path)}
    assert rows[bound_trace.id].forced == 6 and rows[free.id].forced == 0


def test_places_are_left_out_where_the_rule_does_not_tell_them(tmp_path: Path) -> None:
    """A draft that was sampled keeps what was drafted in the place of a forced token."""
    bound = {**LONG, **ENDS_BY_ITSELF, "structured_outputs": {"regex": "[ab]{3}-xyz"}}
    with serving(tiny_engine(rule="token"), tmp_path, traces_tokens=True) as server:
        ask(server, **bound)
        ask(server, **{**LONG, "max_tokens": 4})
    (table,) = request_tables(tmp_path, columns=["output_ids", "grammar", "forced_places"])
    rows = {row["grammar"]: row for row in table.to_pylist()}
    assert rows[True]["output_ids"] and rows[True]["forced_places"] is None
    assert rows[False]["forced_places"] == []


def test_places_are_left_out_where_a_hook_changes_the_tokens(tmp_path: Path, hooks: str) -> None:
    folder = tmp_path / "traces"
    settings = {"traces_tokens": True, "traces_redact": f"{hooks}:halve"}
    with serving(tiny_engine(), folder, **settings) as server:
        bound = {**LONG, **ENDS_BY_ITSELF, "structured_outputs": {"regex": "[ab]{3}-xyz"}}
        ask(server, **bound)
    (table,) = request_tables(folder, columns=["output_ids", "forced_places", "forced"])
    (row,) = table.to_pylist()
    assert len(row["output_ids"]) == 2 and row["forced"] > 2 and row["forced_places"] is None


def test_a_sample_is_of_whole_requests(tmp_path: Path) -> None:
    settings = {"traces_tokens": True, "traces_sample": 0.5}
    with serving(FakeAsyncEngine(), tmp_path, **settings) as server:
        for _ in range(40):
            ask(server, prompt="Hi", max_tokens=2)
    kept = [each.id for each in read_tokens(tmp_path)]
    assert len(list(read_requests(tmp_path))) == 40 and 5 < len(kept) < 35


HOOK = """
def halve(prompt_ids, output_ids):
    return [0] * len(prompt_ids), output_ids[:2]
def refuse(prompt_ids, output_ids):
    return None
def fail(prompt_ids, output_ids):
    raise RuntimeError("no")
def wrong(prompt_ids, output_ids):
    return "text", "text"
number = 3
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "paceline_test_hooks.py").write_text(HOOK)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "paceline_test_hooks"
    sys.modules.pop("paceline_test_hooks", None)


@pytest.mark.parametrize("name", ["halve", "refuse", "fail", "wrong"])
def test_the_hook_decides_what_is_kept(
    tmp_path: Path, hooks: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "traces"
    settings = {"traces_tokens": True, "traces_redact": f"{hooks}:{name}"}
    with serving(FakeAsyncEngine(), folder, **settings) as server:
        for _ in range(2):
            ask(server, prompt="Hi there", max_tokens=6)
    kept = list(read_tokens(folder))
    assert [row.output_tokens for row in read_requests(folder)] == [6, 6]
    if name == "halve":
        assert all(set(each.prompt_ids) == {0} and len(each.output_ids) == 2 for each in kept)
        assert len(kept) == 2
    else:
        assert kept == []
        said = caplog.text.count("token ids are left out wherever it does")
        assert said == (0 if name == "refuse" else 1)


def test_a_client_that_hangs_up_leaves_a_record(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(step=0.01)
    with serving(engine, tmp_path) as server:
        body = {"prompt": "Hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with (
            httpx.Client(base_url=server.url, trust_env=False) as http,
            http.stream("POST", "/v1/completions", json=body) as answer,
        ):
            next(answer.iter_lines())
        eventually(lambda: engine.aborted)
    (row,) = read_requests(tmp_path)
    assert row.finish == "abort" and 0 < row.output_tokens < 400 and row.rounds > 0


def test_a_failed_answer_leaves_a_record(tmp_path: Path) -> None:
    with serving(FakeAsyncEngine(fail=True), tmp_path) as server:
        url = f"{server.url}/v1/completions"
        answer = httpx.post(url, json={"prompt": "Hi"}, trust_env=False)
        assert answer.status_code == 500
    (row,) = read_requests(tmp_path)
    assert (row.finish, row.output_tokens, row.rounds) == ("error", 0, 0)


class Disk(NamedTuple):
    total: int
    used: int
    free: int


def metric(server: Server, name: str) -> float:
    text = httpx.get(server.url + "/metrics", trust_env=False).text
    line = next(line for line in text.splitlines() if line.startswith(f"{name}{{"))
    return float(line.rsplit(" ", 1)[1])


def test_a_full_disk_stops_the_capture_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.01)
    with serving(FakeAsyncEngine(), tmp_path) as server:
        assert metric(server, "paceline:traces_capturing") == 1
        with monkeypatch.context() as full:
            full.setattr(shutil, "disk_usage", lambda _: Disk(10, 10, 0))
            ask(server, prompt="Hi", max_tokens=2)
            eventually(lambda: metric(server, "paceline:traces_capturing") == 0)
            for _ in range(20):
                assert ask(server, prompt="Hi", max_tokens=2)["usage"]["completion_tokens"] == 2
            assert metric(server, "paceline:traces_dropped_total") >= 20
        eventually(lambda: metric(server, "paceline:traces_capturing") == 1)
        before = metric(server, "paceline:traces_written_total")
        ask(server, prompt="Hi", max_tokens=3)
        eventually(lambda: metric(server, "paceline:traces_written_total") > before)
    assert any(row.output_tokens == 3 for row in read_requests(tmp_path))
    assert caplog.text.count("nothing is captured") == 1


def test_texts_are_the_same_with_the_capture_on(tmp_path: Path) -> None:
    def texts(engine: AsyncEngine, **settings: Any) -> list[str]:
        with listening(engine, **settings) as server:
            return [
                ask(server, **{**LONG, "seed": seed, "temperature": 1})["choices"][0]["text"]
                for seed in range(3)
            ]

    captured = texts(tiny_engine(), traces=str(tmp_path), traces_tokens=True)
    assert captured == texts(tiny_engine())
