"""Cohorts: requests that behave alike, so that acceptance is counted for them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Self
from urllib.parse import unquote

from paceline.core.errors import InvalidRequest

OTHER = "other"  # parts of the cohort that rare cohorts are counted in
NONE = "none"  # the app or the region of a request that names none
UNKNOWN = "und"  # a language that nobody could tell, as ISO 639 calls it


@dataclass(frozen=True, slots=True, order=True)
class Cohort:
    """The requests of one app in one language from one region to one model.

    `label` is its one text form: on metrics, in rounds, in trace files, in the store of drafters.
    """

    model: str
    app: str = NONE
    language: str = UNKNOWN
    region: str = NONE

    @property
    def label(self) -> str:
        """The parts as `model|app|language|region`; a % or | inside a part is percent-encoded."""
        return "|".join(_escaped(part) for part in astuple(self))

    @classmethod
    def parse(cls, label: str) -> Self:
        """Read a label. Raises InvalidRequest (field `cohort`)."""
        parts = [unquote(part) for part in label.split("|")]
        if len(parts) != len(PARTS) or not all(parts):
            expected = "model|app|language|region, for example `Qwen3-8B|chat|de|eu`"
            raise InvalidRequest("cohort", label, expected)
        return cls(*parts)

    @classmethod
    def pooled(cls, model: str) -> Self:
        """Return the cohort that counts the rare cohorts of a model together."""
        return cls(model, OTHER, OTHER, OTHER)

    @property
    def is_pooled(self) -> bool:
        return (self.app, self.language, self.region) == (OTHER, OTHER, OTHER)

    @property
    def told(self) -> dict[str, str]:
        """The parts beside the model that something is known of, as logs show them."""
        parts = {"app": self.app, "language": self.language, "region": self.region}
        return {name: text for name, text in parts.items() if text not in (NONE, UNKNOWN)}

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Return whether each part that `wanted` names has that value; {} matches all cohorts."""
        return all(getattr(self, part) == value for part, value in wanted.items())


PARTS = tuple(field.name for field in fields(Cohort))


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("|", "%7C")
