"""Clients that misuse sockets: what no well-formed request can say."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

HOLD = 8.0  # seconds that slow clients stay, at most
MIB = 2**20
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SMALL = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}
LONG = {"model": "tiny", "prompt": "Hi", "max_tokens": 200, "ignore_eos": True, "stream": True,
        "logprobs": 20}  # fmt: skip
ACCEPTED_HEADERS = MIB  # bytes; a request with more of them must be refused


def _post(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


class Wire:
    """One misused connection, from its opening to its end."""

    def __init__(self, url: str, rng: random.Random) -> None:
        address = urlsplit(url)
        self._address, self._rng = (address.hostname, address.port), rng

    async def act(self) -> str:
        """Plays one client, and tells what came of it: its name, and the first line of an answer.
        Raises ConnectionError where nobody listens."""
        (kind,) = self._rng.choices(list(KINDS), list(KINDS.values()))
        with socket.socket() as sock:
            sock.setblocking(False)
            if kind in (_never_reads, _hangs_up):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.get_running_loop().sock_connect(sock, self._address)
            line = b""
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(HOLD):
                    line = await kind(Peer(sock, self._rng))
        return f"{kind.__name__.strip('_')}: {line.decode('latin-1') or 'no answer'}"


class Peer:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket, rng: random.Random) -> None:
        self._sock, self.rng = sock, rng
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def line(self) -> bytes:
        """The status line that comes next; empty when the server hung up."""
        data = await self._loop.sock_recv(self._sock, 2**16)
        return data.split(b"\r\n")[0][:60]

    async def send_all(self, data: bytes) -> bytes:
        """Sends as much as the server takes, and gives its first line."""
        reading = asyncio.ensure_future(self.line())
        try:
            with suppress(OSError):
                await self.send(data)
            return await reading
        finally:
            reading.cancel()


Kind = Callable[[Peer], Awaitable[bytes]]


async def _huge_headers(peer: Peer) -> bytes:
    """More header bytes than anybody needs, in one header, or in many."""
    total = peer.rng.choice([20_000, 100_000, 2 * MIB, 8 * MIB])
    each = peer.rng.choice([10, 1000, total])
    header = b"X-A: " + b"a" * each + b"\r\n"
    line = await peer.send_all(
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header * (total // each) + b"\r\n"
    )
    if total > ACCEPTED_HEADERS and b" 200" in line:
        return b"ACCEPTED %d bytes of headers" % total
    return line


async def _long_url(peer: Peer) -> bytes:
    total = peer.rng.choice([10_000, 100_000, 4 * MIB])
    line = await peer.send_all(
        b"GET /health?" + b"a" * total + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    )
    return b"ACCEPTED a URL of %d bytes" % total if total > MIB and b" 200" in line else line


async def _bad_chunks(peer: Peer) -> bytes:
    chunks = peer.rng.choice([
        b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"ffffffffffffffffff\r\nabc",
        b"5;" + b"a" * 100_000 + b"\r\n",
        b"3\r\nabcdef\r\n0\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"1\r\n{\r\n" * 5_000,
    ])  # fmt: skip
    return await peer.send_all(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)


async def _two_lengths(peer: Peer) -> bytes:
    headers = peer.rng.choice([
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: 0x5\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Length: 5\r\nExpect: 100-continue\r\n",
    ])  # fmt: skip
    return await peer.send_all(HEAD + headers + b"\r\n0\r\n\r\n{}")


async def _garbage(peer: Peer) -> bytes:
    return await peer.send_all(peer.rng.choice([
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n" * 10_000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 5_000,
        b"GET /health\r\n\r\n", HEAD + b" a: b\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
        b"BREW /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ]))  # fmt: skip


async def _slow_headers(peer: Peer) -> bytes:
    for letter in HEAD * 100:
        await peer.send(bytes([letter]))
        await asyncio.sleep(0.3)
    return b""


async def _slow_body(peer: Peer) -> bytes:
    await peer.send(HEAD + b"Content-Length: 100000\r\n\r\n{")
    for _ in range(100):
        await asyncio.sleep(0.3)
        await peer.send(b" ")
    return b""


async def _half_a_request(peer: Peer) -> bytes:
    whole = _post(SMALL)
    await peer.send(whole[: peer.rng.randrange(1, len(whole))])
    await asyncio.sleep(peer.rng.uniform(0, 2))
    return b""


async def _never_reads(peer: Peer) -> bytes:
    await peer.send(_post(LONG))
    await asyncio.sleep(HOLD)
    return b""


async def _hangs_up(peer: Peer) -> bytes:
    """At a random moment of a stream, or of a request whose rounds are kept."""
    await peer.send(_post({**LONG, "explain": True, "n": peer.rng.choice([1, 3])}))
    await asyncio.sleep(peer.rng.uniform(0, 1))
    return b""


async def _pipelined(peer: Peer) -> bytes:
    requests = [b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", _post(SMALL), _post({})]
    return await peer.send_all(b"".join(peer.rng.choices(requests, k=50)))


KINDS: dict[Kind, float] = {
    _huge_headers: 10, _long_url: 8, _bad_chunks: 15, _two_lengths: 15, _garbage: 15,
    _slow_headers: 4,
    _slow_body: 4, _half_a_request: 10, _never_reads: 4, _hangs_up: 20, _pipelined: 8,
}  # fmt: skip
