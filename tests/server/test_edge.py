"""What clients can do before anybody has looked at their key: little, and not for long."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.server.connection import MAX_HEADERS
from paceline.server.settings import ServerSettings

from .conftest import LONG_STREAM, TEXT, eventually, healthy, listening, page_server
from .fake import FakeAsyncEngine
from .raw import RawClient

MIB = 2**20
TAKEN = 8 * MIB  # what the buffers of both kernels may hold beside the server's own bound
LONG_ANSWER = {  # 230 kB
    **LONG_STREAM,
    "stream": False,
    "logprobs": 20,
    "max_tokens": 1000,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that asks for a key."""
    with listening(FakeAsyncEngine(), api_keys=("secret",)) as server:
        yield server.url


def one_header(client: RawClient) -> Iterator[bytes]:
    yield client.head("GET", "/v1/models")[:-2] + b"X-Large: "
    yield from itertools.repeat(b"x" * 65536, 100 * MIB // 65536)


def many_headers(client: RawClient) -> Iterator[bytes]:
    yield client.head("GET", "/v1/models")[:-2]
    yield from (b"X-%d: " % n + b"y" * 1000 + b"\r\n" for n in range(100_000))


def long_url(client: RawClient) -> Iterator[bytes]:
    yield b"GET /"
    yield from itertools.repeat(b"x" * 65536, 50 * MIB // 65536)


def blank_lines(client: RawClient) -> Iterator[bytes]:
    yield from itertools.repeat(b"\r\n" * 32768, 100 * MIB // 65536)


def chunked(client: RawClient) -> bytes:
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    return client.head("POST", "/v1/completions", "Authorization: Bearer secret", *lines)


def chunk_extension(client: RawClient) -> Iterator[bytes]:
    yield chunked(client) + b"1;"
    yield from itertools.repeat(b"x" * 65536, 100 * MIB // 65536)


def trailers(client: RawClient) -> Iterator[bytes]:
    yield chunked(client) + b"1\r\nx\r\n0\r\n"
    yield from (b"X-%d: " % n + b"y" * 1000 + b"\r\n" for n in range(100_000))


@pytest.mark.parametrize(
    ("flood", "status", "code"),
    [
        (one_header, 431, "headers_too_large"),
        (many_headers, 431, "headers_too_large"),
        (blank_lines, 431, "headers_too_large"),
        (long_url, 414, "url_too_long"),
        (chunk_extension, 400, "bad_http"),
        (trailers, 400, "bad_http"),
    ],
)
def test_a_flood_of_bytes_is_refused_before_it_is_read(
    url: str, flood: Any, status: int, code: str
) -> None:
    with RawClient(url) as client:
        assert client.flood(flood(client)) < TAKEN
        answer = client.answer()
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.headers["connection"] == "close"
        assert set(answer.error) == {"message", "type", "param", "code"}
    assert healthy(url)


def test_headers_are_counted(url: str) -> None:
    for count, status in ((MAX_HEADERS - 1, 200), (MAX_HEADERS, 431), (10_000, 431)):
        with RawClient(url) as client:
            client.flood([client.head("GET", "/health", *(f"x-{n}: 1" for n in range(count)))])
            assert client.answer().status == status
    for size, status in ((7000, 404), (9000, 414)):
        with RawClient(url) as client:
            client.flood([client.head("GET", "/" + "x" * size)])
            assert client.answer().status == status
    for size, status in ((60_000, 200), (70_000, 431)):
        with RawClient(url) as client:
            client.flood([client.head("GET", "/health", "X-Large: " + "x" * size)])
            assert client.answer().status == status


def test_the_page_server_has_the_same_bounds() -> None:
    with page_server(read_timeout=0.3) as url:
        with RawClient(url) as client:
            assert client.flood(one_header(client)) < TAKEN
            assert client.answer().status == 431
        with RawClient(url) as client:
            client.send(b"GET / HTTP/1.1\r\n")
            assert client.answer().status == 408


def test_a_trailer_is_no_header(url: str) -> None:
    with RawClient(url) as client:
        head = client.head("POST", "/v1/completions", "Transfer-Encoding: chunked")
        client.send(head + b"1\r\nx\r\n0\r\nAuthorization: Bearer secret\r\n\r\n")
        assert client.answer().status == 401
        client.send(client.head("GET", "/v1/models"))
        assert client.answer().status == 401


def test_a_client_that_sends_a_whole_body_before_it_reads_is_told_that_it_is_too_long() -> None:
    limit = 4 * MIB
    with (
        listening(FakeAsyncEngine(), max_body_bytes=limit) as server,
        RawClient(server.url, receive_buffer=4096) as client,
    ):
        body = b" " * (limit + MIB // 2)
        client.send(client.head("POST", "/v1/completions", f"Content-Length: {len(body)}"))
        for start in range(0, len(body), 2**16):  # slowly: the answer is there long before the end
            client.send(body[start : start + 2**16])
            time.sleep(0.002)
        assert client.answer().status == 413


def test_a_body_that_nobody_wants_is_not_read_for_ever(url: str) -> None:
    with RawClient(url) as client:
        client.send(client.head("POST", "/v1/completions", f"Content-Length: {10**12}"))
        assert client.answer().status == 401
        assert client.flood(itertools.repeat(b"x" * 65536, 100 * MIB // 65536)) < TAKEN
    with RawClient(url) as client:  # and a short one does not cost the connection
        client.send(client.post("/v1/completions", {**TEXT, "prompt": "x" * 100_000}))
        assert client.answer().status == 401
        client.send(client.head("GET", "/health"))
        assert client.answer().status == 200


# -- time -----------------------------------------------------------------------------------------


def test_slow_requests_are_ended() -> None:
    engine = FakeAsyncEngine()
    with listening(engine, read_timeout=0.4) as server:
        with RawClient(server.url) as silent:
            assert silent.rest() == b""
        with RawClient(server.url) as client:
            client.drip((bytes([byte]) for byte in client.head("GET", "/health")), 0.1)
            answer = client.answer()
            assert answer.status == 408 and "headers" in answer.error["message"]
        with RawClient(server.url) as client:
            client.send(client.post("/v1/completions", TEXT)[:-5])
            answer = client.answer()
            assert answer.status == 408 and "paused" in answer.error["message"]
        assert healthy(server.url)
    assert not engine.submitted


def test_a_body_that_drips_is_ended_and_a_slow_one_is_served() -> None:
    with listening(FakeAsyncEngine(max_model_len=32768), read_timeout=0.5) as server:
        with RawClient(server.url) as client:
            request = client.post("/v1/completions", {**TEXT, "prompt": "x" * 4000})
            start = len(request) - 4000
            client.send(request[:start])
            client.drip((request[n : n + 1] for n in range(start, len(request))), 0.1)
            answer = client.answer()
            assert answer.status == 408 and "bytes a second" in answer.error["message"]
        with RawClient(server.url) as client:
            request = client.post("/v1/completions", {**TEXT, "prompt": "x" * 24_000})
            pieces = [request[n : n + 4096] for n in range(0, len(request), 4096)]
            client.drip(pieces, 0.2)  # 20 KB/s, three times as long as read_timeout
            assert client.answer().status == 200


def test_a_body_in_chunks_of_one_byte_is_served() -> None:
    body = json.dumps({**TEXT, "prompt": "x" * 20_000}).encode()
    with (
        listening(FakeAsyncEngine(max_model_len=32768)) as server,
        RawClient(server.url) as client,
    ):
        client.send(chunked(client))
        client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert client.answer().status == 200


def test_keep_alive_is_settable() -> None:
    with listening(FakeAsyncEngine(), keep_alive=0.3) as server, RawClient(server.url) as client:
        for _ in range(3):
            client.send(client.head("GET", "/health"))
            assert client.answer().status == 200
        began = time.monotonic()
        assert client.rest() == b""
        assert 0.2 < time.monotonic() - began < 4


def test_an_idle_connection_outlives_the_read_timeout() -> None:
    with listening(FakeAsyncEngine(), read_timeout=0.2) as server, RawClient(server.url) as client:
        for _ in range(2):
            client.send(client.head("GET", "/health"))
            assert client.answer().status == 200
            time.sleep(1)


def test_a_client_that_never_reads_is_cut_off_and_its_job_aborted() -> None:
    engine = FakeAsyncEngine(step=0.001, max_model_len=32768)
    body = {**LONG_STREAM, "max_tokens": 20_000, "logprobs": 20, "return_token_ids": True}
    with listening(engine, write_timeout=0.5) as server:
        with RawClient(server.url, receive_buffer=4096) as client:
            client.send(client.post("/v1/completions", body))
            eventually(lambda: len(engine.aborted) == 1)
            eventually(lambda: not server._http.peers.open)
            assert b"[DONE]" not in client.rest()
            assert healthy(server.url)
        assert engine.submitted[0].output_len < 20_000


def test_an_answer_that_nobody_reads_is_not_kept() -> None:
    engine = FakeAsyncEngine(max_model_len=4096)
    with (
        listening(engine, write_timeout=0.5, keep_alive=0.1) as server,
        RawClient(server.url, receive_buffer=4096) as client,
    ):
        client.send(client.post("/v1/completions", LONG_ANSWER))
        eventually(lambda: engine.submitted and not engine.stats().running)
        eventually(lambda: not server._http.peers.open)
        with pytest.raises(ConnectionError):
            client.answer()


def test_a_client_that_reads_slowly_is_served() -> None:
    engine = FakeAsyncEngine(max_model_len=4096)
    with (
        listening(engine, write_timeout=1) as server,
        RawClient(server.url, receive_buffer=4096) as client,
    ):
        client.send(client.post("/v1/completions", LONG_ANSWER))
        for _ in range(100):  # at least 2 s for most of 230 kB
            client.read_some(2048)
            time.sleep(0.02)
        assert json.loads(client.answer().body)["usage"]["completion_tokens"] == 1000


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_alive", 0),
        ("keep_alive", float("nan")),
        ("read_timeout", -1),
        ("write_timeout", 1e9),
        ("max_connections", 0),
        ("max_connections", 2.5),
        ("allow_hosts", ("http://a.example",)),
        ("allow_hosts", ("a.example:80",)),
        ("allow_hosts", ("*",)),
    ],
)
def test_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        ServerSettings(**{field: value})
    assert error.value.field == field
