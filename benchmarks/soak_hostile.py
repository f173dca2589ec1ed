"""Clients of the load test that want to harm others: each must be refused or served."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from soak_answers import Problem
from soak_http import fetch, http_client, send_part
from soak_traffic import CHAT, COMPLETIONS, CONTEXT, HEAD, LONGEST_BODY, format_of

PATIENCE = 30.0  # seconds for an answer to a hostile request, whatever else the server does
CHAIN = 1_000  # definitions that refer on: they ended a server, on a stack of 8 MB
ALTERNATIVES = 60_000  # of one rule: they held the encoding of prompts for 2.5 s
MESSAGES = 60_000
BIASES = 49_152  # every token of SmolLM2
SENTINEL = -(2**63)  # in a schema's enum it made a compiler recurse for ever
HEADERS = 8 * 2**20  # bytes

Made = tuple[str, dict[str, Any]]  # where it is sent, and fields beside the model's name
HI = [{"role": "user", "content": "Hi"}]


def wrong_list() -> Made:
    return COMPLETIONS, {"prompt": "Hi", "stop": [0] * (LONGEST_BODY // 3 - 100)}


def many_stop_ids() -> Made:
    return COMPLETIONS, {"prompt": "Hi", "max_tokens": 8, "stop_token_ids": [5] * 1_000_000}


def many_messages() -> Made:
    return CHAT, {"messages": HI * MESSAGES}


def long_prompt() -> Made:
    return COMPLETIONS, {"prompt": "a b " * (LONGEST_BODY // 4 - 100)}


def long_penalised() -> Made:
    ids = [100 + n % 1000 for n in range(CONTEXT - 40)]
    return COMPLETIONS, {"prompt": ids, "max_tokens": 24, "repetition_penalty": 1.3}


def every_bias() -> Made:
    biases = {str(token): 1 for token in range(BIASES)}
    return COMPLETIONS, {"prompt": "Hi", "max_tokens": 8, "logit_bias": biases}


def large_rule() -> Made:
    rule = " | ".join(f'"word {number}"' for number in range(ALTERNATIVES))
    return COMPLETIONS, {"prompt": "Hi", "structured_outputs": {"lark": f"start: {rule}"}}


def long_chain() -> Made:
    links = {
        f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(CHAIN)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**links, f"d{CHAIN}": {"type": "null"}}}
    return CHAT, {"messages": HI, "max_tokens": 8, **format_of(schema)}


def sentinel() -> Made:
    return CHAT, {"messages": HI, "max_tokens": 8, **format_of({"enum": [SENTINEL]})}


REQUESTS: tuple[Callable[[], Made], ...] = (
    wrong_list, many_stop_ids, many_messages, long_prompt, long_penalised, every_bias, large_rule,
    long_chain, sentinel,
)  # fmt: skip


class Hostile:
    """Plays one hostile client after another. The contents are made once: their making must not
    take time from the clients that measure."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._contents = {make.__name__: _content(model, *make()) for make in REQUESTS}

    async def act(self, rng: random.Random) -> str:
        """Return what one hostile client was told. Raises Problem for a 5xx, and what the transport
        raises."""
        kinds = [*self._contents, "explained", "slow headers", "huge headers"]
        kind = rng.choice(kinds)
        if kind == "explained":
            return await self._explained()
        if kind == "slow headers":
            return await self._slow_headers()
        if kind == "huge headers":
            return await self._huge_headers()
        path, content = self._contents[kind]
        async with asyncio.timeout(PATIENCE), http_client(self._url) as http:
            reply = await fetch(http, path, content)
        if reply.status >= 500 or not reply.status:
            raise Problem(f"{kind}: {reply.status} {reply.body[:300]!r}")
        return f"{kind.replace('_', ' ')}: {reply.status}"

    # -- inside -----------------------------------------------------------------------------------

    async def _explained(self) -> str:
        """A long prompt whose rounds are to be kept, from a client that hangs up at once."""
        path, content = self._contents["long_penalised"]
        content = content[:-1] + b', "explain": true}'
        await send_part(self._url, _request(path, content), 0.1)
        return "explain, then hung up"

    async def _slow_headers(self) -> str:
        address = urlsplit(self._url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        with suppress(ConnectionError):
            for letter in HEAD[:40]:
                writer.write(bytes([letter]))
                await writer.drain()
                await asyncio.sleep(0.2)
        writer.transport.abort()
        return "slow headers"

    async def _huge_headers(self) -> str:
        """Raises Problem when they are accepted."""
        address = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        line = b""
        with suppress(ConnectionError):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            writer.write((b"X-A: " + b"a" * 1000 + b"\r\n") * (HEADERS // 1000) + b"\r\n")
            async with asyncio.timeout(PATIENCE):
                line = await reader.readline()
        writer.transport.abort()
        if b" 200" in line:
            raise Problem(f"{HEADERS} bytes of headers were accepted")
        return f"huge headers: {line[9:12].decode('ascii', 'replace') or 'hung up'}"


def _content(model: str, path: str, fields: dict[str, Any]) -> tuple[str, bytes]:
    return path, json.dumps({"model": model, **fields}).encode()


def _request(path: str, content: bytes) -> bytes:
    head = HEAD.replace(COMPLETIONS.encode(), path.encode()).replace(b"Host: x", b"Host: localhost")
    return head + b"Content-Length: %d\r\n\r\n" % len(content) + content
