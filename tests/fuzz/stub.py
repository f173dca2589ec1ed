"""A server with one planted fault, to test the fuzzer: `python stub.py FAULT --host H --port P`.

It answers /ui/predict with the fault: `death`, `error` (500), `stall` (everybody waits for 0.8 s),
`hang` (the connection is closed without an answer), `text` (answers change afterwards) or `none`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress

FAULT, PORT = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
changed = False


async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            body = await reader.readexactly(int(length or 0))
            await answer(head.split(b" ")[1], body, writer)
            await writer.drain()
    writer.close()


async def answer(path: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
    global changed
    text, status = b'{"choices": [{"text": "%d"}]}' % changed, 200
    if path == b"/ui/predict":
        if FAULT == "death":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif FAULT == "stall":
            time.sleep(0.8)
        elif FAULT == "hang":
            raise ValueError
        changed = FAULT == "text"
        status = 500 if FAULT == "error" else 400
        text = b'{"error": {"message": "planted"}}'
    elif path == b"/metrics":
        text = b"".join(b"x:%s 0.0\n" % name.encode() for name in GAUGES)
    elif b'"stream": true' in body:
        events = [b"data: {}\n\n"] * 20 + [b"data: [DONE]\n\n"]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")
        return
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))


async def main() -> None:
    server = await asyncio.start_server(client, "127.0.0.1", PORT, limit=2**24)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: os._exit(0))
    await server.serve_forever()


asyncio.run(main())
