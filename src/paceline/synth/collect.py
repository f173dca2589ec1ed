"""The set as it grows: answers are taken in the order of the plan, duplicates are dropped, and
shards are written."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from paceline.core import PacelineError
from paceline.dataset.training_set import (
    SPLITS,
    Manifest,
    Split,
    TrainingRow,
    read_rows,
    write_manifest,
    write_shard,
)
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.plan import Item, split_of

PROMPTS = "prompts"  # count of the items of the plan that are done: a resumed run goes on there


class CannotWrite(PacelineError):
    """The folder cannot be written to, usually because the disk is full. Written shards stay."""


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """The outcome of an item: a row, or the reason why there is none."""

    item: Item
    key: str | None = None
    row: TrainingRow | None = None
    reason: str | None = None


class Collector:
    """The set as it grows. The rows that it keeps depend only on the outcomes, their order and the
    rows in the folder: a killed run ends with the same set."""

    def __init__(self, folder: Path, manifest: Manifest, app: App) -> None:
        self.folder, self.manifest, self.app = folder, manifest, app
        self.counts = Counter(manifest.counts)
        self._sources: dict[str, str] = {}
        self._keys: set[str] = set()
        self._answers: Counter[bytes] = Counter()
        self._rows: dict[Split, list[TrainingRow]] = {split: [] for split in SPLITS}
        self._since = 0
        for split in SPLITS:
            for row in read_rows(folder, split):
                self._remember(row)

    @property
    def done(self) -> int:
        """The number of items of the plan that were taken."""
        return self.counts[PROMPTS]

    @property
    def amount(self) -> int:
        """The size of the set, in the unit of the application's size."""
        return self.counts[self.app.size.unit]

    @property
    def complete(self) -> bool:
        return self.amount >= self.app.size.amount

    @property
    def pending(self) -> int:
        """The number of items that no shard holds yet."""
        return self._since

    def known(self, item: Item, key: str) -> bool:
        """Return whether the set has the prompt already, from another source or as the same
        sample."""
        other = self._sources.get(key)
        if other is None:
            return False
        return other != item.spec.name or _row_key(key, item.sample) in self._keys

    def take(self, outcome: ItemOutcome) -> None:
        """Take the next item of the plan, and write shards when enough have come, or all."""
        self.counts[PROMPTS] += 1
        self._since += 1
        row, reason = outcome.row, outcome.reason
        if outcome.key is not None and self.known(outcome.item, outcome.key):
            reason = "duplicate_prompt"
        elif row is not None and self._answers[_answer(row)] >= self.app.same_answer:
            reason = "duplicate_answer"
        if reason is not None:
            self.counts[reason] += 1
        elif row is not None and outcome.key is not None:
            self._keep(row, outcome.key)
        if self._since == self.app.shard or self.complete:
            self.commit()

    def commit(self) -> None:
        """Write the rows that wait. Raises CannotWrite, and loses no other rows then."""
        index = self._next_index()
        try:
            shards = [
                write_shard(self.folder, split, index, rows)
                for split, rows in self._rows.items()
                if rows
            ]
            self.manifest.shards += shards
            self.manifest.counts = dict(sorted(self.counts.items()))
            write_manifest(self.folder, self.manifest)
        except OSError as error:
            for unfinished in self.folder.glob("*.tmp"):
                unfinished.unlink(missing_ok=True)
            raise CannotWrite(
                f"cannot write to {self.folder}: {error.strerror or error}. Every finished shard "
                "is kept; make room and run the same command again to go on from there"
            ) from error
        self._rows = {split: [] for split in SPLITS}
        self._since = 0

    # -- inside -----------------------------------------------------------------------------------

    def _keep(self, row: TrainingRow, key: str) -> None:
        self._remember(row)
        self._rows[split_of(row.part, key, self.app.held_out)].append(row)
        self.counts["rows"] += 1
        self.counts[f"rows_{row.part}"] += 1
        self.counts["answer_tokens"] += sum(end - start for start, end in row.spans)

    def _remember(self, row: TrainingRow) -> None:
        self._keys.add(row.key)
        self._sources[row.key.partition(".")[0]] = row.source.partition("#")[0]
        self._answers[_answer(row)] += 1

    def _next_index(self) -> int:
        shards = self.manifest.shards
        taken = [int(shard.file.rpartition("-")[2].partition(".")[0]) for shard in shards]
        return max(taken, default=-1) + 1


def make_row(item: Item, key: str, ask: Ask, answer: TargetAnswer) -> TrainingRow:
    prompt = ask.prompt_ids
    return TrainingRow(
        ids=prompt + answer.ids,
        spans=((len(prompt), len(prompt) + len(answer.ids)),),
        source=item.source,
        part=item.spec.part,
        language=item.spec.language,
        finish_reason=answer.finish_reason,
        temperature=ask.params.temperature,
        seed=item.seed,
        key=_row_key(key, item.sample),
    )


def _row_key(key: str, sample: int) -> str:
    return f"{key}.{sample}"


def _answer(row: TrainingRow) -> bytes:
    answers = [row.ids[start:end] for start, end in row.spans]
    return hashlib.blake2b(repr(answers).encode(), digest_size=16).digest()
