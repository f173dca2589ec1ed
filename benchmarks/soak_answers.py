"""Reads answers of the server, whole or streamed, and judges every one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from soak_http import Reply
from soak_traffic import Ask, Bad

ENDED = ("stop", "tool_calls")  # of itself
REASONS = (*ENDED, "length")


class Problem(Exception):
    """Something that is not the client's fault."""


@dataclass(slots=True)
class Answer:
    """What one good request was told: a text and a reason to end for each choice."""

    id: str
    texts: list[str]
    reasons: list[str | None]
    tokens: int
    metrics: dict[str, Any]
    ttft: float | None = None  # of streams, in seconds, as the client saw it
    tpot: float | None = None

    def same(self, other: Answer) -> bool:
        return (self.texts, self.reasons) == (other.texts, other.reasons)


def whole(ask: Ask, reply: Reply) -> Answer:
    """Judges an answer in one piece."""
    told = json.loads(reply.body)
    answer = Answer(
        id=told["id"],
        texts=[_text(choice) for choice in told["choices"]],
        reasons=[choice["finish_reason"] for choice in told["choices"]],
        tokens=told["usage"]["completion_tokens"],
        metrics=told["metrics"],
    )
    return _judged(ask, answer)


def streamed(ask: Ask, reply: Reply) -> Answer:
    """Judges a stream: well-formed events, an end for each choice, usage, and [DONE] at last."""
    *choices, usage = _events(reply.body)
    answer = Answer(
        id=usage["id"],
        texts=[""] * ask.choices,
        reasons=[None] * ask.choices,
        tokens=usage["usage"]["completion_tokens"],
        metrics=usage["metrics"],
        ttft=reply.first - reply.started,
    )
    if usage["choices"]:
        raise Problem("the last event of a stream is not its usage")
    for event in choices:
        if event["id"] != answer.id:
            raise Problem(f"an event of {event['id']} in the stream of {answer.id}")
        for choice in event["choices"]:
            _add(answer, choice)
    if answer.tokens > 1 and ask.choices == 1:  # side by side, choices share the time
        answer.tpot = (reply.last - reply.first) / (answer.tokens - 1)
    return _judged(ask, answer)


def check_refusal(bad: Bad, reply: Reply) -> None:
    if reply.status != bad.status:
        raise Problem(f"{reply.status}, not {bad.status}: {reply.body[:300]!r}")
    error = json.loads(reply.body)["error"]
    if error["param"] != bad.param or not error["message"]:
        raise Problem(f"refused for {error['param']!r}, not for {bad.param!r}: {error['message']}")


def check_rounds(answer: Answer, rounds: dict[str, Any]) -> None:
    """What the rounds of an explained request committed is what its usage counts."""
    committed = sum(
        len(entry["committed_tokens"]) for choice in rounds["choices"] for entry in choice["rounds"]
    )
    if rounds["id"] != answer.id or committed != answer.tokens:
        raise Problem(f"rounds of {rounds['id']} hold {committed} of {answer.tokens} tokens")


def _events(body: bytes) -> list[dict[str, Any]]:
    *blocks, done, end = body.split(b"\n\n")
    if done != b"data: [DONE]" or end:
        raise Problem(f"a stream ends with {body[-200:]!r}")
    events = []
    for block in blocks:
        if not block.startswith(b"data: {"):
            raise Problem(f"no event: {block[:200]!r}")
        event = json.loads(block.removeprefix(b"data: "))
        if "error" in event:
            raise Problem(f"a stream tells an error: {event['error']}")
        events.append(event)
    return events


def _add(answer: Answer, choice: dict[str, Any]) -> None:
    index = choice["index"]
    if answer.reasons[index] is not None:
        raise Problem(f"choice {index} of {answer.id} goes on after its end")
    answer.texts[index] += _text(choice)
    answer.reasons[index] = choice["finish_reason"]


def _text(choice: dict[str, Any]) -> str:
    """Return the text and the arguments of calls, of an answer or an event of either endpoint."""
    said = choice.get("message") or choice.get("delta") or choice
    calls = "".join(call["function"]["arguments"] for call in said.get("tool_calls") or ())
    return f"{said.get('content') or said.get('text') or ''}{calls}"


def _judged(ask: Ask, answer: Answer) -> Answer:
    if len(answer.texts) != ask.choices or not set(answer.reasons) <= set(REASONS):
        raise Problem(f"{ask.choices} choices ended by {answer.reasons}")
    if answer.tokens > ask.choices * ask.body["max_tokens"]:
        raise Problem(f"{answer.tokens} tokens for max_tokens {ask.body['max_tokens']}")
    for text, reason in zip(answer.texts, answer.reasons, strict=True):
        if ask.fits is not None and reason in ENDED:
            _check_fit(ask, text)
    return answer


def _check_fit(ask: Ask, text: str) -> None:
    try:
        fits = ask.fits is None or ask.fits(text)
    except Exception as error:
        raise Problem(f"{text!r} does not conform: {error}") from error
    if not fits:
        raise Problem(f"{text!r} does not conform")
