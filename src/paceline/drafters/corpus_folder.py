"""A corpus on disk: answers of the target that look-ups draft from, whoever asks.

ROOT/v3/manifest.json            version, target, scope, cohorts, when it expires, counts
ROOT/v3/answers.safetensors      the answers' token ids, and the order of their contexts
ROOT/v3/paceline-manifest.json   checksums of both

A folder is one version: it is written whole, and never changed. It expires as a whole, before the
first of its answers has to be forgotten.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load_file

from paceline.core import InvalidRequest
from paceline.core.cache import UNFINISHED, make_folder
from paceline.core.checksums import damage
from paceline.core.documents import Document
from paceline.drafters.context_array import SORTED, sorted_places
from paceline.drafters.continuations import BOUNDARY
from paceline.models.tensor_files import save_arrays

FORMAT = "paceline-corpus/1"
MANIFEST, ANSWERS = "manifest.json", "answers.safetensors"
LEAD = SORTED  # tokens of the prompt that lead into an answer, and are kept with it
LEFT = 3600.0  # seconds after which a version that is not finished belongs to a killed process
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class CorpusAnswer:
    """An answer, as traces and training sets give it.

    time      when it was given: seconds since the epoch; 0 where nobody knows
    cohort    the label of its cohort
    key       the name of the API key that asked; "" on an open server
    expires   when it must be forgotten; None: never
    repeats   how often it was given
    forced_places   places in `output_ids` that a grammar left no choice about, as far as known
    """

    time: float
    cohort: str
    key: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    expires: float | None = None
    repeats: int = 1
    forced_places: Sequence[int] = ()

    @property
    def chosen_places(self) -> set[int]:
        """The places of the tokens that the target chose, but for the first one, which comes with
        the prompt."""
        return {*range(1, len(self.output_ids))} - {*self.forced_places}


class CorpusCohort(Document):
    """The part of a corpus that comes from one cohort."""

    answers: int
    tokens: int


class CorpusHead(Document):
    """The part of a manifest that whoever builds a corpus states.

    `target` has name, tokenizer_sha256 and template, as in a training set's manifest; `scope` is
    the name of the API key whose requests alone may use it, None for all; `created` and `expires`
    are seconds since the epoch; `counts` says how many answers were read, and why some were left
    out.
    """

    target: dict[str, str]
    scope: str | None = None
    created: float
    expires: float
    counts: dict[str, int] = Field(default_factory=dict)


class CorpusManifest(CorpusHead):
    """The description of a corpus. `newest` is when the last of its answers was given, 0 where
    nobody knows; `digest` is that of what it holds."""

    version: int
    newest: float
    answers: int
    tokens: int
    cohorts: dict[str, CorpusCohort]
    digest: str

    @property
    def name(self) -> str:
        """The version, and what tells its content from that of another with the same number."""
        return f"{self.version}-{self.digest[:8]}"


def read_corpus_manifest(folder: Path, field: str) -> CorpusManifest:
    """Read a version's manifest. Raises InvalidRequest for `field`, which names the newest version
    where `folder` holds several."""
    try:
        content = json.loads((folder / MANIFEST).read_text("utf-8"))
        is_corpus = isinstance(content, dict) and content.pop("format", None) == FORMAT
    except (OSError, ValueError) as error:
        inside = corpus_versions(folder)
        expected = f"the folder of a corpus, with its {MANIFEST} ({error})"
        if inside:
            expected = f"one version of this corpus, such as {inside[-1]}"
        raise InvalidRequest(field, str(folder), expected) from error
    if not is_corpus:
        raise InvalidRequest(field, str(folder), f"a corpus of the format {FORMAT}")
    return CorpusManifest.read(content, str(folder / MANIFEST))


def read_corpus_arrays(folder: Path, field: str) -> Arrays:
    """Read a version's arrays, as _arrays() returns them. Raises InvalidRequest for `field` where a
    file is not what it was."""
    if (problem := damage(folder)) is not None:
        raise InvalidRequest(field, str(folder), f"a corpus as it was written; {problem}")
    arrays: Arrays = load_file(folder / ANSWERS)
    return arrays


def read_corpus_answers(folder: Path, field: str) -> Iterator[CorpusAnswer]:
    """Yield a version's answers, the oldest first: each with the end of its prompt, and with the
    key and the expiry of the whole."""
    manifest, arrays = read_corpus_manifest(folder, field), read_corpus_arrays(folder, field)
    labels, scope = list(manifest.cohorts), manifest.scope or ""
    tokens, starts = arrays["tokens"].tolist(), arrays["starts"].tolist()
    columns = (arrays[name].tolist() for name in ("leads", "repeats", "times", "cohorts"))
    for start, end, lead, repeats, at, cohort in zip(starts, starts[1:], *columns, strict=False):
        text = tokens[start + 1 : end]
        split = text[:lead], text[lead:]
        yield CorpusAnswer(at, labels[cohort], scope, *split, manifest.expires, repeats)


def corpus_versions(root: Path) -> list[Path]:
    """Return the folders of the versions below `root`, the oldest first."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if _number(path) and (path / MANIFEST).is_file()]
    return sorted(folders, key=_number)


def write_corpus(root: Path, answers: Sequence[CorpusAnswer], head: CorpusHead) -> Path:
    """Write answers as the next version below `root`, and return its folder. The later of equal
    contexts' followers wins, so the newest answers come last."""
    labels = sorted({answer.cohort for answer in answers})
    arrays = _arrays(answers, labels)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds what users were told
    while True:
        number = max(map(_number, root.iterdir()), default=0) + 1
        manifest = CorpusManifest(
            **dict(head),
            version=number,
            newest=max((answer.time for answer in answers), default=0.0),
            answers=len(answers),
            tokens=sum(len(answer.output_ids) for answer in answers),
            cohorts={label: _cohort(answers, label) for label in labels},
            digest=_digest(arrays),
        )
        folder = root / f"v{number}"

        def fill(hidden: Path, manifest: CorpusManifest = manifest) -> None:
            save_arrays(arrays, hidden / ANSWERS)
            content = {"format": FORMAT, **manifest.model_dump(mode="json")}
            (hidden / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")

        try:
            make_folder(folder, fill, replace=False)
        except OSError:
            if not folder.exists():
                raise
            continue  # another process has taken this number
        return folder


def remove_expired(root: Path, now: float) -> list[str]:
    """Delete the versions below `root` whose answers have to be forgotten, and what killed writers
    left an hour ago. Return the names of those versions."""
    removed = []
    for folder in corpus_versions(root):
        if read_corpus_manifest(folder, "corpus").expires <= now:
            shutil.rmtree(folder)
            removed.append(folder.name)
    for path in root.glob(f".*{UNFINISHED}"):
        if path.stat().st_mtime < time.time() - LEFT:
            shutil.rmtree(path, ignore_errors=True)
    return removed


def written_time(seconds: float) -> str:
    """Return seconds since the epoch as people write them, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _number(path: Path) -> int:
    """Return the number of a version's folder, "v3"; 0 for any other name."""
    digits = path.name.removeprefix("v")
    return int(digits) if digits != path.name and digits.isdecimal() else 0


def _cohort(answers: Sequence[CorpusAnswer], label: str) -> CorpusCohort:
    sizes = [len(answer.output_ids) for answer in answers if answer.cohort == label]
    return CorpusCohort(answers=len(sizes), tokens=sum(sizes))


def _arrays(answers: Sequence[CorpusAnswer], labels: Sequence[str]) -> Arrays:
    """Return the columns of a corpus. Text i is tokens[starts[i]:starts[i + 1]]: a BOUNDARY, the
    `leads` last tokens of the prompt, and the answer, whose places are sorted in `order`."""
    leads = [min(LEAD, len(answer.prompt_ids)) for answer in answers]
    texts = [
        [BOUNDARY, *answer.prompt_ids[len(answer.prompt_ids) - lead :], *answer.output_ids]
        for answer, lead in zip(answers, leads, strict=True)
    ]
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = np.array([token for text in texts for token in text], dtype=np.int32)
    within = np.arange(len(tokens)) - np.repeat(starts[:-1], sizes)
    counted = np.flatnonzero(within > np.repeat(np.array(leads, dtype=np.int64), sizes))
    places = {label: index for index, label in enumerate(labels)}
    return {
        "tokens": tokens,
        "order": sorted_places(tokens, counted),
        "starts": starts,
        "leads": np.array(leads, dtype=np.int32),
        "repeats": np.array([answer.repeats for answer in answers], dtype=np.int32),
        "times": np.array([answer.time for answer in answers], dtype=np.float64),
        "cohorts": np.array([places[answer.cohort] for answer in answers], dtype=np.int32),
    }


def _digest(arrays: Arrays) -> str:
    hashed = hashlib.sha256()
    for name in sorted(arrays):
        hashed.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        hashed.update(arrays[name].tobytes())
    return hashed.hexdigest()
