"""Sizes and times of a stream's writes, from which a network may count the tokens of a round.

An event per round is as long as its text, so whoever sees encrypted packets can count the tokens of
each round and tell texts apart ("When Speculation Spills Secrets", arXiv 2411.01076). Two ways out:
events that are filled up to one size, and writes of one size at a fixed rate.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.types import Send

OTHER_BYTES = 160  # of an event without tokens: all but the head that all events share
TEXT_BYTES = 24  # a token's text in JSON; mostly it is 4 to 6, but a character may take 12
TOKEN_ID_BYTES = 8
LOGPROB_BYTES = 120  # one token with its bytes and its logarithm
ROUND_BYTES = 900  # the counts and times of a round
ROUND_TOKEN_BYTES = 150  # a token that was drafted, verified and committed
EVENT_UNIT, FRAME_UNIT = 128, 256
# What a stream of steady writes can carry without delay.
ROUNDS_PER_SECOND = 100
TOKENS_PER_SECOND = 400
LONGEST_FRAME = 256 * 2**10
SHORTEST_COMMENT = 3


@dataclass(frozen=True, slots=True)
class EventSizes:
    """Usual bytes of the events of one stream, as its request has asked for them: no secret."""

    event: int  # without tokens
    token: int  # what a token adds

    @classmethod
    def of(cls, head: int, *, logprobs: int | None, token_ids: bool, rounds: bool) -> EventSizes:
        """`head` is the bytes that all events begin with, `logprobs` the alternatives of each
        token, None without."""
        token = TEXT_BYTES + TOKEN_ID_BYTES * token_ids + ROUND_TOKEN_BYTES * rounds
        if logprobs is not None:
            token += LOGPROB_BYTES * (1 + logprobs)
        return cls(head + OTHER_BYTES + ROUND_BYTES * rounds, token)

    def unit(self, tokens: int) -> int:
        """Return a size that an event of so many tokens seldom passes."""
        return _rounded_up(self.event + tokens * self.token, EVENT_UNIT)

    def frame(self, seconds: float, streams: int) -> int:
        """Return the bytes to write every `seconds` to keep up with the decoding of `streams`."""
        per_second = ROUNDS_PER_SECOND * self.event + TOKENS_PER_SECOND * self.token
        size = _rounded_up(round(streams * seconds * per_second), FRAME_UNIT)
        return min(size, LONGEST_FRAME)


class Frames:
    """Events cut into frames of one size; what they do not fill, comments do.

    A comment is a block of its own, as an event is: also clients that split a stream at empty lines
    and look at the first word leave it out.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._pending = bytearray()

    def put(self, events: bytes) -> None:
        """Add complete events."""
        self._pending += events

    @property
    def has_events(self) -> bool:
        return bool(self._pending)

    def take(self) -> bytes:
        """Return the next frame. The end of a comment may be left for the one after it."""
        missing = self._size - len(self._pending)
        if missing > 0:
            self._pending += comment(max(missing, SHORTEST_COMMENT))
        frame = bytes(self._pending[: self._size])
        del self._pending[: self._size]
        return frame


def padded(chunk: bytes, unit: int, framing: int) -> bytes:
    """Pad a JSON object to a multiple of `unit` bytes, `framing` around it included, in OpenAI's
    field `obfuscation`."""
    length = len(joined(chunk, b'{"obfuscation":""}')) + framing
    return joined(chunk, b'{"obfuscation":"%b"}' % random_text(-length % unit))


def joined(first: bytes, second: bytes) -> bytes:
    """Return one JSON object with the members of two; neither is empty."""
    return first[:-1] + b"," + second[1:]


async def write_steadily(
    bodies: AsyncIterator[bytes],
    send: Send,
    frames: Frames,
    *,
    seconds: float,
    is_gone: Callable[[], bool],
) -> None:
    """Write a frame every so many seconds from now until the events have ended and are written,
    whenever they come. A client that is gone gets no more."""
    reading = asyncio.create_task(_collect(bodies, frames))
    loop = asyncio.get_running_loop()
    due = loop.time()
    try:
        while not is_gone() and (frames.has_events or not reading.done()):
            due = max(due + seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            await send({"type": "http.response.body", "body": frames.take(), "more_body": True})
        if reading.done():
            reading.result()  # raises what went wrong
    finally:
        reading.cancel()


async def _collect(bodies: AsyncIterator[bytes], frames: Frames) -> None:
    async for body in bodies:
        frames.put(body)


def comment(length: int) -> bytes:
    """Return a server-sent comment of so many bytes, at least 3, as a block of its own."""
    return b":" + random_text(length - SHORTEST_COMMENT) + b"\n\n"


def random_text(length: int) -> bytes:
    """Return random characters that JSON takes as they are, and that do not compress."""
    return base64.urlsafe_b64encode(os.urandom(length * 3 // 4 + 1))[:length]


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
