"""The commands about a model by itself: `paceline pull` and `paceline quality`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

from paceline.cli.options import DEFAULTS, FILE, MODEL_HELP, Network, Positional, Strings
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.names import local_path
from paceline.engine.config import EngineConfig


@checked
class PullCommand:
    """Fetch a model ahead of its first use.

    The model goes into the cache, and the command prints its folder.
    """

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    revision: str | None = about("with a hub id: a branch, tag or commit", None)

    def run(self) -> int:
        from paceline.models.catalog import pull

        print(pull(self.model, revision=self.revision))
        return 0


@checked
class QualityCommand:
    """Measure what quantising costs a model.

    Compares a quantised model with the same model unquantised, on real text: perplexity, and the
    share of positions with the same most likely token.
    """

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    text: Annotated[Strings, FILE] = about(
        "text to measure on, repeatable (default: the shipped prose and code)", ()
    )
    json: bool = about("print the numbers as JSON", False)
    engine: Network = EngineConfig(quantize="int8")

    def run(self) -> int:
        texts = [_read_text(name) for name in self.text] or None

        from paceline.engine.quality import examine

        quality, engine = examine(self.engine, texts), self.engine
        if self.json:
            print(json.dumps(dataclasses.asdict(quality)))
        else:
            told = quality.describe(engine.dtype)
            print(f"{engine.quantize}: {told} over {quality.tokens} tokens")
        return 0


def _read_text(name: str) -> str:
    path = local_path(name, "text")
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest("text", name, f"a readable text file ({error})") from error
