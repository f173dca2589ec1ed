"""Build a corpus of the answers that the target gave: what look-ups learn within a minute.

Whoever reads the answers has asked for consent; here they are chosen, and written as a version.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from paceline.autospec.alike import distinct_answers
from paceline.core import InvalidRequest
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag, Several
from paceline.drafters.corpus_folder import (
    LEAD,
    CorpusAnswer,
    CorpusHead,
    read_corpus_answers,
    read_corpus_manifest,
    remove_expired,
    write_corpus,
)

DAY = 86400.0
HALF_LIFE = DAY  # an answer that was given twice is kept like one that is so much newer
Target = dict[str, str]


@checked
class CorpusPlan:
    """What a corpus takes of the answers, and how much."""

    scope: Annotated[str, Flag("key", "NAME")] | None = None
    """name of the API key whose answers it takes, and whose requests alone may use it (default: the
    answers of all keys, for all requests)"""
    cohorts: Annotated[tuple[str, ...], Several, Flag("cohort", "LABEL")] = ()
    """a cohort whose answers it takes, as `Qwen3-8B|chat|de|eu`, repeatable (default: all)"""
    days: Annotated[float, Between(0, open=True)] = 7.0
    """days until it expires; an answer that has to be forgotten before that is left out"""
    most_tokens: Annotated[int, Between(1, 10**8)] = 2_000_000
    """most tokens of answers and what leads into them; the newest and most repeated are kept"""

    def refusal(self, answer: CorpusAnswer, expires: float) -> str | None:
        """Say why the corpus does not take an answer; None where it does."""
        if self.scope is not None and answer.key != self.scope:
            return "other_key"
        if self.cohorts and answer.cohort not in self.cohorts:
            return "other_cohort"
        if answer.expires is not None and answer.expires < expires:
            return "expiring"
        return None if answer.output_ids else "empty"


def build_corpus(
    root: Path,
    answers: Iterable[CorpusAnswer],
    target: Target,
    plan: CorpusPlan | None = None,
    now: float | None = None,
) -> Path:
    """Write the next version of the corpus in `root` and return its folder. Versions that have
    expired are deleted. The order of `answers` makes no difference.

    `target` has the name and the tokenizer_sha256 of the model that gave the answers. Raises
    InvalidRequest where no answer is left.
    """
    plan, now = plan or CorpusPlan(), time.time() if now is None else now
    expires, counts, taken = now + DAY * plan.days, Counter[str](), list[CorpusAnswer]()
    for answer in answers:
        counts["read"] += 1
        reason = plan.refusal(answer, expires)
        if reason is None:
            taken.append(_trimmed(answer))
        else:
            counts[reason] += 1
    return _write(root, taken, counts, CorpusHead(
        target=target, scope=plan.scope, created=now, expires=expires
    ), plan.most_tokens)  # fmt: skip


def merge_corpora(
    root: Path, folders: Sequence[Path], plan: CorpusPlan | None = None, now: float | None = None
) -> Path:
    """Write the next version of the corpus in `root` out of those of replicas, and return its
    folder. It expires with the first of them.

    An answer that stands in several with the same time is one answer: replicas may have merged
    before. Raises InvalidRequest (field `corpora`) for corpora of different tokenizers or scopes.
    """
    plan, now = plan or CorpusPlan(), time.time() if now is None else now
    heads = [read_corpus_manifest(folder, "corpora") for folder in folders]
    if not heads:
        raise InvalidRequest("corpora", [], "at least one folder of a corpus")
    first = heads[0]
    for folder, head in zip(folders, heads, strict=True):
        tokenizers = [each.target.get("tokenizer_sha256") for each in (first, head)]
        compared = {"tokenizer": tokenizers, "scope": [first.scope, head.scope]}
        for part, (ours, theirs) in compared.items():
            if ours != theirs:
                expected = f"a corpus with the {part} of {folders[0]} ({ours}, and not {theirs})"
                raise InvalidRequest("corpora", str(folder), expected)
    once: dict[tuple[object, ...], CorpusAnswer] = {}
    counts = Counter[str]()
    for folder in folders:
        for answer in read_corpus_answers(folder, "corpora"):
            counts["read"] += 1
            key = (answer.time, answer.cohort, *map(tuple, (answer.prompt_ids, answer.output_ids)))
            known = once.get(key, answer)
            once[key] = replace(answer, repeats=max(known.repeats, answer.repeats))
    counts["in_several"] = counts["read"] - len(once)
    merged = CorpusHead(
        target=first.target,
        scope=first.scope,
        created=now,
        expires=min(each.expires for each in heads),
    )
    return _write(root, [*once.values()], counts, merged, plan.most_tokens)


def _write(
    root: Path,
    answers: list[CorpusAnswer],
    counts: Counter[str],
    head: CorpusHead,
    most_tokens: int,
) -> Path:
    answers.sort(key=lambda a: (a.time, a.cohort, *map(tuple, (a.output_ids, a.prompt_ids))))
    different = distinct_answers(answers)
    kept = within_bound(different, most_tokens)
    if not kept:
        left_out = ", ".join(f"{name} {count}" for name, count in counts.items()) or "read 0"
        raise InvalidRequest("answers", len(answers), f"at least one that may be kept ({left_out})")
    counts["alike"] += len(answers) - len(different)
    counts["beyond_bound"] += len(different) - len(kept)
    if root.is_dir():
        remove_expired(root, head.created)
    named = {name: counts[name] for name in sorted(counts) if counts[name]}
    return write_corpus(root, kept, head.model_copy(update={"counts": named}))


def within_bound(answers: Sequence[CorpusAnswer], most_tokens: int) -> list[CorpusAnswer]:
    """Return the answers that are worth most, `most_tokens` of them, in their order: the newest and
    most repeated ones."""
    order = sorted(range(len(answers)), key=lambda place: (_worth(answers[place]), place))
    kept, left = [], most_tokens
    for place in reversed(order):
        left -= len(answers[place].output_ids) + len(answers[place].prompt_ids) + 1
        if left < 0:
            break
        kept.append(place)
    return [answers[place] for place in sorted(kept)]


def _worth(answer: CorpusAnswer) -> float:
    return answer.time / HALF_LIFE + math.log2(answer.repeats)


def _trimmed(answer: CorpusAnswer) -> CorpusAnswer:
    """Return the answer with as much of its prompt as a corpus keeps."""
    return replace(answer, prompt_ids=answer.prompt_ids[-LEAD:])
