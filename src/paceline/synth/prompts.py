"""Prompts, each with a key that is the same wherever the prompt comes from."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

Name = TypeVar("Name")
Message = dict[str, str]
Tool = Mapping[str, object]
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class SourcePrompt:
    """A conversation that ends with the user's turn. `place` is its place in its source. `origin`
    is what it was made from, as others were: a phrase, a beginning, or # and the key of another
    prompt; "" where there is none. It is sent with its own `tools`, as OpenAI writes them, instead
    of the application's."""

    messages: tuple[Message, ...]
    place: str
    key: str
    origin: str = ""
    tools: tuple[Tool, ...] = ()

    @property
    def text(self) -> str:
        """The last turn of the user."""
        return self.messages[-1]["content"]

    @property
    def family(self) -> str:
        """The origin of prompts that are made from this one."""
        return self.origin or f"#{self.key}"


def make_prompt(
    value: object, place: str, origin: str = "", tools: tuple[Tool, ...] = ()
) -> SourcePrompt | None:
    """Make a prompt of a text, or of a list of messages, which is cut behind the user's last turn.
    Return None for any other value."""
    if isinstance(value, str):
        messages = [{"role": "user", "content": value.strip()}]
    elif isinstance(value, list):
        messages = [{"role": m["role"], "content": m["content"]} for m in value if _is_message(m)]
        if len(messages) < len(value):
            return None
        while messages and messages[-1]["role"] != "user":
            messages.pop()
    else:
        return None
    if not messages or not messages[-1]["content"].strip():
        return None
    try:
        "".join(message["content"] for message in messages).encode()
    except UnicodeError:  # half a surrogate pair, which JSON can escape
        return None
    return SourcePrompt(tuple(messages), place, prompt_key(messages), origin, tools)


def prompt_key(messages: Sequence[Message]) -> str:
    """Return a digest that ignores case, spacing and the form of characters."""
    parts = [f"{m['role']}:{normalised(m['content'])}" for m in messages if m["role"] != "system"]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def normalised(text: str) -> str:
    if text.isascii():
        return " ".join(text.lower().split())  # the same, and most prompts are ASCII
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def share_of(key: str) -> float:
    """Return a number in [0, 1): evenly spread over keys, and always the same for one key."""
    return int(key[:13], 16) / 16**13  # what a float holds exactly: never rounded up to 1


def keyed(*parts: object) -> int:
    """Return 63 bits for seeds and orders: evenly spread, and always the same for equal parts."""
    text = "\x1f".join(map(str, parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # other servers take signed seeds


def drawn(shares: Mapping[Name, float], *parts: object) -> Name:
    """Draw a name by its share: always the same for equal parts."""
    place = keyed(*parts) / 2**63 * sum(shares.values())
    for name, share in shares.items():
        place -= share
        if place < 0:
            return name
    return list(shares)[-1]  # where the sum was rounded


def _is_message(value: object) -> TypeGuard[Message]:
    return (
        isinstance(value, dict)
        and value.get("role") in ROLES
        and isinstance(value.get("content"), str)
    )
