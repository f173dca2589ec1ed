"""`paceline corpus`: build what look-ups draft from, merge that of replicas, show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict
from rich.console import Console

from paceline.autospec.corpus import CorpusPlan
from paceline.cli.option import Argument
from paceline.cli.options import DEFAULTS, MODEL_HELP, POSITIONAL, ModelOption, Strings
from paceline.cli.show import plain_table
from paceline.core.document_help import about
from paceline.core.documents import checked

if TYPE_CHECKING:
    from paceline.drafters.corpus_folder import CorpusManifest

Folder = Annotated[Path, Strict(False), Argument(positional=True, metavar="FOLDER")]
Answers = Annotated[Strings, POSITIONAL]
ROOT_HELP = "the corpus's folder, in which each build is a new version: v1, v2, …"
SOURCES_HELP = (
    "where the answers are: a folder of `paceline serve --traces`, of `paceline synth` (FOLDER or "
    "FOLDER:SPLIT), or a JSONL file of token ids"
)


@checked
class CorpusBuildCommand:
    """Build a corpus of the answers that a model gave.

    Look-ups then draft from it from the first request on, with --drafter suffix,corpus=FOLDER.
    Answers that are nearly the same become one, and the newest and most repeated are kept. The
    answers of traces are those whose token ids may be learnt.
    """

    folder: Folder = about(ROOT_HELP)
    answers: Answers = about(SOURCES_HELP)
    model: ModelOption = about(f"the target: {MODEL_HELP}", DEFAULTS.model)
    plan: CorpusPlan = CorpusPlan()

    def run(self) -> int:
        from paceline.autospec.answers import read_all_answers
        from paceline.autospec.corpus import build_corpus
        from paceline.drafters.corpus import corpus_target
        from paceline.models.loader import load_model

        loaded = load_model(self.model)
        answers = read_all_answers(self.answers, loaded.name, for_key=self.plan.scope)
        _tell(build_corpus(self.folder, answers, corpus_target(loaded), self.plan))
        return 0


@checked
class CorpusMergeCommand:
    """Merge the corpora of replicas into one.

    An answer that stands in several counts once. The new version expires with the first of them.
    """

    folder: Folder = about(ROOT_HELP)
    corpora: Annotated[Strings, POSITIONAL] = about("versions of corpora, as corpora/shop/v3")
    most_tokens: int = about("most tokens that it keeps", CorpusPlan().most_tokens)

    def run(self) -> int:
        from paceline.autospec.corpus import merge_corpora

        plan = CorpusPlan(most_tokens=self.most_tokens)
        _tell(merge_corpora(self.folder, [Path(name) for name in self.corpora], plan))
        return 0


@checked
class CorpusShowCommand:
    """Show what a corpus holds, or the versions of one."""

    folder: Folder = about("a version's folder, or the folder of several versions")
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.drafters.corpus_folder import corpus_versions, read_corpus_manifest

        folders = corpus_versions(self.folder) or [self.folder]
        manifests = [read_corpus_manifest(folder, "folder") for folder in folders]
        if self.json:
            shown = [manifest.model_dump(mode="json") for manifest in manifests]
            print(json.dumps(shown if len(shown) > 1 else shown[0], indent=2))
            return 0
        console = Console(highlight=False)
        console.print(_versions(manifests))
        console.print(_cohorts(manifests[-1]))
        return 0


def _tell(folder: Path) -> None:
    """Print what was built, and how it is used."""
    from paceline.drafters.corpus_folder import read_corpus_manifest

    manifest = read_corpus_manifest(folder, "folder")
    words = {name.replace("_", " "): count for name, count in manifest.counts.items()}
    counts = ", ".join(f"{count} {name}" for name, count in words.items())
    print(f"{folder}: {manifest.answers} answers, {manifest.tokens} tokens ({counts})")
    print(f"draft from it with --drafter suffix,corpus={folder}")


def _versions(manifests: list[CorpusManifest]) -> object:
    from paceline.drafters.corpus_folder import written_time

    table = plain_table(
        "version", "answers", "tokens", "for", "made for", "created", "expires",
        left=("for", "made for", "created", "expires"),
    )  # fmt: skip
    for manifest in manifests:
        table.add_row(
            manifest.name,
            str(manifest.answers),
            str(manifest.tokens),
            "all keys" if manifest.scope is None else f"key {manifest.scope}",
            manifest.target.get("name", "?"),
            written_time(manifest.created),
            written_time(manifest.expires),
        )
    return table


def _cohorts(manifest: CorpusManifest) -> object:
    table = plain_table("cohort", "answers", "tokens", left=("cohort",))
    for label, part in manifest.cohorts.items():
        table.add_row(label, str(part.answers), str(part.tokens))
    return table
