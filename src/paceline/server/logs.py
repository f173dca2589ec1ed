"""Write log lines in a thread of their own, as text or as JSON.

A log whose reader has stopped, such as a terminal that is held, must not stop the server. Lines
wait in a bounded queue; those beyond it are counted and left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

MOST_LINES = 10_000  # that wait to be written
PAUSE = 0.05  # seconds from a line until it is written, with those that came meanwhile
LAST_LINES = 2.0  # seconds that they get at the end
TEXT = "%(asctime)s %(levelname)s %(message)s"
PLAIN = re.compile(r"[^\s\"=]+")  # values that the text log writes without quotes
Fields = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A line of the log, which the log's own thread writes as text or JSON."""

    fields: Fields

    def __str__(self) -> str:
        fields = dict(self.fields)
        head = [str(fields.pop(name)) for name in ("client", "method", "path", "status")]
        return " ".join([*head, *(f"{name}={_quoted(value)}" for name, value in fields.items())])


def _quoted(value: str | int | float) -> str:
    """Return a value as the text log has it: as JSON where a reader could take it for more."""
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """Writes a line as one JSON object; the fields of a request are members of their own."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, RequestLine):
            entry |= {"message": "request", **record.msg.fields}
        else:
            entry["message"] = record.getMessage()
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)

    converter = staticmethod(time.gmtime)


class Lines(logging.Handler):
    """Keeps records until a thread of its own hands them to `target`, several at a time.

    To wake a thread for each line would cost more than the line does.
    """

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self._target = target
        self._waiting = deque[logging.LogRecord]()
        self._left_out = 0
        self._ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= MOST_LINES:
            self._left_out += 1
            return
        self._waiting.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what waits, for LAST_LINES seconds at most."""
        self._ended = True
        self._wake.set()
        self._thread.join(LAST_LINES)
        super().close()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait()
            if not self._ended:
                time.sleep(PAUSE)
            self._wake.clear()
            while self._waiting:
                self._target.handle(self._waiting.popleft())
            if self._left_out:
                count, self._left_out = self._left_out, 0
                text = "%d lines of the log were left out: they were written too slowly"
                level = logging.WARNING
                made = logging.LogRecord("paceline", level, "", 0, text, (count,), None)
                self._target.handle(made)


@contextlib.contextmanager
def logging_to(stream: TextIO | None = None, *, level: str, style: str) -> Iterator[None]:
    """Write the log to `stream` (default: stderr) while the context lasts.

    `level` and `style` are as in ServerSettings.
    """
    target = logging.StreamHandler(stream or sys.stderr)
    target.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT))
    handler = Lines(target)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    quieted = [logging.getLogger(name) for name in ("uvicorn", "httpx", "httpcore", "asyncio")]
    for logger in quieted:  # their own lines tell nothing new
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()
