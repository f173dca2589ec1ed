"""Files that are whole at any moment: written beside their place, and moved there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str, *, durable: bool = False) -> None:
    """Put a file in place in one step. `durable` waits until it would survive a power failure."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json.dumps(value, indent=1) + "\n")
