"""All bytes that a process writes into files while it is watched, and a search of them."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

WINDOW = 6  # token ids in a row: fewer may stand anywhere by chance
SHORTEST = 12  # characters of base64: fewer may stand anywhere by chance too
WRITING = os.O_WRONLY | os.O_RDWR
_watching: list[WrittenBytes] = []
_hooked: list[bool] = []


class WrittenBytes:
    """The content of every file that was opened for writing: what it held when it was renamed,
    deleted or opened anew, and what it holds at the end."""

    def __init__(self) -> None:
        self.content: list[bytes] = []
        self.paths: set[str] = set()
        self._reading = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an event of Python's audit."""
        if self._reading or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.fspath(arguments[0])
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._keep(path)
            self.paths.add(str(path))
        elif event in ("os.rename", "os.remove", "os.link", "os.truncate"):
            self._keep(path)
            if event in ("os.rename", "os.link"):
                self.paths.add(os.fspath(arguments[1]))

    def end(self) -> None:
        for path in self.paths:
            self._keep(path)

    def _keep(self, path: str) -> None:
        if str(path) in self.paths and os.path.isfile(path):
            self._reading = True
            try:
                self.content.append(Path(path).read_bytes())
            finally:
                self._reading = False

    @property
    def searched(self) -> bytes:
        """The bytes as they are, and what Parquet files among them hold without compression."""
        return b"\n".join([*self.content, *filter(None, map(_plain, set(self.content)))])


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watching in _watching:
        watching.note(event, arguments)


@contextmanager
def written() -> Iterator[WrittenBytes]:
    """Watch what this process writes from Python."""
    if not _hooked:
        sys.addaudithook(_hook)  # for ever: there is no way to take it out
        _hooked.append(True)
    watching = WrittenBytes()
    _watching.append(watching)
    try:
        yield watching
    finally:
        _watching.remove(watching)
        watching.end()


def forms_of(ids: Sequence[int]) -> dict[str, bytes]:
    """Token ids in the forms in which somebody may have written them."""
    small = max(ids) < 256
    forms = {
        f"{size} bytes, {order}": b"".join(token.to_bytes(size, order) for token in ids)
        for size in (2, 4, 8)
        for order in ("little", "big")
    }
    forms |= {"single bytes": bytes(ids)} if small else {}
    forms |= {
        f"decimals, {joint!r}": joint.join(map(str, ids)).encode()
        for joint in (", ", ",", " ", "\n", ";")
    }
    forms["hexadecimal"] = forms["4 bytes, little"].hex().encode()
    forms["varints"] = b"".join(map(_varint, ids))
    for skipped in range(3):
        encoded = base64.b64encode(bytes(skipped) + forms["4 bytes, little"])
        forms[f"base64, {skipped}"] = encoded[4:-4]
    return forms


def found_ids(searched: bytes, ids: Sequence[int]) -> set[str]:
    """The forms in which any WINDOW of token ids in a row stands there."""
    windows = [ids[start : start + WINDOW] for start in range(len(ids) - WINDOW + 1)]
    return {
        form for window in windows for form, data in forms_of(window).items() if data in searched
    }


def found_text(searched: bytes, text: str) -> set[str]:
    """The forms in which a text stands there."""
    forms = {name: text.encode(name) for name in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le")}
    forms |= {
        "escaped": json.dumps(text)[1:-1].encode(),
        "hexadecimal": text.encode().hex().encode(),
    }
    for skipped in range(3):
        encoded = base64.b64encode(b"x" * skipped + text.encode())[4:-4]
        if len(encoded) >= SHORTEST:
            forms[f"base64, {skipped}"] = encoded
    return {name for name, data in forms.items() if data in searched}


def _plain(data: bytes) -> bytes | None:
    """A Parquet file's columns as plain bytes and as JSON; None for any other file."""
    if not data.startswith(b"PAR1"):
        return None
    table, sink = parquet.read_table(io.BytesIO(data)), io.BytesIO()
    parquet.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue() + json.dumps(table.to_pylist()).encode()


def _varint(number: int) -> bytes:
    parts = []
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])
