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
        if last and self._pending and self._state == self._text:
            # A space before a call is no content; a space that ends the text is.
            if not self.calls or self._pending.strip():
                pieces.append(Piece(content=self._pending))
            self._pending = ""
        elif last and self._pending and self._state in (self._start, self._name):
            pieces.append(Piece(content=self._pending))
            self._pending = ""
        return pieces

    # -- states: each takes what it can from `_pending`, and says whether to go on ----------------

    def _start(self, pieces: list[Piece]) -> bool:
        """Decide from the first characters whether the answer consists of calls."""
        if not self._past_opening(0):
            return False
        self._state = self._name if self._pending[:1] in ("{", "") else self._text
        return True

    def _text(self, pieces: list[Piece]) -> bool:
        opening = self._format.opening.strip()
        at = -1 if self._format.optional_opening else self._pending.find(opening)
        if at >= 0:
            self._give(pieces, self._pending[:at].rstrip())
            self._pending = self._pending[at + len(opening) :]
            self._state = self._name
            return True
        keep = 0 if self._format.optional_opening else self._begun(opening)
        certain = self._pending[: len(self._pending) - keep].rstrip()
        self._give(pieces, certain)
        self._pending = self._pending[len(certain) :]
        return False

    def _begun(self, opening: str) -> int:
        """Length of the longest end of the text that `opening` begins with."""
        longest = min(len(opening) - 1, len(self._pending))
        return next((n for n in range(longest, 0, -1) if self._pending.endswith(opening[:n])), 0)

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
        for at, character in enumerate(self._pending):
            self._note(character)
            if self._depth == 0:
                self._argue(pieces, at + 1)
                self._state = self._tail
                return True
        self._argue(pieces, len(self._pending))
        return False

    def _note(self, character: str) -> None:
        """Count the open brackets outside strings."""
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

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

    # -- inside -----------------------------------------------------------------------------------

    def _give(self, pieces: list[Piece], text: str) -> None:
        if text and not (self.calls and not text.strip()):
            pieces.append(Piece(content=text))

    def _argue(self, pieces: list[Piece], end: int) -> None:
        if end:
            text, self._pending = self._pending[:end], self._pending[end:]
            self.calls[-1].arguments += text
            pieces.append(Piece(index=len(self.calls) - 1, arguments=text))
