"""A proxy between an audit and a server, which plants a fault into what passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx

from tests.engines.listening import listening

Json = dict[str, Any]
Post = Callable[[Json], list[Json]]  # a streamed request to the server -> its events


class Fault:
    """Passes everything on as it is; subclasses plant something."""

    def stream(self, body: Json, post: Post) -> list[Json]:
        """Return the events that answer a streamed request."""
        return post(body)


class DroppedStop(Fault):
    """Stop strings do not reach the server."""

    def stream(self, body: Json, post: Post) -> list[Json]:
        return post({name: value for name, value in body.items() if name != "stop"})


class SwappedAfter(Fault):
    """Neighbouring tokens change places from one position on."""

    def __init__(self, position: int) -> None:
        self.position = position

    def stream(self, body: Json, post: Post) -> list[Json]:
        events = post(body)
        tokens = [token for choice in _choices(events) for token in choice["token_ids"]]
        for place in range(self.position, len(tokens) - 1, 2):
            tokens[place], tokens[place + 1] = tokens[place + 1], tokens[place]
        for choice in _choices(events):
            count = len(choice["token_ids"])
            choice["token_ids"], tokens = tokens[:count], tokens[count:]
        return events


class DeadAfter(Fault):
    """No draft token is accepted after so many tokens of an answer; the text is right."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def stream(self, body: Json, post: Post) -> list[Json]:
        events = post(body)
        for choice in _choices(events):  # as Paceline tells it
            told = choice.get("round")
            if told is not None and told["position"] >= self.tokens:
                told["accepted"] = 0
        counts = (events[-1].get("metrics") or {}).get("speculative_decoding")
        if not counts or "per_step_accepted" not in counts:
            return events
        # as vLLM tells it
        drafted, accepted, position = list[int](), list[int](), 1
        for length, count in zip(
            counts["per_step_drafted"], counts["per_step_accepted"], strict=True
        ):
            dead = position >= self.tokens
            drafted += [length] * (count + 1 if dead else 1)
            accepted += [0] * (count + 1) if dead else [count]
            position += count + 1
        counts |= {
            "per_step_drafted": drafted,
            "per_step_accepted": accepted,
            "num_spec_steps": len(drafted),
            "num_draft_tokens": sum(drafted),
            "num_accepted_draft_tokens": sum(accepted),
        }
        return events


class Biased(Fault):
    """Now and then the likeliest token is taken in place of the drawn one, and the answer goes on
    from there: a share of `share` of all tokens, where another one was drawn, is wrong."""

    def __init__(self, share: float) -> None:
        self.share = share

    def stream(self, body: Json, post: Post) -> list[Json]:
        if not body.get("temperature") or body.get("logprobs") is not None:
            return post(body)
        rng = random.Random(f"{body.get('seed')}")
        written, ids, seed = list[int](), body["prompt"], body.get("seed")
        while (left := body["max_tokens"] - len(written)) > 0:
            asked = {**body, "prompt": ids + written, "max_tokens": left, "seed": seed,
                     "logprobs": 1, "return_tokens_as_token_ids": True}  # fmt: skip
            tokens, likeliest = _drawn(post(asked))
            planted = (i for i, (a, b) in enumerate(zip(tokens, likeliest, strict=True))
                       if a != b and rng.random() < self.share)  # fmt: skip
            place = next(planted, None)
            if place is None:
                written += tokens
                break
            written += [*tokens[:place], likeliest[place]]
            seed = None if seed is None else seed + 7_919_000 + len(written)
        choice = {"token_ids": written, "text": "", "finish_reason": "length"}
        return [{"choices": [choice], "prompt_token_ids": ids},
                {"choices": [], "usage": {"prompt_tokens": len(ids)}}]  # fmt: skip


def _choices(events: list[Json]) -> Iterator[Json]:
    return (choice for event in events for choice in event["choices"] if choice.get("token_ids"))


def _drawn(events: list[Json]) -> tuple[list[int], list[int]]:
    """Return an answer's tokens, and the likeliest token at each place."""
    tokens, likeliest = list[int](), list[int]()
    for choice in _choices(events):
        tokens += choice["token_ids"]
        for top in choice["logprobs"]["top_logprobs"]:
            likeliest.append(int(max(top, key=top.__getitem__).removeprefix("token_id:")))
    return tokens, likeliest


@contextmanager
def proxy(upstream: str, fault: Fault) -> Iterator[str]:
    """Serve a server through a fault, on a free loopback port; gives the URL."""
    client = httpx.Client(base_url=upstream, trust_env=False, timeout=120)
    with client as http, listening(_handler(http, fault)) as url:
        yield url


def _handler(http: httpx.Client, fault: Fault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._pass_on(http.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not body.get("stream"):
                self._pass_on(http.post(self.path, json=body))
                return
            try:
                events = fault.stream(body, lambda asked: _events(http, self.path, asked))
            except httpx.HTTPStatusError as error:
                self._pass_on(error.response)
                return
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            self._send(200, (text + "data: [DONE]\n\n").encode())

        def _pass_on(self, response: httpx.Response) -> None:
            self._send(response.status_code, response.content)

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _events(http: httpx.Client, path: str, body: Json) -> list[Json]:
    response = http.post(path, json=body)
    response.raise_for_status()
    lines = (line.removeprefix("data:").strip() for line in response.text.splitlines())
    return [json.loads(line) for line in lines if line and line != "[DONE]"]
