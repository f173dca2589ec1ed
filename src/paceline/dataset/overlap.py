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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.documents import Document
from paceline.dataset.training_set import Split, TrainingRow

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
        return _unique(_mixed((runs * factors).sum(1, dtype=np.uint64)))


def prompt_grams(text: str) -> Grams:
    """Return the n-grams of a prompt. Case and spacing do not count."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return grams([zlib.crc32(word.encode()) for word in WORD.findall(plain)], PROMPT_GRAM)


def answer_grams(row: TrainingRow) -> Grams:
    """Return the n-grams of what the target said in a row."""
    said = [token for start, end in row.spans for token in row.ids[start:end]]
    return grams(said, ANSWER_GRAM)


class RowGrams(NamedTuple):
    """The n-grams of a row's prompt and of its answer."""

    prompt: Grams
    answer: Grams

    @classmethod
    def of(cls, row: TrainingRow) -> RowGrams:
        return cls(prompt_grams(row.prompt), answer_grams(row))


def _mixed(values: Grams) -> Grams:
    """Spread bits over the whole word (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _unique(values: Grams) -> Grams:
    """Return values in ascending order, each once."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _common(text: Grams, other: Grams) -> int:
    """Return how many n-grams of a text another one has. Each is searched for, which is fast where
    the other one is far longer."""
    places = np.searchsorted(other, text)
    inside = places < len(other)
    return int((other[places[inside]] == text[inside]).sum())


def resemblance(first: Grams, second: Grams) -> float:
    """Return J of two texts; 0 where either has no n-gram."""
    common = _common(first, second)
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
        alike = (self._texts[place] for place in places)
        # J is at most the ratio of the numbers of n-grams.
        low, high = NEAR * len(text), len(text) / NEAR
        alike = (other for other in alike if low <= len(other) <= high)
        return any(resemblance(text, other) >= NEAR for other in alike)


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


def split_overlaps(splits: Mapping[Split, Sequence[RowGrams]]) -> dict[str, SplitOverlap]:
    """Return what each split that is not trained on shares with the training rows."""
    asked = _union([row.prompt for row in splits["train"]])
    said = _union([row.answer for row in splits["train"]])
    overlaps: dict[str, SplitOverlap] = {}
    for split, rows in splits.items():
        if split != "train" and rows:
            answers = [_share(row.answer, said) for row in rows]
            prompts = [_share(row.prompt, asked) for row in rows]
            overlaps[split] = SplitOverlap(
                rows=len(rows),
                prompts=_pooled(prompts),
                answers=_pooled(answers),
                answers_over_half=sum(common > total / 2 for common, total in answers),
            )
    return overlaps


def _union(texts: Sequence[Grams]) -> Grams:
    """Return the n-grams that texts have together."""
    return _unique(np.concatenate([*texts, np.empty(0, np.uint64)]))


def _share(text: Grams, union: Grams) -> tuple[int, int]:
    """Return how many n-grams of a text the union has, and how many the text has."""
    return _common(text, union), len(text)


def _pooled(counts: Sequence[tuple[int, int]]) -> float:
    total = sum(total for _, total in counts)
    return sum(common for common, _ in counts) / total if total else 0.0
