"""What an evaluation says of an engine that serves elsewhere."""

from __future__ import annotations

from pydantic import Field

from paceline.core.documents import Document

PARTIAL = "PARTIAL"  # marks reports of engines that broke off


class EvaluatedEngine(Document):
    """An engine that was asked over HTTP.

    kind, version      what it is
    draft_len          tokens of its longest draft; None where it was told nowhere
    prompts            "token ids", or "messages" where its tokenizer is not ours
    reference          what answered without speculation; None: nothing did
    promises_text      whether it promises the same text with and without speculation
    missing            what the engine does not tell or cannot do, a sentence each
    broke_off          why the evaluation ended before its time; None where it did not
    """

    kind: str
    version: str | None
    draft_len: int | None
    prompts: str
    reference: str | None
    promises_text: bool
    missing: list[str] = Field(default_factory=list)
    broke_off: str | None = None

    @property
    def described(self) -> str:
        """`vllm 0.32.0, asked in token ids, beside a second server without speculation`."""
        name = self.kind if self.version is None else f"{self.kind} {self.version}"
        beside = "with nothing beside it" if self.reference is None else f"beside {self.reference}"
        return f"{name}, asked in {self.prompts}, {beside}"

    @property
    def notes(self) -> list[str]:
        """Sentences that stand above all numbers."""
        notes = list(self.missing)
        if self.reference is None:
            notes.append(
                "No answer without speculation was there to compare with: there is no speedup, and "
                "no text was compared."
            )
        if self.broke_off is not None:
            why = self.broke_off.rstrip(".")
            notes.insert(0, f"{PARTIAL}: {why}. The numbers are of the answers until then.")
        return notes
