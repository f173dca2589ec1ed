"""Published measurements: the points that a preset was fitted to, and those that judge it.

`published.json` holds them with their sources. Speedups are end to end, with the prompts and the
ends of runs in them, as their authors measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.field_types import AtMost

Rates = Annotated[list[float], AtMost(64, "numbers")]


class PublishedRow(Document):
    """One line of a table, by batch. Without a drafter it is plain decoding; `draft_length` counts
    drafted tokens, `acceptance_length` the bonus token too."""

    model_config = ConfigDict(frozen=True)

    set: str
    drafter: str | None
    config: str | None = None
    draft_length: int = 0
    acceptance_length: float = 1.0
    tokens_per_second: Rates | None = None
    speedup: Rates | None = None


class PublishedTable(Document):
    """The measurements of one source; `tokens_per_second` are of all requests together. A preset
    was fitted to the tables that say `fitted`."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    url: str | None = None
    setup: str
    model: str
    hardware: str
    tensor_parallel: int = 1
    context: int
    batch: list[int]
    fitted: bool = False
    rows: list[PublishedRow] = Field(min_length=1)

    def speedups(self, row: PublishedRow) -> list[float] | None:
        """Return the speedups of a row over plain decoding; None where they were not published."""
        if row.speedup is not None or row.drafter is None:
            return row.speedup
        plain = [r for r in self.rows if r.drafter is None and r.set == row.set]
        if not plain or plain[0].tokens_per_second is None or row.tokens_per_second is None:
            return None
        pairs = zip(row.tokens_per_second, plain[0].tokens_per_second, strict=True)
        return [fast / slow for fast, slow in pairs]

    def series(self) -> Iterator[PublishedRow]:
        """Yield the rows averaged over the sets: those of one drafter at one draft length."""
        groups: dict[tuple[str | None, int], list[PublishedRow]] = {}
        for row in self.rows:
            groups.setdefault((row.drafter, row.draft_length), []).append(row)
        for rows in groups.values():
            rates = [row.tokens_per_second for row in rows if row.tokens_per_second is not None]
            ratios = [listed for row in rows if (listed := self.speedups(row)) is not None]
            al = float(np.mean([row.acceptance_length for row in rows]))
            yield rows[0].model_copy(
                update={
                    "set": f"mean of {len(rows)} sets" if len(rows) > 1 else rows[0].set,
                    "acceptance_length": al,
                    "tokens_per_second": np.mean(rates, axis=0).tolist() if rates else None,
                    "speedup": np.mean(ratios, axis=0).tolist() if ratios else None,
                }
            )

    def drafter(self, row: PublishedRow) -> dict[str, object]:
        """Return the drafter of a row (`StatedDrafter`); the ideal one for plain decoding."""
        if row.drafter is None:
            return {"kind": "ideal"}
        acceptance = {"al": row.acceptance_length, "draft_length": row.draft_length}
        config = {} if row.config is None else {"config": drafter_config(row.config)}
        return {"kind": row.drafter, "acceptance": acceptance, **config}

    def scenario(self, row: PublishedRow, batch: int) -> dict[str, object]:
        """Return the scenario (`StatedScenario`) whose prediction a row is to be compared with, at
        one of the batches."""
        return {
            "model": self.model,
            "hardware": self.hardware,
            "tensor_parallel": self.tensor_parallel,
            "context": self.context,
            "batch": batch,
            "batches": [],
            "max_draft": max(row.draft_length, 1),
            "drafters": [self.drafter(row)],
        }


@cache
def _loaded() -> dict[str, object]:
    text = resources.files(__package__).joinpath("published.json").read_text("utf-8")
    loaded: dict[str, object] = json.loads(text)
    return loaded


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return every published table."""
    tables = _loaded()["tables"]
    assert isinstance(tables, list)
    return tuple(PublishedTable.read(table, "published") for table in tables)


def drafter_config(name: str) -> dict[str, object]:
    """Return the config of a drafter that published tables name."""
    configs = _loaded()["drafters"]
    assert isinstance(configs, dict)
    config: dict[str, object] = configs[name]
    return config
