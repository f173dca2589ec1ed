"""Server-sent events: one per delta, as soon as the engine hands it over or at a steady rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.core import OutputDelta
from paceline.core.spans import OFF, Spans
from paceline.server.body_writer import BodyWriter, body_writer
from paceline.server.errors import ENGINE_FAILED, ApiError
from paceline.server.job import Indexed, Job
from paceline.server.responses import ChunkBody
from paceline.server.shapes import Shape
from paceline.server.wire import Frames, joined, padded, write_steadily

log = logging.getLogger(__name__)
Item = TypeVar("Item")
DATA, END = b"data: ", b"\n\n"  # around the JSON of a server-sent event
DONE = DATA + b"[DONE]" + END
NO_USAGE = b'{"usage":null}'  # of every chunk but the last one, where usage was asked for
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would turn tokens into one burst
]


@dataclass(frozen=True, slots=True)
class StreamWriting:
    """Says how events are written. All have sizes of a multiple of `unit`. With `frames` they are
    written in frames, one every `frame_seconds`. `spans` are of this stream's work on the event
    loop, `step_spans` of the engine's thread."""

    unit: int = 1
    frames: Frames | None = None
    frame_seconds: float = 0.0
    spans: Spans = OFF
    step_spans: Spans = OFF


async def encoded(write: Callable[[Item], bytes], body: Item, *, is_large: bool) -> bytes:
    """Return `body` as `write` encodes it: on a thread if it is large, so that no other stream
    waits. What has the log-probabilities of a whole answer or prompt is large."""
    return await run_in_threadpool(write, body) if is_large else write(body)


class JobStream(Response):
    """Streams a job's deltas. When the client hangs up, the job is aborted at once."""

    def __init__(self, job: Job, options: StreamWriting) -> None:
        # Not through super(): it would set a Content-Length
        self.status_code, self.background, self.raw_headers = 200, None, HEADERS
        self._job, self._is_scored = job, job.params.prompt_logprobs is not None
        self._unit, self._frames = options.unit, options.frames
        self._frame_seconds, self._spans = options.frame_seconds, options.spans
        self._step_spans = options.step_spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._job.abort_when_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._write(send, body_writer(scope))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            self._job.abort()

    async def _write(self, send: Send, writer: BodyWriter | None) -> None:
        if self._frames is not None:
            return await write_steadily(
                self._bodies(),
                send,
                self._frames,
                seconds=self._frame_seconds,
                is_gone=lambda: self._job.gone,
            )
        if writer is not None and not self._is_scored:
            off_loop = writer.off_loop and self._job.log is None  # logs belong to the loop
            spans = self._step_spans if off_loop else self._spans
            self._job.write_directly(
                lambda indexed: self._write_now(indexed, writer, spans),
                writer.is_ready,
                off_loop=off_loop,
            )
        async for body in self._bodies():
            with self._spans("send"):
                await send({"type": "http.response.body", "body": body, "more_body": True})

    def _write_now(self, indexed: list[Indexed], writer: BodyWriter, spans: Spans) -> None:
        with spans("format"):
            body = self._events(indexed)
        if body:
            with spans("send"):
                writer.write(body)

    async def _bodies(self) -> AsyncIterator[bytes]:
        """Yield all events in order but those that were written directly. It raises nothing: an
        event says what went wrong."""
        try:
            if opening := await self._begin():
                yield opening
            async for indexed in self._job.deltas():
                with self._spans("format"):
                    body = await encoded(self._events, indexed, is_large=self._is_large(indexed))
                if body:
                    yield body
            if not self._job.gone:
                yield await self._end()
        except ApiError as error:
            yield await self._failed(error)
        except Exception:  # the status has been sent: an event is the only way left to say so
            log.exception("a stream failed")
            yield await self._failed(ApiError(500, ENGINE_FAILED))

    async def _begin(self) -> bytes:
        """Encode what comes before all deltas."""
        return b""

    def _events(self, indexed: list[Indexed]) -> bytes:
        """Encode what a step adds; nothing where there is nothing to show yet."""
        raise NotImplementedError

    def _is_large(self, indexed: list[Indexed]) -> bool:
        """Return whether what a step adds has the log-probabilities of many other steps. It must
        not be written directly."""
        raise NotImplementedError

    async def _end(self) -> bytes:
        """Encode what comes after all deltas."""
        raise NotImplementedError

    async def _failed(self, error: ApiError) -> bytes:
        """Encode the end of a stream that failed."""
        raise NotImplementedError


class EventStream(JobStream):
    """Streams chunks of an answer of chat or of a completion."""

    def __init__(
        self, shape: Shape, options: StreamWriting, *, include_usage: bool, continuous_usage: bool
    ) -> None:
        super().__init__(shape.job, options)
        self._shape = shape
        self._include_usage, self._continuous_usage = include_usage, continuous_usage
        self._opened: set[int] = set()  # choices whose first event has been written

    def _events(self, indexed: list[Indexed]) -> bytes:
        shape, opened, events = self._shape, self._opened, []
        for index, delta in indexed:
            if index not in opened:
                opened.add(index)
                events.append(self._chunk(shape.first(index, delta), delta, 0))
            if self._continuous_usage:
                events.append(self._chunk(shape.chunk(index, delta), delta))
            elif chunk := shape.delta_json(index, delta):
                chunk = joined(chunk, NO_USAGE) if self._include_usage else chunk
                events.append(self._framed(chunk))
            if delta.finished:
                events.append(self._chunk(shape.last(index, delta), delta))
        return b"".join(events)

    def _is_large(self, indexed: list[Indexed]) -> bool:
        return self._is_scored and any(delta.prompt_logprobs for _, delta in indexed)

    async def _end(self) -> bytes:
        return (self._event(self._shape.usage()) if self._include_usage else b"") + DONE

    async def _failed(self, error: ApiError) -> bytes:
        return DATA + error.body() + END

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
