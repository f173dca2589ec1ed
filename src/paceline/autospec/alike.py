"""Answers that are nearly the same: one stands for all of them, and counts as often.

Two answers are alike when they share nine tenths of their runs of eight tokens (Jaccard). Those
are compared that share one of the smallest hashes of their runs, after Broder's sketches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.corpus_folder import CorpusAnswer

RUN = 8  # tokens of a run
ALIKE = 0.9  # of the runs of both
SKETCH = 4  # smallest hashes under which an answer is found
COMPARED = 8  # latest answers under a hash
Hashes = NDArray[np.uint64]


def distinct_answers(answers: Sequence[CorpusAnswer]) -> list[CorpusAnswer]:
    """Return one answer of each group that is alike, the latest one of `answers`, which come oldest
    first. Its `repeats` are those of the group."""
    kept: list[CorpusAnswer] = []
    runs: list[Hashes] = []
    by_hash: dict[int, list[int]] = {}
    for answer in reversed(answers):
        own = _runs(answer.output_ids)
        sketch = own[:SKETCH].tolist()
        places = [place for hashed in sketch for place in by_hash.get(hashed, ())[-COMPARED:]]
        match = next((p for p in dict.fromkeys(places) if _alike(own, runs[p])), None)
        if match is not None:
            repeats = kept[match].repeats + answer.repeats
            kept[match] = replace(kept[match], repeats=repeats)
            continue
        for hashed in sketch:
            by_hash.setdefault(hashed, []).append(len(kept))
        kept.append(answer)
        runs.append(own)
    return kept[::-1]


def _runs(ids: Sequence[int]) -> Hashes:
    """Return the hashes of an answer's runs, sorted, each once; a short answer is one run."""
    tokens = np.asarray(ids, dtype=np.uint64) + np.uint64(1)
    size = min(RUN, len(tokens))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    hashed = (windows * _FACTORS[:size]).sum(axis=1, dtype=np.uint64) + np.uint64(size)
    hashed ^= hashed >> np.uint64(31)
    hashed *= _FACTORS[0]
    hashed ^= hashed >> np.uint64(29)
    return np.unique(hashed)


def _alike(ours: Hashes, theirs: Hashes) -> bool:
    shared = len(np.intersect1d(ours, theirs, assume_unique=True))
    return shared >= ALIKE * (len(ours) + len(theirs) - shared)


_FACTORS: Hashes = np.random.default_rng(20).integers(1, 2**63, RUN, dtype=np.uint64) * 2 + 1
