"""Tool calls in the text of a model, found while the text streams."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field

from paceline.engine.tool_calls import ToolFormat


@dataclass(slots=True)
class Call:
    """A call of a tool: `arguments` is JSON text, complete once the call has ended."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass(slots=True)
class Piece:
    """Text added to the content, or to call `index`. `begins` marks a call's first piece."""

    content: str = ""
    index: int = -1
    arguments: str = ""
    begins: bool = False


class CallParser:
    """Splits one stream of text into content and calls, which a grammar keeps well-formed."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self.calls: list[Call] = []
        self._format = tool_format
        key = re.escape(f', "{tool_format.arguments}": ')
        self._head = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*")' + key)
        self._pending = ""
        self._state = self._start if tool_format.optional_opening else self._text
        self._depth, self._quoted, self._escaped = 0, False, False

    def feed(self, text: str, *, last: bool = False) -> list[Piece]:
        """Return the pieces that `text` completes; with `last`, also all that is left."""
        self._pending += text
        pieces: list[Piece] = []
        while self._pending and self._state(pieces):
            pass
        if last and self._state in (self._start, self._text, self._name):
            self._give(pieces, self._pending, keep=self._state != self._text)
            self._pending = ""
        return pieces

    # -- states: each takes what it can from `_pending`, and says whether to go on ----------------

    def _start(self, pieces: list[Piece]) -> bool:
        if not self._past_opening(0):
            return False
        self._state = self._name if self._pending[:1] in ("{", "") else self._text
        return True

    def _text(self, pieces: list[Piece]) -> bool:
        # with an optional opening the whole answer is calls, or none of it
        opening = "" if self._format.optional_opening else self._format.opening.strip()
        text, found, rest = self._pending.partition(opening) if opening else (self._pending, "", "")
        if found:
            self._give(pieces, text.rstrip())
            self._pending, self._state = rest, self._name
            return True
        # the longest end of the text that the opening begins with may be the start of a call
        begun = next(n for n in range(len(opening), -1, -1) if text.endswith(opening[:n]))
        certain = text[: len(text) - begun].rstrip()
        self._give(pieces, certain)
        self._pending = text[len(certain) :]
        return False

    def _name(self, pieces: list[Piece]) -> bool:
        head = self._head.match(self._pending)
        if head is None:
            return False
        self.calls.append(Call(json.loads(head[1])))
        pieces.append(Piece(index=len(self.calls) - 1, begins=True))
        self._pending = self._pending[head.end() :]
        self._state = self._arguments
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = next((i for i, c in enumerate(self._pending, 1) if self._closes(c)), None)
        text, self._pending = self._pending[:end], "" if end is None else self._pending[end:]
        self.calls[-1].arguments += text
        pieces.append(Piece(index=len(self.calls) - 1, arguments=text))
        if end is None:
            return False
        self._state = self._tail
        return True

    def _closes(self, character: str) -> bool:
        """Count the open brackets outside strings; return whether `character` closes the last."""
        if self._escaped:
            self._escaped = False
        elif self._quoted and character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += (character in "{[") - (character in "}]")
        return self._depth == 0

    def _tail(self, pieces: list[Piece]) -> bool:
        """Skip the end of a call and the separator before the next call."""
        tail = "}" + self._format.closing
        if not self._pending.startswith(tail):
            return False
        self._pending = self._pending[len(tail) :]
        self._state = self._between if self._format.optional_opening else self._text
        return True

    def _between(self, pieces: list[Piece]) -> bool:
        separator = self._format.separator
        if not (self._pending.startswith(separator) and self._past_opening(len(separator))):
            return False
        self._state = self._name
        return True

    def _past_opening(self, start: int) -> bool:
        """Skip an opening that may stand at `start`; return False until enough text is there."""
        opening, rest = self._format.opening, self._pending[start:]
        if opening.startswith(rest) and rest != opening:
            return False
        self._pending = rest.removeprefix(opening)
        return True

    def _give(self, pieces: list[Piece], text: str, *, keep: bool = False) -> None:
        """Add content. A space beside a call is none, except where `keep` says so."""
        if text and (keep or not self.calls or text.strip()):
            pieces.append(Piece(content=text))
