"""The grammar that the answers of a training set were bound to, as its manifest keeps it.

An evaluation on the set binds its answers to the same grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core import Grammar
from paceline.core.params import GRAMMAR_KINDS
from paceline.dataset.fields import Fields


@dataclass(frozen=True, slots=True)
class Binding:
    """A grammar that binds the answers to the prompts of `sources`, and no other answers."""

    grammar: Grammar
    sources: tuple[str, ...]

    def of(self, source: str) -> Grammar | None:
        """Return the grammar of the row with this `source` ("chitchat#118"), None if free."""
        return self.grammar if source.partition("#")[0] in self.sources else None

    def as_json(self) -> dict[str, Any]:
        sources = list(self.sources)
        return {"kind": self.grammar.kind, "value": self.grammar.source, "sources": sources}


def read_binding(app: Mapping[str, Any], where: str) -> Binding | None:
    """From the `app` of a manifest, which is found at `where`. None for a set whose answers are
    free, and for one that is older than this field.

    Raises InvalidRequest, naming the field; whether it compiles needs the model's tokenizer.
    """
    if app.get("bound") is None:
        return None
    fields = Fields(app["bound"], f"{where}.bound", ("kind", "value", "sources"))
    kind, value = fields.choice("kind", GRAMMAR_KINDS), fields.text("value")
    return Binding(Grammar(kind, value, fields.named("value")), fields.texts("sources"))
