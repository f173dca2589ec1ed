"""The arguments of a tool call, read as JSON from the text of a model while it streams."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from paceline.engine.tool_formats import ValueTags
from paceline.engine.tool_values import value_json

ArgumentSchemas = Mapping[str, Mapping[str, object]]  # of each argument, by its name


class JsonArguments:
    """Reads one JSON object, which may come in pieces."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    def feed(self, pending: str) -> tuple[str, str, bool]:
        """Return the JSON in `pending`, what comes behind it, and whether it has ended."""
        pending = pending if self._depth else pending.lstrip()
        end = next((i for i, c in enumerate(pending, 1) if self._closes(c)), None)
        if end is None:
            return pending, "", False
        return pending[:end], pending[end:], True

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


class TaggedArguments:
    """Reads arguments between tags, and writes them as one JSON object: each when it has ended."""

    def __init__(self, tags: ValueTags, schemas: ArgumentSchemas) -> None:
        self._tags, self._schemas, self._begun = tags, schemas, False

    def feed(self, pending: str) -> tuple[str, str, bool]:
        """Return the JSON of the arguments in `pending`, what comes behind them, and whether they
        have ended."""
        text, closing = "", self._tags.closing
        while closing in pending and (argument := _argument(self._tags).match(pending)):
            key, value = argument[1], value_json(argument[2], self._schemas.get(argument[1]))
            text += f"{', ' if self._begun else '{'}{json.dumps(key)}: {value}"
            self._begun, pending = True, pending[argument.end() :]
        opening, rest = self._tags.opening, pending.lstrip()
        if len(rest) < len(opening) or rest.startswith(opening):
            return text, pending, False
        return f"{text}{'' if self._begun else '{'}}}", pending, True


@cache
def _argument(tags: ValueTags) -> re.Pattern[str]:
    """Return the expression of one argument. Its value ends at the whole closing text, line breaks
    included, as in the grammar: a value may hold `</parameter>` within a line."""
    opening, between = re.escape(tags.opening.strip()), re.escape(tags.between.strip())
    closing = re.escape(tags.closing)
    return re.compile(rf"\s*{opening}([^<>=\n]+){between}\n?(.*?){closing}", re.DOTALL)
