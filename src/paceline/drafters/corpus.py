"""A corpus as look-ups use it: read-only, and shared by all requests that it is for.

Its answers are the target's own text, so a draft from it is likely to stand; where it is wrong it
costs speed, never text.
"""

from __future__ import annotations

import time

import numpy as np

from paceline.core import InvalidRequest, Request
from paceline.core.names import local_path
from paceline.drafters.context_array import ContextArray
from paceline.drafters.corpus_folder import (
    CorpusManifest,
    read_corpus_arrays,
    read_corpus_manifest,
    written_time,
)
from paceline.models.loader import LoadedModel, template_digest, tokenizer_digest

MOST_TOKENS = 100_000_000  # of a corpus that is loaded: 2.8 GB in memory


class Corpus:
    """A loaded corpus."""

    def __init__(self, manifest: CorpusManifest, index: ContextArray) -> None:
        self.manifest, self.index = manifest, index

    @property
    def most_bytes(self) -> int:
        """The most memory that it takes."""
        return self.index.most_bytes

    def serves(self, request: Request) -> bool:
        """Return whether a request may draft from the corpus. One whose verification is not
        lossless may not: an accepted draft would put others' text into its output."""
        manifest = self.manifest
        in_scope = manifest.scope is None or manifest.scope == request.key
        return in_scope and request.lossless and time.time() < manifest.expires

    @property
    def row(self) -> str:
        """What the start-up table says of it."""
        manifest, size = self.manifest, self.most_bytes / 2**20
        whom = "all requests" if manifest.scope is None else f"key {manifest.scope} alone"
        return (
            f"version {manifest.name}: {manifest.answers} answers, {manifest.tokens} tokens, up to "
            f"{size:.0f} MiB, for {whom}, until {written_time(manifest.expires)}"
        )


def load_corpus(
    folder: str, target: LoadedModel | None, field: str, max_context: int | None = None
) -> Corpus:
    """Load a corpus for a target; None where a drafter's spec is only checked. Contexts of up to
    `max_context` tokens are looked up, by default as many as it is sorted by.

    Raises InvalidRequest for `field`: a folder without a corpus, a damaged one, one that has
    expired, one of another tokenizer.
    """
    path = local_path(folder, field)
    manifest = read_corpus_manifest(path, field)
    if manifest.expires <= time.time():
        at = written_time(manifest.expires)
        raise InvalidRequest(field, folder, f"a corpus that has not expired; this one did, {at}")
    if target is not None:
        check_tokenizer(manifest, target, folder, field)
    if manifest.tokens > MOST_TOKENS:
        expected = f"at most {MOST_TOKENS} tokens, and not {manifest.tokens}"
        raise InvalidRequest(field, folder, expected)
    arrays = read_corpus_arrays(path, field)
    tokens, order = arrays["tokens"], arrays["order"]
    repeats = np.repeat(arrays["repeats"], np.diff(arrays["starts"]))[order]
    return Corpus(manifest, ContextArray(tokens, order, repeats, max_context))


def corpus_target(loaded: LoadedModel) -> dict[str, str]:
    """Return what a corpus states of the model that gave its answers."""
    template = getattr(loaded.tokenizer, "chat_template", None) or ""
    return {
        "name": loaded.name,
        "tokenizer_sha256": tokenizer_digest(loaded.path),
        "template": template_digest(template),
    }


def check_tokenizer(manifest: CorpusManifest, target: LoadedModel, folder: str, field: str) -> None:
    """Raise InvalidRequest for a corpus whose token ids mean something else to the target."""
    if not (target.path / "tokenizer.json").is_file():
        expected = f"no corpus: nothing says what tokenizer {target.name} has"
        raise InvalidRequest(field, folder, expected)
    ours, theirs = tokenizer_digest(target.path), manifest.target.get("tokenizer_sha256", "")
    if ours != theirs:
        made_for = manifest.target.get("name", "another model")
        expected = (
            f"a corpus of {target.name}'s tokenizer ({ours[:12]}); this one was made for "
            f"{made_for}'s ({theirs[:12]})"
        )
        raise InvalidRequest(field, folder, expected)
