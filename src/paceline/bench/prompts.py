"""Prompt sets: those that are shipped, and files in the forms that data sets have.

A file is a JSON list, JSONL (one record a line) or plain text (one prompt a line). A record is a
text, or an object with one of:

prompt          a text, asked as a user's message
turns           texts, of which the first is asked
messages        [{"role": ..., "content": ...}], OpenAI's; an answer at the end is left out
conversations   [{"from": "human", "value": ...}], ShareGPT's, read in the same way

`name` and `kind` of a record appear in tables; other fields may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.core.names import local_path

Message = dict[str, str]
RECORD = (
    'a text, or an object with "prompt" (text), "turns" (texts; the first is asked), "messages" '
    '(with "role" and "content") or "conversations" (ShareGPT\'s "from" and "value")'
)
# Who speaks in ShareGPT's files, and the role that is sent.
SHAREGPT_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "bing": "assistant", "bard": "assistant", "system": "system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A conversation to be answered. `kind` groups prompts that speculation treats alike."""

    name: str
    kind: str
    messages: tuple[Message, ...]


def shipped() -> list[str]:
    """Return the names of the prompt sets that come with the package."""
    folder = resources.files("paceline.bench") / "prompts"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".json"))


def load_prompts(name: str, field: str = "prompts") -> list[BenchPrompt]:
    """Read a shipped set by name, or a file of prompts.

    Raises InvalidRequest, naming `field`, for an unknown name, and with the place in the file for a
    record of another shape.
    """
    if name in shipped():
        text = (resources.files("paceline.bench") / "prompts" / f"{name}.json").read_text("utf-8")
        return _prompts(name, f"{name}.json", text, field)
    try:
        return _prompts(name, name, local_path(name, field).read_text("utf-8"), field)
    except FileNotFoundError:
        expected = f"a file of prompts (JSON, JSONL or text), or one of {', '.join(shipped())}"
        raise InvalidRequest(field, name, expected) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(field, name, f"a readable file in UTF-8 ({error})") from error


def _prompts(name: str, file: str, text: str, field: str) -> list[BenchPrompt]:
    stem, records = Path(file).stem, _records(file, text, field)
    prompts = []
    for number, record in records:
        messages = conversation_of(record)
        if messages is None:
            raise InvalidRequest(field, f"{file}:{number}", RECORD)
        told = record if isinstance(record, dict) else {}
        names = [told.get(key) for key in ("name", "kind")]
        own, kind = (str(value) if isinstance(value, str | int) else "" for value in names)
        prompts.append(BenchPrompt(own or f"{stem}#{number}", kind or stem, tuple(messages)))
    if not prompts:
        raise InvalidRequest(field, name, "a non-empty file: at least one prompt")
    return prompts


def _records(file: str, text: str, field: str) -> Iterator[tuple[int, object]]:
    """Yield each record with its number: of the line, or of the item in a JSON list."""
    if file.endswith(".json"):
        try:
            records = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(field, file, f"a JSON list of records ({error})") from error
        if not isinstance(records, list):
            raise InvalidRequest(field, file, f"a JSON list; each item {RECORD}")
        yield from enumerate(records, 1)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and file.endswith(".jsonl"):
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise InvalidRequest(field, f"{file}:{number}", f"{RECORD}; {error}") from error
        elif line.strip():
            yield number, line.strip()


def conversation_of(record: object) -> list[Message] | None:
    """Return what a record asks, up to the last message that is not an answer; None where it asks
    nothing."""
    if isinstance(record, str):
        record = {"prompt": record}
    if not isinstance(record, dict):
        return None
    turns, prompt = record.get("turns"), record.get("prompt")
    if isinstance(turns, list) and turns:
        prompt = turns[0]
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    said = record.get("messages")
    if not isinstance(said, list):
        said = [_from_sharegpt(item) for item in _listed(record.get("conversations"))]
    if not all(isinstance(message, dict) and _is_message(message) for message in said):
        return None
    while said and said[-1]["role"] == "assistant":
        said = said[:-1]  # an answer in a data set; the target gives its own
    return [dict(message) for message in said] or None


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _from_sharegpt(item: object) -> object:
    """Return a ShareGPT turn as a message; return any other item unchanged."""
    if not isinstance(item, dict):
        return item
    speaker = str(item.get("from")).lower()
    return {"role": SHAREGPT_ROLES.get(speaker), "content": item.get("value")}


def _is_message(message: Mapping[str, object]) -> bool:
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
