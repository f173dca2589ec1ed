"""Traces of what is answered behind Envoy: whole, without text, ids with consent alone, and never
in the way of an answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.autospec.canary import CanaryRequests
from paceline.autospec.loop.observe import CanaryArms, TraceFolder
from paceline.autospec.store import ALL
from paceline.autospec.sums import N, ratio_of
from paceline.core import InvalidRequest
from paceline.dataset.traces.reader import read_requests, read_rounds, read_tokens
from paceline.dataset.traces.records import RequestTrace, RoundTrace
from paceline.endpoint.description import EndpointTraces
from paceline.endpoint.envoy.taps import SOCKET
from paceline.endpoint.taps import TappedAnswer, TapServer, TapTraces, tap_handler
from paceline.engine.routes import Routes
from tests.endpoint.fake_worker import events, whole
from tests.endpoint.fleet import Asker, Worker, comes_true, described, needs_envoy, opened, workers

WORDS = [f"tide-{place} " for place in range(6)]
IDS = (100, 101, 102, 103, 104, 105)
BURSTS = ((100,), (101, 102, 103), (104, 105))  # of the prompt's step and of two rounds
START = int(time.time()) * 10**6  # microseconds
ASKED = {"model": "m", "messages": [{"role": "user", "content": "tide"}], "temperature": 0.5}
HEADERS = {
    "x-id": "r1", "x-app": "shop", "x-region": "eu", "x-session": "s", "x-tokens": "yes",
    "x-drafter": "a", "x-route": "route 0", "x-status": "200",
    "x-start": str(START), "x-first": str(START + 250_000), "x-end": str(START + 1_500_000),
}  # fmt: skip


def streamed(body: dict[str, Any]) -> bytes:
    """Return a stream with an event for each round."""
    singles = events(WORDS, body, "w")
    told = [json.dumps(singles[0] | {"choices": [{"token_ids": burst}]}) for burst in BURSTS]
    told += [json.dumps(event) for event in singles[-1:]]
    return "".join(f"data: {text}\n\n" for text in [*told, "[DONE]"]).encode()


def traced(folder: Path, answer: bytes, asked: dict[str, Any] | None = None, **more: str) -> None:
    """Write the trace of one answer."""
    settings = EndpointTraces(folder=str(folder), tokens=["shop"], redact=more.pop("redact", None))
    traces = TapTraces(settings)
    request = b"" if asked is None else json.dumps(asked).encode()
    sizes = {"x-request-bytes": str(len(request)), "x-size": str(len(answer))}
    traces.take(TappedAnswer.of({**HEADERS, **sizes, **more}, request + answer))
    traces.close()


def the_row(folder: Path) -> RequestTrace:
    (row,) = read_requests(folder)
    return row


def ids(folder: Path) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(trace.prompt_ids, trace.output_ids) for trace in read_tokens(folder)]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_becomes_a_row_with_its_rounds(tmp_path: Path, stream: bool) -> None:
    body = {"return_token_ids": True}
    answer = streamed(body) if stream else json.dumps(whole(WORDS, body, "w")).encode()
    traced(tmp_path, answer, ASKED)
    row = the_row(tmp_path)
    assert (row.cohort.label, row.engine) == ("m|shop|none|eu", "vllm")
    assert (row.drafter, row.route, row.temperature) == ("a", "route 0", 0.5)
    assert (row.prompt_tokens, row.output_tokens, row.cached_tokens) == (3, 6, 0)
    assert (row.draft_rounds, row.drafted, row.accepted, row.rounds) == (2, 6, 3, 3)
    assert row.acceptance_length == 2.5
    times = (0.25, 1.5, 0.25) if stream else (None, 1.5, 0.25)  # 6 tokens, 1.25 s after the first
    assert (row.ttft, row.total, row.tpot) == times
    assert [tuple(each)[1:4] for each in read_rounds(tmp_path)] == [(1, 3, 2), (4, 3, 1)]
    assert ids(tmp_path) == [((1, 2, 3), IDS)]
    assert row.session != "s"


def test_a_copy_whose_sender_has_left_is_taken_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Envoy waits for a while only, and a busy controller reads later."""
    answer, (here, there) = streamed({"return_token_ids": True}), socket.socketpair()
    sizes = {"x-request-bytes": "0", "x-size": str(len(answer)), "content-length": str(len(answer))}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, **sizes}.items())
    there.sendall(f"POST / HTTP/1.1\r\n{head}\r\n".encode() + answer)
    there.close()
    traces = TapTraces(EndpointTraces(folder=str(tmp_path), tokens=["shop"], redact=None))
    with here:
        tap_handler(traces)(here, ("unix", 0), None)  # type: ignore[arg-type]
    traces.close()
    assert the_row(tmp_path).output_tokens == 6
    assert capsys.readouterr().err == ""


HOOKED = {"redact": f"{__name__}:nothing"}, {"redact": f"{__name__}:broken"}


@pytest.mark.parametrize("more", [{"x-tokens": "no"}, {"x-app": "other"}, {"x-app": ""}, *HOOKED])
def test_without_consent_no_token_id_is_kept(tmp_path: Path, more: dict[str, str]) -> None:
    traced(tmp_path, streamed({"return_token_ids": True}), ASKED, **more)
    assert the_row(tmp_path).output_tokens == 6 and the_row(tmp_path).accepted == 3
    assert ids(tmp_path) == []


def nothing(prompt: list[int], output: list[int]) -> None:
    """A hook that lets nothing be kept."""


def broken(prompt: list[int], output: list[int]) -> None:
    raise RuntimeError("broken")


def shortened(prompt: list[int], output: list[int]) -> tuple[list[int], list[int]]:
    return prompt[1:], output[1:]


def test_a_hook_says_which_ids_are_kept(tmp_path: Path) -> None:
    traced(tmp_path, streamed({"return_token_ids": True}), ASKED, redact=f"{__name__}:shortened")
    assert ids(tmp_path) == [((2, 3), IDS[1:])]
    assert the_row(tmp_path).output_tokens == 6
    with pytest.raises(InvalidRequest, match=r"traces\.redact: got 'nowhere:hook'"):
        TapTraces(EndpointTraces(folder=str(tmp_path), redact="nowhere:hook"))


def test_of_a_long_answer_the_counts_are_kept(tmp_path: Path) -> None:
    end = streamed({"return_token_ids": True})[-500:]
    traced(tmp_path, end, None, **{"x-size": "2000000"})
    row = the_row(tmp_path)
    assert (row.output_tokens, row.accepted, row.model) == (6, 3, "none")
    assert ids(tmp_path) == []


def test_a_stream_without_usage_has_no_counts(tmp_path: Path) -> None:
    """Its tokens are known, but not in how many rounds they came."""
    stream = b"\n\n".join(streamed({"return_token_ids": True}).split(b"\n\n")[:3]) + b"\n\n"
    traced(tmp_path, stream, ASKED)
    row = the_row(tmp_path)
    assert (row.output_tokens, row.rounds, row.accepted, row.tpot) == (0, 0, 0, None)
    assert row.ttft == 0.25 and ids(tmp_path) == [((1, 2, 3), IDS)]
    assert the_arms(tmp_path).sums(CANARY)["tokens_per_round"][N] == 0


CANARY = np.array([True])


def the_arms(folder: Path) -> CanaryRequests:
    """Return the requests that a canary of the drafter `a` has."""
    ended = START / 10**6
    return TraceFolder(folder).arms(CanaryArms(ALL, "a", "base"), ended, ended + 10)


BROKEN = b'data: {"error": {"message": "the engine has ended", "code": 500}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(("status", "answer"), [("500", b""), ("200", BROKEN)])
def test_a_failed_answer_counts_in_a_canary(tmp_path: Path, status: str, answer: bytes) -> None:
    traced(tmp_path, answer, ASKED, **{"x-status": status})
    row = the_row(tmp_path)
    assert (row.finish, row.drafter, row.cohort.label) == ("error", "a", "m|shop|none|eu")
    assert (row.output_tokens, row.rounds, row.total) == (0, 0, 1.5)
    sums = the_arms(tmp_path).sums(CANARY)
    assert ratio_of(sums["errors"]) == 1.0 and sums["ttft"][N] == 0


def test_what_is_no_answer_leaves_no_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        traced(tmp_path, b"[1, 2]", {"prompt": "x"}, **{"x-start": "never"})
    assert not list(tmp_path.rglob("*.parquet"))


@contextmanager
def tapped(folder: Path, worker: Worker, **fields: Any) -> Iterator[tuple[Asker, Path]]:
    """Envoy before a worker, with taps; gives who asks, and the folder that Envoy runs in."""
    traces = EndpointTraces(folder=str(folder / "traces"), tokens=["shop"], **fields)
    description = described([worker], Routes(default="a"), traces=traces)
    with opened(folder, description) as gateway:
        yield Asker(description.listen), gateway.files.folder


@needs_envoy
def test_answers_behind_envoy_are_traced_and_stay_as_they_are(tmp_path: Path) -> None:
    with workers("a") as (worker,), tapped(tmp_path, worker) as (asker, envoy):
        settings = EndpointTraces(folder=str(tmp_path / "traces"), tokens=["shop"])
        server = TapServer(envoy / SOCKET, TapTraces(settings))
        with asker.stream(tokens=5, delay=0.4, **{"X-Paceline-App": "shop"}) as told:
            next(told)
            assert worker.counts()["running"] == 1  # it came while the rest is not written yet
            assert len(list(told)) == 5
        with asker.stream(tokens=5, delay=0, **{"X-Paceline-App": "other"}) as told:
            plain = list(told)
        assert [event for event in plain if event["choices"]] == events(
            [f"tide-{place} " for place in range(5)], {}, str(worker.port)
        )[:-1]  # without ids, for an app that keeps none
        assert asker.response(max_tokens=7).status_code == 200
        with asker.stream(tokens=900, delay=0.01) as told:
            next(told)  # a client that leaves
        assert comes_true(lambda: worker.counts()["running"] == 0)
        server.close()
        rows = {row.app: row for row in read_requests(tmp_path / "traces")}
        assert {app: row.output_tokens for app, row in rows.items()} == {
            "shop": 5, "other": 5, "none": 7,
        }  # fmt: skip
        assert all((row.accepted, row.drafter) == (3, "a") for row in rows.values())
        assert ids(tmp_path / "traces") == [((1, 2, 3), (100, 101, 102, 103, 104))]
        ttft, total = rows["shop"].ttft, rows["shop"].total
        assert ttft is not None and total is not None and 0 < ttft < total
        assert has_no_text(tmp_path)


def has_no_text(folder: Path) -> bool:
    """Return whether the text of prompt and answers is in no file, and in no column of a row."""
    shown = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    rows: list[RequestTrace | RoundTrace] = [*read_requests(folder / "traces")]
    return not any(b"tide" in data for data in [*shown, *(str(row).encode() for row in rows)])


@needs_envoy
def test_failures_behind_envoy_are_traced_with_the_drafter_that_failed(tmp_path: Path) -> None:
    with workers("a") as (worker,), tapped(tmp_path, worker) as (asker, envoy):
        settings = EndpointTraces(folder=str(tmp_path / "traces"), tokens=["shop"])
        server = TapServer(envoy / SOCKET, TapTraces(settings))
        for status in (500, 400):  # the second is the client's fault
            assert asker.response(status=status).status_code == status
        worker.kill()
        assert asker.response().status_code == 503
        server.close()
        rows = list(read_requests(tmp_path / "traces"))
        assert [(row.model, row.drafter, row.finish) for row in rows] == [("m", "a", "error")] * 2
        assert has_no_text(tmp_path)


@needs_envoy
def test_nobody_waits_for_a_controller_that_is_gone_or_hangs(tmp_path: Path) -> None:
    with workers("a") as (worker,), tapped(tmp_path, worker) as (asker, envoy):
        assert [asker.response().status_code for _ in range(20)] == [200] * 20  # nobody listens
        with socket.socket(socket.AF_UNIX) as hanging:
            hanging.bind(str(envoy / SOCKET))
            hanging.listen(1)
            assert [asker.response().status_code for _ in range(200)] == [200] * 200


@needs_envoy
def test_a_large_request_goes_through_untouched(tmp_path: Path) -> None:
    with workers("a") as (worker,), tapped(tmp_path, worker) as (asker, envoy):
        settings = EndpointTraces(folder=str(tmp_path / "traces"), tokens=["shop"])
        server = TapServer(envoy / SOCKET, TapTraces(settings))
        for size in (200_000, 8_000_000):
            padded = asker.response(padding="x" * size, max_tokens=2)
            assert padded.status_code == 200
            assert padded.json()["choices"][0]["message"]["content"] == "tide-0 tide-1 "
        server.close()
        assert sorted(row.model for row in read_requests(tmp_path / "traces")) == ["m", "none"]
