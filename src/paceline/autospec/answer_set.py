"""Training sets of answers that users were given, which drafters and smaller models learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from paceline.autospec.store.records import TargetIdentity
from paceline.core import InvalidRequest
from paceline.core.cache import make_folder
from paceline.core.cohorts import Cohort
from paceline.dataset.training_set import (
    Binding,
    Manifest,
    Split,
    TrainingRow,
    read_manifest,
    write_manifest,
    write_shard,
)
from paceline.drafters.corpus_folder import CorpusAnswer

SOURCE = "traces"  # of the rows: what a Binding names
LONGEST_TEXT = 2048  # tokens, after which `paceline train` cuts a text
LEAST_TOKENS = 2  # of an answer that anything can be learnt from
SHARD_ROWS = 1000
LEFT_OUT = ("expiring", "too_long", "too_short", "alike")  # whatever room there is


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Limits of a set. It takes the newest answers, of at most `most_tokens` tokens in all, and at
    least `least_answers`. It leaves out answers that have to be forgotten before `until` (seconds
    since the epoch). The share `held_out` of the answers is held out, the latest: of all that were
    read, or with `of_kept` of those that the set takes."""

    held_out: float
    least_answers: int
    most_tokens: int
    until: float
    of_kept: bool = False


def held_out(
    answers: Sequence[CorpusAnswer], share: float
) -> tuple[Sequence[CorpusAnswer], Sequence[CorpusAnswer]]:
    """Return the answers that a drafter learns from, and the later ones, a `share` of all, that it
    is scored on."""
    place = len(answers) - round(share * len(answers))
    return answers[:place], answers[place:]


def write_answer_set(
    folder: Path,
    answers: Sequence[CorpusAnswer],
    target: TargetIdentity,
    name: str,
    limits: SetLimits,
    bound: Binding | None = None,
) -> Manifest:
    """Write answers of `target`, the oldest first, as a training set, whole: those of an
    application or cohort called `name`, which were `bound` to a grammar if they were. Equal ones
    are there once.

    Raises InvalidRequest where too few are left.
    """
    rows, counts = _rows(answers, limits)
    among = [answer for answer, _ in rows] if limits.of_kept else answers
    later = {id(answer) for answer in held_out(among, limits.held_out)[1]}
    splits: tuple[tuple[Split, list[TrainingRow]], ...] = (
        ("train", [row for answer, row in rows if id(answer) not in later]),
        ("held_out", [row for answer, row in rows if id(answer) in later]),
    )
    if len(rows) < limits.least_answers or not all(part for _, part in splits):
        told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        expected = f"at least {limits.least_answers} that may be learnt"
        expected += f", some of them held out ({told})"
        raise InvalidRequest("answers", len(rows), expected)
    manifest = _manifest(target, name, bound).model_copy(update={"counts": counts})

    def fill(hidden: Path) -> None:
        shards = [
            write_shard(hidden, split, index, part[start : start + SHARD_ROWS])
            for split, part in splits
            for index, start in enumerate(range(0, len(part), SHARD_ROWS))
        ]
        write_manifest(hidden, manifest.model_copy(update={"shards": shards}))

    make_folder(folder, fill)
    return read_manifest(folder)


def _rows(
    answers: Sequence[CorpusAnswer], limits: SetLimits
) -> tuple[list[tuple[CorpusAnswer, TrainingRow]], dict[str, int]]:
    """Return the answers that a set takes with their rows, the oldest first, and why others are
    left out. Of equal answers the latest counts, so that none that is held out is learnt."""
    counts = dict.fromkeys(("read", *LEFT_OUT, "beyond"), 0)
    rows: dict[str, tuple[CorpusAnswer, TrainingRow]] = {}
    tokens = 0
    for answer in reversed(answers):
        row = _row(answer)
        counts["read"] += 1
        if answer.expires is not None and answer.expires <= limits.until:
            counts["expiring"] += 1
        elif len(row.ids) > LONGEST_TEXT:
            counts["too_long"] += 1
        elif row.answer_tokens < LEAST_TOKENS:
            counts["too_short"] += 1
        elif row.key in rows:
            counts["alike"] += 1
        elif (tokens := tokens + len(row.ids)) > limits.most_tokens:
            counts["read"] = len(answers)
            counts["beyond"] = len(answers) - len(rows) - sum(counts[why] for why in LEFT_OUT)
            break
        else:
            rows[row.key] = answer, row
    return [*rows.values()][::-1], counts


def _manifest(target: TargetIdentity, name: str, bound: Binding | None) -> Manifest:
    stated = {
        "name": target.name,
        "weights_sha256": target.weights,
        "tokenizer_sha256": target.tokenizer,
        "template": target.template,
    }
    app: dict[str, object] = {"description": {"name": name}, "sources": []}
    if bound is not None:
        app["bound"] = bound.model_dump(mode="json")
    return Manifest(
        target={key: value for key, value in stated.items() if value is not None},
        app=app,
        user_data=True,
    )


def _row(answer: CorpusAnswer) -> TrainingRow:
    """Return an answer as a row. Its sampling is not known, and nobody who trains asks for it."""
    ids = (*answer.prompt_ids, *answer.output_ids)
    digest = blake2b(",".join(map(str, ids)).encode(), digest_size=16).hexdigest()
    language = Cohort.parse(answer.cohort).language
    span = len(answer.prompt_ids), len(ids)
    return TrainingRow(
        ids, (span,), f"{SOURCE}#{digest[:8]}", "on_task", language, "", 0.0, 0, digest
    )
