"""Server-sent events: one per delta, as soon as the engine hands it over or at a steady rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.core import OutputDelta
from paceline.core.spans import OFF, Spans
from paceline.server.errors import ENGINE_FAILED, ApiError
from paceline.server.job import Indexed
from paceline.server.responses import ChunkBody
from paceline.server.shapes import Shape
from paceline.server.wire import Frames, joined, padded, write_steadily

log = logging.getLogger(__name__)
DATA, END = b"data: ", b"\n\n"  # around the JSON of a server-sent event
DONE = DATA + b"[DONE]" + END
NO_USAGE = b'{"usage":null}'  # of every chunk but the last one, where usage was asked for
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would turn tokens into one burst
]


class EventStream(Response):
    """Streams a job's deltas. When the client hangs up, the job is aborted at once.

    All events have sizes of a multiple of `unit`. With `frames` they are written in frames, one
    every `frame_seconds`.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        include_usage: bool,
        continuous_usage: bool,
        unit: int = 1,
        frames: Frames | None = None,
        frame_seconds: float = 0.0,
        spans: Spans = OFF,
    ) -> None:
        # Not through super(): it would set a Content-Length
        self.status_code, self.background, self.raw_headers = 200, None, HEADERS
        self._shape, self._job = shape, shape.job
        self._include_usage, self._continuous_usage = include_usage, continuous_usage
        self._unit, self._frames, self._frame_seconds = unit, frames, frame_seconds
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._job.abort_when_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._write(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            self._job.abort()

    async def _write(self, send: Send) -> None:
        if self._frames is not None:
            return await write_steadily(
                self._bodies(),
                send,
                self._frames,
                seconds=self._frame_seconds,
                is_gone=lambda: self._job.gone,
            )
        async for body in self._bodies():
            with self._spans("send"):
                await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _bodies(self) -> AsyncIterator[bytes]:
        try:
            opened: set[int] = set()
            async for indexed in self._job.deltas():
                with self._spans("format"):
                    body = self._events(indexed, opened)
                if body:
                    yield body
            yield (self._event(self._shape.usage()) if self._include_usage else b"") + DONE
        except ApiError as error:
            yield DATA + error.body() + END
        except Exception:  # the status has been sent: an event is the only way left to say so
            log.exception("a stream failed")
            yield DATA + ApiError(500, ENGINE_FAILED).body() + END

    def _events(self, indexed: list[Indexed], opened: set[int]) -> bytes:
        shape, events = self._shape, []
        for index, delta in indexed:
            if index not in opened:
                opened.add(index)
                events.append(self._chunk(shape.first(index), delta, 0))
            text = None if self._continuous_usage else shape.text_json(index, delta)
            if text is not None:
                events.append(self._framed(joined(text, NO_USAGE) if self._include_usage else text))
            else:
                events.append(self._chunk(shape.chunk(index, delta), delta))
            if delta.finished:
                events.append(self._chunk(shape.last(index, delta), delta))
        return b"".join(events)

    def _chunk(
        self, body: ChunkBody | None, delta: OutputDelta, tokens: int | None = None
    ) -> bytes:
        """Encode the event of a chunk, nothing for none. With continuous usage it has the usage of
        its choice, as in vLLM, after `tokens` or else all completion tokens."""
        if body is None:
            return b""
        if self._include_usage:
            body["usage"] = None
        if self._continuous_usage:
            completion = delta.completion_tokens if tokens is None else tokens
            body["usage"] = self._job.count_usage(
                delta.prompt_tokens, completion, delta.cached_tokens
            )
        return self._event(body)

    def _event(self, body: ChunkBody) -> bytes:
        return self._framed(self._shape.chunk_json(body))

    def _framed(self, chunk: bytes) -> bytes:
        if self._unit > 1:
            chunk = padded(chunk, self._unit, len(DATA) + len(END))
        return DATA + chunk + END
