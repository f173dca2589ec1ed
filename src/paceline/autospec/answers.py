"""Answers of the target by where they lie: traces, a training set, or a file of token ids.

./traces             a folder of `paceline serve --traces`: answers whose token ids may be learnt
./support            a folder of `paceline synth`: the answers of its train split
./support:held_out   those of another split
answers.jsonl        a line for each answer: {"prompt_ids": […], "output_ids": […]}, with `time`,
                     `cohort`, `key`, `expires` and `forced_places` where they are known
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.cohorts import NONE, UNKNOWN, Cohort
from paceline.core.documents import Document
from paceline.core.names import local_path
from paceline.dataset.traces.folder import is_traces
from paceline.dataset.traces.reader import TokenTrace, read_tokens
from paceline.dataset.training_set import MANIFEST, SPLITS, read_manifest, read_rows
from paceline.drafters.corpus_folder import CorpusAnswer

FIELD = "answers"
EXPECTED = "a folder of `paceline serve --traces` or of `paceline synth`"
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class AnswerLine(Document):
    """An answer as a line of a file."""

    prompt_ids: Annotated[list[TokenId], Field(min_length=1)]
    output_ids: list[TokenId]
    time: float = 0.0
    cohort: str = ""
    key: str = ""
    expires: float | None = None
    forced_places: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)


def read_answers(source: str, model: str, *, for_key: str | None = None) -> Iterator[CorpusAnswer]:
    """Yield the answers of a source; `model` names the target of those without a cohort. With
    `for_key` traces also give what only a drafter of this key may learn.

    Raises InvalidRequest (field `answers`) for a source that is not there or has another form.
    """
    path, split = _split(source)
    if is_traces(path):
        return map(traced_answer, read_tokens(path, for_key=for_key))
    if path.is_dir():
        return _set_answers(path, split)
    if not path.is_file():
        raise InvalidRequest(FIELD, source, f"{EXPECTED}, or a JSONL file of token ids")
    return _line_answers(path, Cohort(model).label)


def read_all_answers(
    sources: Iterable[str], model: str, *, for_key: str | None = None
) -> Iterator[CorpusAnswer]:
    """Yield the answers of several sources, one after the other."""
    for source in sources:
        yield from read_answers(source, model, for_key=for_key)


def traced_answer(trace: TokenTrace) -> CorpusAnswer:
    """Return the answer that a trace holds."""
    head = trace.time, trace.cohort.label, trace.key, trace.prompt_ids, trace.output_ids
    return CorpusAnswer(*head, trace.expires, forced_places=trace.forced_places)


def _split(source: str) -> tuple[Path, str]:
    """Return the path of a source, and the split of a training set."""
    before, colon, split = source.rpartition(":")
    if colon and split in SPLITS and not local_path(source, FIELD).exists():
        return local_path(before, FIELD), split
    return local_path(source, FIELD), "train"


def _set_answers(folder: Path, split: str) -> Iterator[CorpusAnswer]:
    """Yield the answers of a training set. Those that are not on the application's task have their
    prompts' source for an app."""
    if not (folder / MANIFEST).is_file():
        raise InvalidRequest(FIELD, str(folder), EXPECTED)
    manifest = read_manifest(folder)
    described = manifest.app.get("description")
    app = str(described.get("name") or NONE) if isinstance(described, dict) else NONE
    model = manifest.target.get("name", NONE)
    for row in read_rows(folder, split):
        whose = app if row.part in ("on_task", "foreign") else row.source.partition("#")[0]
        cohort = Cohort(model, whose, row.language or UNKNOWN).label
        for start, end in row.spans:
            yield CorpusAnswer(0.0, cohort, "", row.ids[:start], row.ids[start:end])


def _line_answers(path: Path, usual: str) -> Iterator[CorpusAnswer]:
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                line = AnswerLine.read(json.loads(text), where)
            except json.JSONDecodeError as error:
                raise InvalidRequest(FIELD, where, f"a line of JSON ({error})") from error
            cohort = Cohort.parse(line.cohort).label if line.cohort else usual
            beyond = [place for place in line.forced_places if place >= len(line.output_ids)]
            if beyond:
                expected = f"places in output_ids, below {len(line.output_ids)}"
                raise InvalidRequest(f"{where}.forced_places", beyond[0], expected)
            yield CorpusAnswer(**{**dict(line), "cohort": cohort})
