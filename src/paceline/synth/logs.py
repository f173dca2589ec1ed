"""Logs of chat requests, as OpenAI-compatible APIs take them, whose users agreed to their use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import NonEmpty

ROLES = {"developer": "system"}  # the newer name of a role, by the one that templates know
EXPECTED = (
    'a file whose first line says who agreed, to what and when: {"consent": {"by": "customers of '
    'shop.example", "to": "training on their requests", "date": "2026-01-31"}}'
)


class Consent(Document):
    """The consent of the users whose requests are in a file."""

    by: NonEmpty
    to: NonEmpty
    date: NonEmpty


def read_consent(path: Path, name: str) -> str:
    """Return the consent that a file states, in one line. Raises InvalidRequest (field `path`) for
    a file without it."""
    try:
        with open(path, encoding="utf-8") as file:
            stated = json.loads(file.readline())["consent"]
        consent = Consent.read(stated)
    except (OSError, ValueError, KeyError, TypeError, InvalidRequest) as error:
        told = f" ({error})" if isinstance(error, InvalidRequest | OSError) else ""
        raise InvalidRequest("path", name, EXPECTED + told) from error
    return f"consent of {consent.by}, {consent.date}: {consent.to}"


def logged_messages(text: str, name: str, dropped: Counter[str]) -> Iterator[object]:
    """Yield the messages of each request behind the first line, as templates take them. Raises
    InvalidRequest for a line that is no JSON."""
    for number, line in enumerate(text.split("\n")[1:], 2):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            expected = f"a JSON object on each line; {name}, line {number}: {error}"
            raise InvalidRequest("path", name, expected) from error
        body = record.get("body", record) if isinstance(record, dict) else None
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list):
            dropped["no_field"] += 1
            continue
        yield [_message(message) for message in messages]


def _message(message: object) -> object:
    """Return a message with its text in one piece; one that holds more than text stays as it is,
    and no prompt is made of it."""
    if not isinstance(message, dict):
        return message
    content, role = message.get("content"), message.get("role")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) == len(content):
            content = "".join(strings)
    return {"role": ROLES.get(role, role) if isinstance(role, str) else role, "content": content}
