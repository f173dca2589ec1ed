"""The language of a request's text, by py3langid, which needs no network and no other package."""

from __future__ import annotations

import importlib
import threading
from functools import cache
from importlib.util import find_spec
from typing import Protocol

from paceline.core.cohorts import UNKNOWN

PACKAGE = "py3langid"
MOST_BYTES = 400  # of a text, in UTF-8; these take about 0.1 ms
CERTAIN = 0.2  # least probability of a language; shorter texts than a few words stay below
NO_LANGUAGE = "zxx"  # numbers, markup, identifiers: ISO 639's word for no language


class Identifier(Protocol):
    def classify(self, text: bytes) -> tuple[str, float]: ...


class Languages:
    """Tells the language of texts, once load() has been called and where the package is there.
    Before, and without it, every language is UNKNOWN."""

    def __init__(self) -> None:
        self._identifier: Identifier | None = None

    def load(self) -> None:
        """Load the detector, which takes half a second: once for each process. Any thread may."""
        if find_spec(PACKAGE) is not None:
            self._identifier = _identifier()

    def load_soon(self) -> None:
        """Load the detector on a thread of its own."""
        threading.Thread(target=self.load, name="paceline-languages", daemon=True).start()

    def of(self, text: str) -> str:
        """Return the ISO 639 code of the language that a text begins in, or UNKNOWN."""
        start = text[:MOST_BYTES].encode("utf-8", "ignore")[:MOST_BYTES]
        if self._identifier is None or not start or start.isspace():
            return UNKNOWN
        language, _ = self._identifier.classify(start)
        return UNKNOWN if language == NO_LANGUAGE else language


@cache
def _identifier() -> Identifier:
    module = importlib.import_module("py3langid.langid")
    kind = module.LanguageIdentifier
    made: Identifier = kind.from_model_file(
        module.MODEL_FILE, norm_probs=True, min_confidence=CERTAIN
    )
    return made
