"""Answers of other APIs: written as named events while they stream, or as one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from paceline.core import InvalidRequest, OutputDelta
from paceline.server.blocks import AnswerBlocks
from paceline.server.bodies import LARGE
from paceline.server.errors import ApiError
from paceline.server.job import Indexed, Job
from paceline.server.responses import write_json
from paceline.server.serving import OpenedJob, Serving, answered
from paceline.server.streaming import DATA, END, JobStream, StreamWriting, encoded
from paceline.server.translation import Translation
from paceline.server.wire import EventSizes, padded

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


async def start(
    serving: Serving, translation: Translation, http: Request, prefix: str
) -> OpenedJob:
    """Start a translated request; its id begins with `prefix`. Raises ApiError."""
    try:
        return await serving.open(translation.chat, http, prefix)
    except (InvalidRequest, ApiError) as error:
        raise translation.refusal(error) from None


async def finished(
    job: Job, writer: AnswerWriter, translation: Translation, http: Request
) -> Response:
    """Return the answer of a job as one object, when it has ended. Raises ApiError."""

    async def written() -> bytes:
        return await encoded(write_json, await writer.whole(), is_large=is_large(job, translation))

    try:
        return await answered(job, http, written)
    except ApiError as error:
        raise translation.refusal(error) from None


def is_large(job: Job, translation: Translation) -> bool:
    """Return whether an answer as a whole is large; it repeats parts of the request."""
    return job.tells_logprobs or translation.chat.size > LARGE


def event_sizes() -> EventSizes:
    """Return the usual sizes of events with text."""
    return EventSizes.of(HEAD_BYTES, logprobs=None, token_ids=False, rounds=False)


class BlockStream(JobStream):
    """Streams the events of an answer's blocks."""

    def __init__(
        self, job: Job, writer: AnswerWriter, translation: Translation, options: StreamWriting
    ) -> None:
        super().__init__(job, options)
        self._writer, self._translation = writer, translation
        self._repeats_much = is_large(job, translation)  # in the events around its deltas

    async def _begin(self) -> bytes:
        return await self._encoded(self._writer.begin())

    def _events(self, indexed: list[Indexed]) -> bytes:
        return self._written([event for _, delta in indexed for event in self._writer.add(delta)])

    def _is_large(self, indexed: list[Indexed]) -> bool:
        return self._repeats_much and any(delta.finished for _, delta in indexed)

    async def _end(self) -> bytes:
        return await self._encoded(await self._writer.end())

    async def _failed(self, error: ApiError) -> bytes:
        return await self._encoded(self._writer.failed(self._translation.refusal(error)))

    async def _encoded(self, events: Sequence[Event]) -> bytes:
        return await encoded(self._written, events, is_large=self._repeats_much)

    def _written(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._framed, events))

    def _framed(self, event: Event) -> bytes:
        name = f"event: {event['type']}\n".encode()
        body = write_json(event)
        if self._unit > 1:
            body = padded(body, self._unit, len(name) + len(DATA) + len(END))
        return name + DATA + body + END
