"""A prompt, and the key by which it is known wherever it comes from."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with the user's turn. `place` is where in its source it stood."""

    messages: tuple[Message, ...]
    place: str
    key: str

    @property
    def text(self) -> str:
        """What the user says last."""
        return self.messages[-1]["content"]


def make_prompt(value: Any, place: str) -> Prompt | None:
    """From a text, or a list of messages whose last words are the user's: answers behind those are
    left out. None for anything else."""
    if isinstance(value, str):
        messages = [{"role": "user", "content": value.strip()}]
    elif isinstance(value, list) and all(map(_is_message, value)):
        messages = [{"role": m["role"], "content": m["content"]} for m in value]
        while messages and messages[-1]["role"] != "user":
            messages.pop()
    else:
        return None
    if not messages or not messages[-1]["content"].strip():
        return None
    if not all(_is_unicode(message["content"]) for message in messages):
        return None
    return Prompt(tuple(messages), place, prompt_key(messages))


def prompt_key(messages: Sequence[Message]) -> str:
    """Equal for prompts that differ in case, spacing or the form of their characters alone."""
    parts = [f"{m['role']}:{normalised(m['content'])}" for m in messages if m["role"] != "system"]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def share_of(key: str) -> float:
    """A number in [0, 1), spread evenly over keys and the same for ever for one."""
    return int(key[:13], 16) / 16**13  # what a float holds exactly: never rounded up to 1


def keyed(*parts: object) -> int:
    """63 bits, spread evenly and always the same for the same parts: seeds and orders."""
    text = "\x1f".join(map(str, parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # other servers take signed seeds


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in ROLES
        and isinstance(value.get("content"), str)
    )


def _is_unicode(text: str) -> bool:
    """Half a surrogate pair, which JSON can escape, is no text."""
    try:
        text.encode()
    except UnicodeError:
        return False
    return True
