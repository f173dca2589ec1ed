"""Near-duplicates of a text, and the overlap of two splits.

A text is the set G(x) of its n-grams. Two texts are near-duplicates where their resemblance
(Broder, 1997)

    J(x, y) = |G(x) & G(y)| / |G(x) | G(y)|

is at least NEAR. The overlap of texts X with texts T is the share of the n-grams of X that T has:

    o(X, T) = sum over x in X of |G(x) & G(T)|, divided by sum over x in X of |G(x)|

where G(T) is the union of the G(t). Prompts are compared by runs of PROMPT_GRAM words, answers by
runs of ANSWER_GRAM tokens.
"""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.documents import Document
from paceline.dataset.training_set import SPLITS, TrainingRow, read_rows

OVERLAP = "overlap"  # in a manifest's `app`: of each split that is not trained on, by its name
NEAR = 0.7
PROMPT_GRAM, ANSWER_GRAM = 3, 8
WORD = re.compile(r"\w+|[^\w\s]")
Grams = npt.NDArray[np.uint64]  # hashes of n-grams: ascending, each once


def grams(ids: Sequence[int], size: int) -> Grams:
    """Return the hashes of the runs of `size` ids. A shorter text is one run; an empty one has
    none."""
    if not ids:
        return np.empty(0, np.uint64)
    values = _mixed(np.asarray(ids, np.uint64))
    size = min(size, len(values))
    runs = np.lib.stride_tricks.sliding_window_view(values, size)
    with np.errstate(over="ignore"):
        factors = np.cumprod(np.full(size, 0x9E3779B97F4A7C15, np.uint64))
        return np.unique(_mixed((runs * factors).sum(1, dtype=np.uint64)))


def prompt_grams(text: str) -> Grams:
    """Return the n-grams of a prompt. Case and spacing do not count."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return grams([zlib.crc32(word.encode()) for word in WORD.findall(plain)], PROMPT_GRAM)


def answer_grams(row: TrainingRow) -> Grams:
    """Return the n-grams of what the target said in a row."""
    said = [token for start, end in row.spans for token in row.ids[start:end]]
    return grams(said, ANSWER_GRAM)


def _mixed(values: Grams) -> Grams:
    """Spread bits over the whole word (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def resemblance(first: Grams, second: Grams) -> float:
    """Return J of two texts; 0 where either has no n-gram."""
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / max(1, len(first) + len(second) - common)


class TextIndex:
    """Texts among which near-duplicates are found, without comparing each pair.

    Two texts with J >= t share an n-gram among the first |G| - ceil(t |G|) + 1 of each, in any
    order that is the same for both (prefix filtering: Bayardo et al., 2007). Only these are
    indexed.
    """

    def __init__(self) -> None:
        self._texts: list[Grams] = []
        self._known: set[bytes] = set()
        self._places: dict[int, list[int]] = {}

    def add(self, text: Grams) -> None:
        if len(text) and text.tobytes() not in self._known:
            self._known.add(text.tobytes())
            for gram in _prefix(text):
                self._places.setdefault(gram, []).append(len(self._texts))
            self._texts.append(text)

    def has_near(self, text: Grams) -> bool:
        """Return whether a text that was added is a near-duplicate of this one."""
        if text.tobytes() in self._known:
            return True
        places = {place for gram in _prefix(text) for place in self._places.get(gram, ())}
        return any(resemblance(text, self._texts[place]) >= NEAR for place in places)


def _prefix(text: Grams) -> list[int]:
    rest = math.ceil(NEAR * len(text) - 1e-9)
    return [int(gram) for gram in text[: len(text) - rest + 1]]


class SplitOverlap(Document):
    """The overlap of a split's prompts and answers with the training rows. `answers_over_half`
    counts those of its `rows` of whose answer the training rows have more than half."""

    rows: int
    prompts: float
    answers: float
    answers_over_half: int

    @property
    def text(self) -> str:
        return (
            f"training has {100 * self.prompts:.0f}% of the {PROMPT_GRAM}-grams of its prompts and "
            f"{100 * self.answers:.0f}% of the {ANSWER_GRAM}-grams of its answers; more than half "
            f"of {self.answers_over_half} of {self.rows} answers"
        )


def read_overlap(app: Mapping[str, Any]) -> dict[str, SplitOverlap]:
    """Return the overlap of each split with training, as the `app` of a manifest has it; {} for a
    set that is older than this field. Raises InvalidRequest."""
    stated = app.get(OVERLAP, {})
    return {
        split: SplitOverlap.read(value, f"app.{OVERLAP}.{split}") for split, value in stated.items()
    }


def set_overlap(folder: Path) -> dict[str, SplitOverlap]:
    """Return what each split of a set that is not trained on shares with its training rows. Raises
    InvalidRequest for a damaged set."""
    said, asked = _union(folder, answer_grams), _union(folder, lambda row: prompt_grams(row.prompt))
    overlaps: dict[str, SplitOverlap] = {}
    for split in SPLITS:
        rows = [] if split == "train" else list(read_rows(folder, split))
        if rows:
            answers = [_share(answer_grams(row), said) for row in rows]
            prompts = [_share(prompt_grams(row.prompt), asked) for row in rows]
            overlaps[split] = SplitOverlap(
                rows=len(rows),
                prompts=_pooled(prompts),
                answers=_pooled(answers),
                answers_over_half=sum(common > total / 2 for common, total in answers),
            )
    return overlaps


def _union(folder: Path, grams_of: Callable[[TrainingRow], Grams]) -> Grams:
    """Return the n-grams that the training rows of a set have together."""
    texts = [grams_of(row) for row in read_rows(folder, "train")]
    return np.unique(np.concatenate([*texts, np.empty(0, np.uint64)]))


def _share(text: Grams, union: Grams) -> tuple[int, int]:
    """Return how many n-grams of a text the union has, and how many the text has."""
    return int(np.isin(text, union, assume_unique=True).sum()), len(text)


def _pooled(counts: Sequence[tuple[int, int]]) -> float:
    total = sum(total for _, total in counts)
    return sum(common for common, _ in counts) / total if total else 0.0
