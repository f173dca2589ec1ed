"""Count of an answer the text up to its end, and up to where it starts to loop."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from paceline.dataset.loops import loop_start

FEWEST = 8  # tokens of an answer that is worth timing


def ends_of(model: str) -> set[int]:
    """Return the token ids that end a text, from the files of a Hugging Face folder."""
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = Path(model) / name
        if path.exists():
            found = json.loads(path.read_text()).get("eos_token_id")
            ends.update(found if isinstance(found, list) else [] if found is None else [found])
    return ends


def counted(tokens: Sequence[int], ends: Collection[int]) -> int:
    """Return how many tokens come before the end of the text and before a loop."""
    length = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    start = loop_start(tokens[:length])
    return length if start is None else start


def seconds_to(marks: Sequence[tuple[float, int]], count: int) -> float:
    """Return when `count` tokens were there; `marks` are (seconds, tokens by then)."""
    return next(at for at, tokens in marks if tokens >= count)
