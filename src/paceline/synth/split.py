"""The split of a prompt: whole phrases and whole beginnings are held out, not single fillings.

A prompt that was made from a phrase, or from a beginning of the user's turn, has it as its origin.
Prompts of one origin are alike, so all of them fall on one side. A prompt without an origin falls
by its own key, and a prompt made from that one falls with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.core.documents import Document
from paceline.dataset.training_set import Split
from paceline.synth.app import App
from paceline.synth.prompts import keyed, share_of
from paceline.synth.source_spec import TurnSource
from paceline.synth.sources import Source

SPLIT = "split"  # in the manifest's `app`
OF_PROMPT = re.compile("#[0-9a-f]{16}")  # SourcePrompt.family of a prompt without an origin
UNTRAINED: dict[str, Split] = {"neighbour": "neighbour", "foreign": "foreign"}  # by part


class SplitRule(Document):
    """How the prompts of a set are split, as its manifest says it. `share` of the prompts without
    an origin are held out, and of each source's origins those in `held_out`; `origins` counts the
    others."""

    by: str = "origin"
    share: float
    origins: int
    held_out: list[str]

    def split_of(self, part: str, key: str, origin: str) -> Split:
        """Return the split of a prompt: it depends on nothing else."""
        if part in UNTRAINED:
            return UNTRAINED[part]
        if origin and not OF_PROMPT.fullmatch(origin):
            return "held_out" if origin in self.held_out else "train"
        decisive = origin.removeprefix("#") or key
        return "held_out" if share_of(decisive) < self.share else "train"


def split_rule(app: App, sources: Sequence[Source]) -> SplitRule:
    """Return the rule of an application. Each source with two origins or more holds one out at
    least, so that no split is empty by chance."""
    groups = [origins_of(source) for source in sources if source.spec.part not in UNTRAINED]
    held = {origin for group in groups for origin in held_origins(group, app.held_out)}
    every = {origin for group in groups for origin in group}
    return SplitRule(share=app.held_out, origins=len(every - held), held_out=sorted(held))


def read_split(app: dict[str, Any]) -> SplitRule | None:
    """Return the rule of a manifest's `app`; None for a set that was split prompt by prompt, before
    there were rules. Raises InvalidRequest."""
    return None if SPLIT not in app else SplitRule.read(app[SPLIT], f"app.{SPLIT}")


def origins_of(source: Source) -> set[str]:
    """Return the origins that the prompts of a source have."""
    if isinstance(source.spec, TurnSource):
        return {start for start in source.spec.starts if start}
    origins = {prompt.origin for prompt in source.prompts if prompt.origin}
    return {origin for origin in origins if not OF_PROMPT.fullmatch(origin)}


def held_origins(origins: Iterable[str], share: float) -> list[str]:
    """Return the origins that are held out: `share` of them, rounded, and one at least where there
    are two. A larger share takes more, and lets go of none."""
    order = sorted(origins, key=lambda origin: keyed("split", origin))
    if share == 0 or len(order) < 2:
        return []
    return order[: max(1, round(share * len(order)))]
