"""The same streams in two ways: over HTTP from a server, and in process from an engine."""

from __future__ import annotations

import json
import random
import re
import selectors
import socket
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, islice

from prompts import prompt_set

from paceline import LLM, SamplingParams

FEWER_TOKENS = 0.5  # of `tokens`: the shortest answer's, so that not all end in the same step
TOKEN_IDS = re.compile(rb'"token_ids": ?\[([^]]*)\]')  # of an event


@dataclass(frozen=True)
class Streamed:
    """The tokens of streams that began together: when each came, in seconds, and the CPU time that
    the client took to receive them."""

    arrivals: list[list[float]]
    start: float
    client: float = 0.0

    @property
    def tpot(self) -> float:
        """Median over the streams of the seconds from one token to the next."""
        return statistics.median((each[-1] - each[0]) / (len(each) - 1) for each in self.arrivals)

    @property
    def pooled_tpot(self) -> float:
        """The same of all streams together: their seconds ÷ their tokens but the first ones."""
        return sum(each[-1] - each[0] for each in self.arrivals) / sum(
            len(each) - 1 for each in self.arrivals
        )

    @property
    def seconds_per_token(self) -> float:
        """The inverse of the throughput of all streams together."""
        last = max(each[-1] for each in self.arrivals)
        return (last - self.start) / sum(map(len, self.arrivals))

    @property
    def client_share(self) -> float:
        """The client's CPU time ÷ the time from the first request to the last token."""
        return self.client / (max(each[-1] for each in self.arrivals) - self.start)


def texts() -> list[str]:
    return [text for kind in ("chat", "code") for text in prompt_set(kind)]


def questions(tokens: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield texts without end, each with how many tokens its answer shall have."""
    rng = random.Random(seed)
    for text in cycle(texts()):
        yield text, rng.randint(int(FEWER_TOKENS * tokens), tokens)


def over_http(
    port: int, model: str, texts: Sequence[str], tokens: int, pause: float = 0.0
) -> Streamed:
    """Ask for all texts at once, each on a connection of its own."""
    return queued_over_http(port, model, [(text, tokens) for text in texts], len(texts), pause)


def queued_over_http(
    port: int, model: str, asked: Iterable[tuple[str, int]], at_once: int, pause: float = 0.0
) -> Streamed:
    """Ask for texts with so many tokens each, the next one when one of `at_once` has ended.

    The client shares the server's cores, so it only notes when bytes come and reads them later:
    http.client takes as long for a chunk as the server does. `pause` is the seconds that it sleeps
    before it looks again: with one, it wakes less often on a core of the server's.
    """
    start, waiting, own = time.perf_counter(), iter(asked), time.thread_time()
    streams: list[tuple[int, list[tuple[float, bytes]]]] = []
    with selectors.DefaultSelector() as selector:
        while True:
            for text, tokens in islice(waiting, at_once - len(selector.get_map())):
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(_request(port, model, text, tokens))
                streams.append((tokens, []))
                selector.register(connection, selectors.EVENT_READ, streams[-1][1])
            if not selector.get_map():
                break
            if pause:
                time.sleep(pause)
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                chunk = key.fileobj.recv(65536)
                key.data.append((time.perf_counter(), chunk))
                if not chunk:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    client = time.thread_time() - own
    arrivals = [_token_times(received) for _, received in streams]
    for times, (tokens, received) in zip(arrivals, streams, strict=True):
        assert len(times) == tokens, f"{len(times)} tokens: {received[:3]}"
    return Streamed(arrivals, start, client)


def _request(port: int, model: str, text: str, tokens: int) -> bytes:
    body = {
        "model": model, "messages": [{"role": "user", "content": text}], "stream": True,
        "max_completion_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    content = json.dumps(body).encode()
    head = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
        head.encode(), len(content), content,
    )  # fmt: skip


def _token_times(chunks: Sequence[tuple[float, bytes]]) -> list[float]:
    """Return when each token was there: with the chunk in which its event ends."""
    ends = list(accumulate(len(chunk) for _, chunk in chunks))
    times: list[float] = []
    for event in TOKEN_IDS.finditer(b"".join(chunk for _, chunk in chunks)):
        at, _ = chunks[bisect_left(ends, event.end())]
        times += [at] * len(event[1].split(b",")) if event[1].strip() else []
    return times


def in_process(llm: LLM, texts: Sequence[str], tokens: int) -> Streamed:
    """Run the same requests on an engine of this process, step by step."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    engine, start = llm.engine, time.perf_counter()
    arrivals: dict[str, list[float]] = {}
    for index, text in enumerate(texts):
        prompt = llm.encode_chat([{"role": "user", "content": text}])
        requests = engine.make_requests(prompt, params, request_id=f"{start}.{index}")
        arrivals[requests[0].id] = []
        engine.add(requests)
    while engine.has_work:
        deltas = engine.step()
        now = time.perf_counter()
        for delta in deltas:
            arrivals[delta.request_id] += [now] * len(delta.token_ids)
    return Streamed(list(arrivals.values()), start)
