"""Answers of other APIs: written as named events while they stream, or as one object."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline.core import InvalidRequest, OutputDelta
from paceline.server.blocks import AnswerBlocks
from paceline.server.bodies import LARGE
from paceline.server.errors import ENGINE_FAILED, ApiError
from paceline.server.job import Indexed, Job
from paceline.server.responses import write_json
from paceline.server.serving import CLIENT_CLOSED_REQUEST, OpenedJob, Serving
from paceline.server.streaming import DATA, END, JobStream, StreamWriting
from paceline.server.translation import Translation
from paceline.server.wire import EventSizes, padded

log = logging.getLogger(__name__)
HEAD_BYTES = 160  # of an event with a piece of text: names and places
Event = dict[str, Any]  # has a `type`, which names the event


class AnswerWriter(Protocol):
    """Writes one answer, in the form of one API."""

    blocks: AnswerBlocks

    def begin(self) -> Sequence[Event]:
        """Return the events that open a stream."""

    def add(self, delta: OutputDelta) -> Sequence[Event]:
        """Return the events of what a step added."""

    async def end(self) -> Sequence[Event]:
        """Return the events that close a stream."""

    def failed(self, error: ApiError) -> Sequence[Event]:
        """Return the events of a stream that ends on an error."""

    async def whole(self) -> dict[str, object]:
        """Return the answer as one object."""


async def start(serving: Serving, wish: Translation, http: Request, prefix: str) -> OpenedJob:
    """Start a translated request; its id begins with `prefix`. Raises ApiError."""
    try:
        return await serving.open(wish.chat, http, prefix)
    except (InvalidRequest, ApiError) as error:
        raise wish.refusal(error) from None


async def finished(job: Job, writer: AnswerWriter, wish: Translation, http: Request) -> Response:
    """Return the answer of a job as one object, when it has ended. Raises ApiError."""
    try:
        await job.finish(http.receive)
    except ApiError as error:
        raise wish.refusal(error) from None
    if job.gone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    answer = await writer.whole()
    if job.params.logprobs is None and wish.chat.size <= LARGE:
        return Response(write_json(answer), media_type="application/json")
    # it repeats parts of the request, and has the log-probabilities
    written = await run_in_threadpool(write_json, answer)
    return Response(written, media_type="application/json")


def event_sizes() -> EventSizes:
    """Return the usual sizes of events with text."""
    return EventSizes.of(HEAD_BYTES, logprobs=None, token_ids=False, rounds=False)


class BlockStream(JobStream):
    """Streams the events of an answer's blocks."""

    def __init__(
        self, job: Job, writer: AnswerWriter, wish: Translation, options: StreamWriting
    ) -> None:
        super().__init__(job, options)
        self._writer, self._wish = writer, wish

    async def _bodies(self) -> AsyncIterator[bytes]:
        try:
            yield self._written(self._writer.begin())
            async for indexed in self._job.deltas():
                with self._spans("format"):
                    body = self._events(indexed)
                if body:
                    yield body
            if not self._job.gone:
                yield self._written(await self._writer.end())
        except ApiError as error:
            yield self._written(self._writer.failed(self._wish.refusal(error)))
        except Exception:  # the status has been sent: an event is the only way left to say so
            log.exception("a stream failed")
            yield self._written(self._writer.failed(ApiError(500, ENGINE_FAILED)))

    def _events(self, indexed: list[Indexed]) -> bytes:
        return self._written([event for _, delta in indexed for event in self._writer.add(delta)])

    def _written(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._framed, events))

    def _framed(self, event: Event) -> bytes:
        name = f"event: {event['type']}\n".encode()
        body = write_json(event)
        if self._unit > 1:
            body = padded(body, self._unit, len(name) + len(DATA) + len(END))
        return name + DATA + body + END
