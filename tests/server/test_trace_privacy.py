"""What reaches the disk while a server captures: searched in all bytes that it writes."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from paceline.dataset.traces import writer as writer_module
from paceline.dataset.traces.reader import read_requests, read_tokens

from .conftest import eventually, listening
from .test_real_engine import tiny_engine
from .written import WINDOW, WrittenBytes, forms_of, found_ids, found_text, written

OPEN, MINE, QUIET = (f"sk-{place}-4f1c9b7e2d60" for place in ("first", "second", "third"))
KEYS = (f"open {OPEN} tokens=shared", f"mine {MINE} tokens=own", f"quiet {QUIET}")
SECRETS = ("Fahrradkette-7", "the locker is behind the stove", "anna@example.org", "s-4711-b")
APP = "kettenblatt"  # names of apps are written: the search must find it


class Said(NamedTuple):
    """What went over the wire with a key: token ids, of prompt and answer, and texts."""

    ids: list[list[int]]
    texts: list[str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PAUSE", 0.001)


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Write the whole log of Paceline into a file, as a service would."""
    handler, log = logging.FileHandler(path), logging.getLogger("paceline")
    before, log.level = log.level, logging.DEBUG
    log.addHandler(handler)
    try:
        yield
    finally:
        log.level = before
        log.removeHandler(handler)
        handler.close()


def talk(url: str, key: str, seed: int) -> Said:
    """Ask in many ways, with secrets wherever a client may write text."""
    rng, said = random.Random(seed), Said([], list(SECRETS))
    prompt = [rng.randrange(4, 250) for _ in range(24)]
    headers = {"Authorization": f"Bearer {key}", "X-Paceline-App": APP, "X-Session-ID": SECRETS[3]}
    sampling = {"temperature": 1, "seed": seed, "ignore_eos": True, "return_token_ids": True}
    names = {"user": SECRETS[2], "cache_salt": SECRETS[0], "metadata": {"note": SECRETS[1]}}
    system = {"role": "system", "content": f"You keep {SECRETS[0]}."}
    asked = {"role": "user", "content": f"Where is it? {SECRETS[1]}"}
    chat = {"messages": [system, asked], "max_tokens": 24, **sampling, **names}
    with httpx.Client(base_url=url, trust_env=False, timeout=60, headers=headers) as http:
        plain = {"prompt": prompt, "max_tokens": 40, **sampling, "logprobs": 2, "explain": True}
        for body in (plain, {**plain, "n": 2, **names}):
            for choice in http.post("/v1/completions", json=body).json()["choices"]:
                said.ids.append([*prompt, *choice["token_ids"]])
                said.texts.append(choice["text"][:16])
        (choice,) = http.post("/v1/chat/completions", json=chat).json()["choices"]
        said.ids.append(choice["token_ids"])
        said.texts.append(choice["message"]["content"][:16])
        streamed = http.post("/v1/chat/completions", json={**chat, "stream": True}).text
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line[6:7] == "{"]
        choices = [choice for event in events for choice in event["choices"]]
        said.ids.append([token for each in choices for token in each.get("token_ids") or ()])
        http.post("/v1/responses", json={"input": SECRETS[1], "max_output_tokens": 8})
        http.post("/v1/messages", json={"messages": [asked], "max_tokens": 8, "model": "tiny"})
        schema = {"type": "string", "const": SECRETS[1]}
        http.post("/v1/completions", json={**plain, "structured_outputs": {"json": schema}})
        refused = http.post("/v1/completions", json={**plain, "stop": [SECRETS[1]], "top_p": 7})
        assert refused.status_code == 400
        assert http.post("/v1/completions", json={"prompt": SECRETS[1], "nope": 1}).is_error
    return said


def captured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[WrittenBytes, dict[str, Said]]:
    """Serve with traces and return what was written, and what was said with each key."""
    monkeypatch.setenv("PACELINE_CACHE", str(folder / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    engine = tiny_engine(drafter=("ngram", "suffix"))
    options = {"traces": str(folder / "traces"), "api_keys": KEYS, **settings}
    keys = enumerate((OPEN, MINE, QUIET))
    with (
        written() as everything,
        log_file(folder / "server.log"),
        listening(engine, **options) as server,
    ):
        said = {key: talk(server.url, key, seed) for seed, key in keys}
    for path in folder.rglob("*"):  # what other languages than Python wrote
        if path.is_file():
            everything.content.append(path.read_bytes())
    return everything, said


def test_without_consent_no_token_id_and_no_text_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, said = captured(tmp_path, monkeypatch)
    searched = everything.searched
    assert len(list(read_requests(tmp_path / "traces"))) > 20
    assert found_text(searched, APP), "the search finds what is there"
    assert any("traces" in path for path in everything.paths)
    for key, each in said.items():
        for ids in each.ids:
            assert len(ids) > WINDOW and found_ids(searched, ids) == set(), key
        for text in each.texts:
            assert len(text) > 7 and found_text(searched, text) == set(), text
        assert found_text(searched, key) == set()


def test_with_consent_the_search_finds_the_token_ids_of_those_who_consent_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, said = captured(tmp_path, monkeypatch, traces_tokens=True)
    searched = everything.searched
    for key in (OPEN, MINE):
        for ids in said[key].ids:
            assert {"4 bytes, little", "decimals, ', '"} <= found_ids(searched, ids), key
    for ids in said[QUIET].ids:
        assert found_ids(searched, ids) == set()
    for each in said.values():
        for text in each.texts:
            assert found_text(searched, text) == set(), text


@pytest.mark.parametrize("form", list(forms_of([40, 41, 42, 43, 44, 45])))
def test_the_search_knows_every_form(form: str) -> None:
    ids = [200, 31, 7, 99, 180, 12, 65, 33]
    hidden = b"...." + forms_of(ids)[form] + b"...."
    assert form in found_ids(hidden, ids)
    assert found_ids(hidden, [201, *ids[1:3], 98, 181, 13, 64, 32]) == set()


def test_the_watch_sees_what_was_renamed_and_deleted(tmp_path: Path) -> None:
    with written() as everything:
        (tmp_path / "a").write_bytes(b"first")
        (tmp_path / "a").write_bytes(b"second")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").unlink()
        (tmp_path / "c").write_bytes(b"third")
    assert {b"first", b"second", b"third"} <= set(everything.content)


def test_one_keys_answers_are_read_for_no_other_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = captured(tmp_path, monkeypatch, traces_tokens=True)
    folder = tmp_path / "traces"
    secret = [tuple(ids[24:]) for ids in said[MINE].ids[:3]]

    def read(for_key: str | None) -> list[tuple[int, ...]]:
        return [trace.output_ids for trace in read_tokens(folder, for_key=for_key)]

    assert set(secret) <= set(read("mine")), "its own drafters may learn from them"
    for other in ("open", "quiet", "admin", "", "*", "Mine", "mine ", None):
        assert not set(secret) & set(read(other))
        assert {trace.key for trace in read_tokens(folder, for_key=other)} == {"open"}


def test_token_ids_are_deleted_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time to live of some seconds: the ids are there, then they are gone, and the rows stay."""
    seconds = 2.0
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.01)
    settings = {"traces": str(tmp_path), "traces_tokens": True, "traces_ttl": seconds / 86_400}

    def on_disk() -> bytes:
        watched = WrittenBytes()
        for path in tmp_path.rglob("*.parquet"):
            try:
                watched.content.append(path.read_bytes())
            except FileNotFoundError:
                continue  # it has just been written anew
        return watched.searched

    with listening(tiny_engine(), **settings) as server:
        prompt = [random.Random(5).randrange(4, 250) for _ in range(24)]
        body = {"prompt": prompt, "max_tokens": 30, "return_token_ids": True, "ignore_eos": True}
        asked = time.time()
        answer = httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False).json()
        ids = [*prompt, *answer["choices"][0]["token_ids"]]
        eventually(lambda: found_ids(on_disk(), ids), seconds=seconds)
        eventually(lambda: not found_ids(on_disk(), ids))
        assert time.time() >= asked + seconds, "not before their time"
    (row,) = read_requests(tmp_path)
    assert row.output_tokens == 30 and row.expires is None
