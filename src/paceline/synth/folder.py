"""The folder of a set: begun, resumed or refused before any time is spent, and filled with the rows
of answers."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from paceline.core import InvalidRequest, PacelineError
from paceline.dataset.folder_lock import LOCK
from paceline.dataset.overlap import OVERLAP, RowGrams, TextIndex, split_overlaps
from paceline.dataset.training_set import (
    MANIFEST,
    SPLITS,
    Manifest,
    Split,
    TrainingRow,
    read_manifest,
    read_rows,
    write_manifest,
    write_shard,
)
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.plan import Item
from paceline.synth.prompts import SourcePrompt
from paceline.synth.split import SPLIT, read_split

PROMPTS = "prompts"  # count of the items of the plan that are done: a resumed run goes on there
BYTES_PER_TOKEN = 4  # an int32 before it is compressed: an estimate on the safe side
PROMPT_SHARE = 4  # tokens written for each token of an answer
BEGUN = f"{MANIFEST}.tmp"  # of a run that was killed before it had a manifest
NEAR_DUPLICATE = "near_duplicate"


class CannotWrite(PacelineError):
    """The folder cannot be written to, usually because the disk is full. Written shards stay."""


def check_set(folder: Path, fresh: Manifest, app: App, *, restart: bool = False) -> Manifest:
    """Return the manifest that open_set() will go on with, and leave the folder as it is. Fields of
    the target that `fresh` does not have yet are not compared."""
    manifest = fresh
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("out", str(folder), "a folder, not a file")
    if (folder / MANIFEST).exists():
        manifest = fresh if restart else _same(folder, read_manifest(folder), fresh)
    elif folder.exists() and {path.name for path in folder.iterdir()} - {LOCK, BEGUN}:
        raise InvalidRequest("out", str(folder), "a new or empty folder, or a set to go on with")
    _check_room(folder, manifest, app)
    return manifest


def open_set(folder: Path, fresh: Manifest, app: App, *, restart: bool = False) -> Manifest:
    """Return the manifest to go on with: `fresh`, or the folder's own where it was made alike. A
    larger `size` than it was begun with makes the set grow.

    Raises InvalidRequest (field `out`) for a folder that holds something else, or a set of another
    application or target, and where the disk has no room for what is planned; CannotWrite where
    nothing can be written at all.
    """
    manifest = check_set(folder, fresh, app, restart=restart)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_manifest(folder, manifest)
        _remove_unnamed(folder, manifest)
    except OSError as error:
        raise CannotWrite(f"cannot write to {folder}: {error.strerror or error}") from error
    return manifest


def _remove_unnamed(folder: Path, manifest: Manifest) -> None:
    """Remove the shards that the manifest does not name: those of the set before, and those that a
    killed run wrote last."""
    named = {shard.file for shard in manifest.shards}
    for split in SPLITS:
        for suffix in ("parquet", "parquet.tmp"):
            for path in folder.glob(f"{split}-[0-9]*.{suffix}"):
                if path.name not in named:
                    path.unlink()


def _same(folder: Path, manifest: Manifest, fresh: Manifest) -> Manifest:
    before, now = _making(manifest), _making(fresh)
    names = [name for name in {**before, **now} if name in now or not name.startswith("target")]
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        told = [f"{n} ({before[n]} there)" if n == "user_data" else n for n in changed]
        change = f"{', '.join(told)} changed since it was begun"
        expected = f"a set of the same making; {change}. Give another folder, or --restart"
        raise InvalidRequest("out", str(folder), expected)
    return manifest.model_copy(update={"app": fresh.app})


def _making(manifest: Manifest) -> dict[str, object]:
    """Return what may not change: all but the size. A model keeps its identity under another
    name."""
    app, target = manifest.app, manifest.target
    described = {f"app: {name}": value for name, value in app.get("description", {}).items()}
    described.pop("app: size", None)
    return {
        **{f"target: {name}": value for name, value in target.items() if name != "name"},
        **described,
        "app: content of the sources": app.get("sources"),
        "app: how prompts are split": app.get(SPLIT),
        # The description may name a file, and tools compile to what their format is read to be.
        "app: what answers are bound to": app.get("bound"),
        "user_data": manifest.user_data,
    }


def _check_room(folder: Path, manifest: Manifest, app: App) -> None:
    missing = app.size.amount - manifest.counts.get(app.size.unit, 0)
    # A row is at most a prompt and an answer; of answer tokens, prompts are a few times as many.
    factor = 2 * app.sampling.max_tokens if app.size.unit == "rows" else PROMPT_SHARE
    above = (folder.absolute(), *folder.absolute().parents)
    free = shutil.disk_usage(next(path for path in above if path.exists())).free
    needed = missing * factor * BYTES_PER_TOKEN
    if needed > free:
        expected = (
            f"a disk with about {needed / 2**20:.0f} MiB free for what is planned; "
            f"this one has {free / 2**20:.0f}"
        )
        raise InvalidRequest("out", str(folder), expected)


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """The outcome of an item: the answer to `ask`, or the `reason` why there is no row."""

    item: Item
    prompt: SourcePrompt | None
    ask: Ask | None
    answer: TargetAnswer | None = None
    reason: str | None = None

    @property
    def row(self) -> TrainingRow | None:
        item, prompt, ask, answer = self.item, self.prompt, self.ask, self.answer
        if prompt is None or ask is None or answer is None:
            return None
        length = len(ask.prompt_ids)
        return TrainingRow(
            ids=ask.prompt_ids + answer.ids,
            spans=((length, length + len(answer.ids)),),
            source=item.source,
            part=item.spec.part,
            language=item.spec.language,
            finish_reason=answer.finish_reason,
            temperature=ask.params.temperature,
            seed=item.seed,
            key=f"{prompt.key}.{item.sample}",
            prompt=prompt.text,
            origin=prompt.origin,
        )


class Collector:
    """The set as it grows: answers are taken in the order of the plan, duplicates are dropped, and
    shards are written.

    The rows that it keeps depend only on the outcomes, their order and the rows in the folder: a
    killed run ends with the same set. `pending` counts items that no shard holds yet;
    `out_of_time` says whether the run ended because its hours were over.

    No row is near to one on the other side of training (dataset.overlap): of two rows that are
    near-duplicates, one of them trained on, the later one is dropped. Prompts are compared, and
    answers where the application does not expect the same answer to many prompts.
    """

    def __init__(self, folder: Path, manifest: Manifest, app: App) -> None:
        self.folder, self.manifest, self.app = folder, manifest, app
        self.counts, self.pending = Counter(manifest.counts), 0
        self.out_of_time = False
        self._sources: dict[str, str] = {}
        self._keys: set[str] = set()
        self._answers: Counter[bytes] = Counter()
        rule = read_split(manifest.app)
        assert rule is not None  # open_set() refuses a set without it
        self._rule = rule
        # by side, trained on or not: prompts, and answers
        self._texts = {side: (TextIndex(), TextIndex()) for side in (True, False)}
        self._grams: dict[Split, list[RowGrams]] = {split: [] for split in SPLITS}
        self._rows: dict[Split, list[TrainingRow]] = {split: [] for split in SPLITS}
        for split in SPLITS:
            for row in read_rows(folder, split):
                self._remember(row, split, RowGrams.of(row))

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

    def known(self, item: Item, key: str) -> bool:
        """Return whether the set has the prompt already, from another source or as the same
        sample."""
        other = self._sources.get(key, item.spec.name)
        return other != item.spec.name or f"{key}.{item.sample}" in self._keys

    def take(self, outcome: ItemOutcome) -> None:
        """Take the next item of the plan, and write shards when enough have come, or all."""
        self.counts[PROMPTS] += 1
        self.pending += 1
        prompt, row, reason = outcome.prompt, outcome.row, outcome.reason
        if prompt is not None and self.known(outcome.item, prompt.key):
            reason = "duplicate_prompt"
        elif row is not None and self._answers[_answer(row)] >= self.app.same_answer:
            reason = "duplicate_answer"
        elif row is not None:
            reason = self._keep(row)
        if reason is not None:
            self.counts[reason] += 1
        if self.pending == self.app.shard or self.complete:
            self.commit()

    def _keep(self, row: TrainingRow) -> str | None:
        """Keep a row for the next shard. Return the reason why not, where it is near to one on the
        other side of training."""
        split, grams = self._split_of(row), RowGrams.of(row)
        if self._is_near(grams, split):
            return NEAR_DUPLICATE
        self._remember(row, split, grams)
        self._rows[split].append(row)
        self.counts["rows"] += 1
        self.counts[f"rows_{row.part}"] += 1
        self.counts["answer_tokens"] += row.answer_tokens
        return None

    def commit(self) -> None:
        """Write the rows that wait. Raises CannotWrite, and loses no other rows then."""
        stems = [Path(shard.file).stem for shard in self.manifest.shards]
        numbers = [int(stem.rpartition("-")[2]) for stem in stems]
        index = max(numbers, default=-1) + 1
        try:
            self.manifest.shards += [
                write_shard(self.folder, split, index, rows)
                for split, rows in self._rows.items()
                if rows
            ]
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
        self.pending = 0

    def finish(self) -> None:
        """Write the rows that wait, and what the splits share with training into the manifest.
        Raises CannotWrite."""
        self.commit()
        overlaps = split_overlaps(self._grams)
        self.manifest.app[OVERLAP] = {name: told.model_dump() for name, told in overlaps.items()}
        self.commit()

    def _split_of(self, row: TrainingRow) -> Split:
        return self._rule.split_of(row.part, _prompt_key(row), row.origin)

    def _is_near(self, grams: RowGrams, split: Split) -> bool:
        """Return whether the other side of training has a near-duplicate of the row."""
        prompts, answers = self._texts[split != "train"]
        if prompts.has_near(grams.prompt):
            return True
        return self.app.same_answer == 1 and answers.has_near(grams.answer)

    def _remember(self, row: TrainingRow, split: Split, grams: RowGrams) -> None:
        """Remember the row for later duplicates, and for the overlap."""
        self._keys.add(row.key)
        self._sources[_prompt_key(row)] = row.source.partition("#")[0]
        self._answers[_answer(row)] += 1
        self._grams[split].append(grams)
        prompts, answers = self._texts[split == "train"]
        prompts.add(grams.prompt)
        if self.app.same_answer == 1:
            answers.add(grams.answer)


def _prompt_key(row: TrainingRow) -> str:
    return row.key.partition(".")[0]


def _answer(row: TrainingRow) -> bytes:
    answers = [row.ids[start:end] for start, end in row.spans]
    return hashlib.blake2b(repr(answers).encode(), digest_size=16).digest()
