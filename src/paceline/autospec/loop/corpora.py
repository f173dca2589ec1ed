"""A corpus for a change: which answers it takes, for how long, and the spec that drafts from it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from paceline.autospec.answer_set import held_out
from paceline.autospec.corpus import CorpusPlan, build_corpus
from paceline.autospec.policy import CorpusPolicy
from paceline.autospec.store import ALL, DrafterVersion, TargetIdentity
from paceline.autospec.store.records import CORPUS, NETWORK
from paceline.core import InvalidRequest
from paceline.core.spec_line import SpecLine
from paceline.drafters.corpus_folder import CorpusAnswer, corpus_versions, read_corpus_manifest

CORPORA = "corpora"  # folder of the store in which corpora are built, a folder for each change
DAY = 86400.0
SHORTEST_DAYS = 1 / 24  # of a corpus: one that expires sooner is not worth a canary
LOOKING_UP = ("suffix", "hybrid")  # kinds of drafters that draft from a corpus


def lifetime_of(answers: Sequence[CorpusAnswer], policy: CorpusPolicy, now: float) -> float:
    """Return for how many days a corpus lasts: at most as long as half of its answers may be kept,
    because one that has to be forgotten before is left out."""
    left = sorted(answer.expires - now for answer in answers if answer.expires is not None)
    if not left:
        return policy.lifetime_days
    # a second less, so that rounding leaves out no answer that expires just then
    return min(policy.lifetime_days, (left[len(left) // 2] - 1.0) / DAY)


def made_corpus(
    root: Path,
    cohort: str,
    answers: Sequence[CorpusAnswer],
    target: TargetIdentity,
    policy: CorpusPolicy,
    now: float,
) -> Path:
    """Return the folder of the one corpus in `root`, which is built unless it is there: a process
    that was killed may have done that.

    Raises InvalidRequest where there are too few answers, or nobody knows the tokenizer.
    """
    there = corpus_versions(root)
    if there and read_corpus_manifest(there[-1], CORPUS).expires > now:
        return there[-1]
    if target.tokenizer is None:
        expected = "a version whose target is known, or --model, so that its tokenizer is"
        raise InvalidRequest("tokenizer", None, expected)
    learnt, _ = held_out(answers, policy.held_out)
    if len(learnt) < policy.least_answers:
        raise InvalidRequest(
            "answers",
            len(learnt),
            f"at least {policy.least_answers} that drafters may learn from; capture them with "
            "`paceline serve --traces … --traces-tokens`",
        )
    days = lifetime_of(learnt, policy, now)
    if days < SHORTEST_DAYS:
        expected = "answers that are kept for longer than an hour from now"
        raise InvalidRequest("answers", f"{days * DAY:.0f} s", expected)
    plan = CorpusPlan(
        cohorts=() if cohort == ALL else (cohort,),
        days=days,
        most_tokens=policy.most_tokens,
    )
    described = {"name": target.name or "unknown", "tokenizer_sha256": target.tokenizer}
    return build_corpus(root, learnt, described, plan, now)


def tidy_corpora(store: Path, needed: Collection[str]) -> None:
    """Remove what was built in a store's folder for other changes than the `needed` ids."""
    root = store / CORPORA
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name not in needed:
            shutil.rmtree(folder, ignore_errors=True)


def spec_with(version: DrafterVersion, folders: Mapping[str, Path], corpus: Path) -> str:
    """Return the spec of a version with a corpus in place of its own. A DFlash drafter becomes a
    hybrid, which has look-ups. Raises InvalidRequest for a kind that has none."""
    if version.kind == "dflash":
        return f"hybrid:{folders[NETWORK]},{CORPUS}={corpus}"
    line = SpecLine.parse((version.spec or "").format_map(folders))
    if line.kind not in LOOKING_UP:
        expected = f"a live version that looks answers up: {' or '.join(LOOKING_UP)}, or dflash"
        raise InvalidRequest("spec", version.spec, expected)
    kept = {key: values for key, values in line.options.items() if key != CORPUS}
    options = "".join(f",{key}={','.join(values)}" for key, values in kept.items())
    return f"{line.head}{options},{CORPUS}={corpus}"


def expiry(folders: Mapping[str, Path]) -> tuple[float, float] | None:
    """Return when the corpus among a version's folders was made and when it expires; None where
    there is none."""
    folder = folders.get(CORPUS)
    if folder is None or not folder.is_dir():
        return None
    manifest = read_corpus_manifest(folder, CORPUS)
    return manifest.created, manifest.expires
