"""Small corpora of made-up answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from paceline.drafters.corpus_folder import CorpusAnswer, CorpusHead, write_corpus

DAY = 86400.0


def an_answer(
    output: Sequence[int], prompt: Sequence[int] = (1, 2), cohort: str = "m|app|en|eu", **fields
) -> CorpusAnswer:
    fields = {"time": 1000.0, "key": ""} | fields
    return CorpusAnswer(cohort=cohort, prompt_ids=prompt, output_ids=output, **fields)


def make_corpus(
    root: Path,
    answers: Sequence[CorpusAnswer],
    *,
    tokenizer: str = "f" * 64,
    scope: str | None = None,
    expires: float | None = None,
) -> Path:
    """Write a version of a corpus; by default it is good for a day."""
    now = time.time()
    head = CorpusHead(
        target={"name": "tiny", "tokenizer_sha256": tokenizer},
        scope=scope,
        created=now,
        expires=now + DAY if expires is None else expires,
    )
    return write_corpus(root, answers, head)
