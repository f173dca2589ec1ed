"""Server-sent events: one per delta, as soon as the engine hands it over or at a steady rate."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.core import OutputDelta
from paceline.core.spans import OFF, Spans
from paceline.server.errors import ENGINE_FAILED, ApiError
from paceline.server.job import Indexed
from paceline.server.shapes import Shape
from paceline.server.wire import Frames, Padding, write_steadily

log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
CLOSING = "}\n\n"


class EventStream(Response):
    """Streams a job's deltas. When the client hangs up, the job is aborted at once.

    With `padding` all events have sizes of one multiple. With `frames` they are written in frames,
    one every `frame_seconds`.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        include_usage: bool,
        continuous_usage: bool,
        padding: Padding | None = None,
        frames: Frames | None = None,
        frame_seconds: float = 0.0,
        spans: Spans = OFF,
    ) -> None:
        # Not through super(): it would set a Content-Length
        self.status_code, self.background = 200, None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # a buffering proxy would turn tokens into one burst
        ]
        self._shape, self._job = shape, shape.job
        self._include_usage, self._continuous_usage = include_usage, continuous_usage
        self._padding, self._frames, self._frame_seconds = padding, frames, frame_seconds
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        watch = asyncio.create_task(self._job.abort_when_gone(receive))
        try:
            await send(start)
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
            tail = self._filled(self._shape.usage()) if self._include_usage else ""
            yield tail.encode() + DONE
        except ApiError as error:
            yield _event(error)
        except Exception:  # the status has been sent: an event is the only way left to say so
            log.exception("a stream failed")
            yield _event(ApiError(500, ENGINE_FAILED))

    def _events(self, indexed: list[Indexed], opened: set[int]) -> bytes:
        """One write for all that a step brought."""
        shape, events = self._shape, []
        for index, delta in indexed:
            if index not in opened:
                opened.add(index)
                events += self._closed(shape.first(index), delta, 0)
            events += self._closed(shape.delta(index, delta), delta, delta.completion_tokens)
            if delta.finished:
                events += self._closed(shape.last(index, delta), delta, delta.completion_tokens)
        return "".join(events).encode()

    def _closed(self, event: str, delta: OutputDelta, completion_tokens: int) -> list[str]:
        if not event:
            return []
        if not self._include_usage:
            return [self._filled(event)]
        usage = "null"
        if self._continuous_usage:  # as in vLLM: of the choice that the event is about
            counts = self._job.count_usage(
                delta.prompt_tokens, completion_tokens, delta.cached_tokens
            )
            usage = json.dumps(counts)
        return [self._filled(f'{event}, "usage": {usage}')]

    def _filled(self, opened: str) -> str:
        """An event, given without its end."""
        return opened + CLOSING if self._padding is None else self._padding.fill(opened, CLOSING)


def _event(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n"
