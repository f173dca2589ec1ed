"""HTTP as the clients of the load test need it: plain, or through buffers that are soon full."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
import httpx
from soak_traffic import Ask

PATIENCE = 120.0  # seconds without a byte, after which a server counts as stuck
# Set before connecting: the kernel then holds 100 kB of what a client leaves unread, not 4 MB.
SMALL_BUFFERS = [
    (socket.SOL_SOCKET, socket.SO_RCVBUF, 4096),
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536),
]
Rest = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Reply:
    """What came back, and when the first and the last bytes of its body did."""

    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    retry_after: str | None = None
    first: float = 0.0
    last: float = 0.0
    chunks: list[bytes] = field(default_factory=list)

    def take(self, chunk: bytes) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.chunks.append(chunk)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def http_client(url: str) -> httpx.AsyncClient:
    # keepalive_expiry is shorter than the server's own 5 s: else a connection may end as it is used
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=PATIENCE, trust_env=False)


async def fetch(
    http: httpx.AsyncClient,
    path: str,
    content: bytes,
    *,
    method: str = "POST",
    reads: float = float("inf"),
) -> Reply:
    """Reads a reply to its end, or hangs up after `reads` pieces of an answer."""
    reply, headers = Reply(), {"Content-Type": "application/json"}
    async with http.stream(method, path, content=content, headers=headers) as response:
        reply.status, reply.retry_after = response.status_code, response.headers.get("Retry-After")
        async for chunk in response.aiter_raw():
            reply.take(chunk)
            if reply.status == 200 and len(reply.chunks) >= reads:
                break
    return reply


async def fetch_slowly(url: str, ask: Ask, rest: Rest) -> Reply:
    """The same over a connection with small buffers, with a rest after each piece of an answer."""
    address = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    for option in SMALL_BUFFERS:
        sock.setsockopt(*option)
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2048)
    try:
        connection, reply = h11.Connection(h11.CLIENT), Reply()
        content = json.dumps(ask.body).encode()
        headers = [("Host", address.netloc), ("Content-Type", "application/json"),
                   ("Content-Length", f"{len(content)}")]  # fmt: skip
        request = h11.Request(method="POST", target=ask.path, headers=headers)
        for event in (request, h11.Data(content), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        while True:
            match connection.next_event():
                case h11.NEED_DATA:
                    async with asyncio.timeout(PATIENCE):
                        connection.receive_data(await reader.read(2048))
                case h11.Response() as response:
                    reply.status = response.status_code
                    reply.retry_after = dict(response.headers).get(b"retry-after", b"").decode()
                case h11.Data() as data:
                    reply.take(bytes(data.data))
                    if reply.status == 200:
                        await rest()
                case h11.EndOfMessage():
                    return reply
    finally:
        writer.transport.abort()


async def send_part(url: str, content: bytes, seconds: float) -> None:
    """Sends bytes that are no whole request, waits, and hangs up."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(content)
    await asyncio.sleep(seconds)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
