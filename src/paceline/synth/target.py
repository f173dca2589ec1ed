"""The target as far as prompts need it: its tokenizer, its limits, and who it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.core import InvalidRequest
from paceline.engine.grammar import Compiler
from paceline.models.loader import LoadedModel, identity, load_model
from paceline.synth.app import App

CONTEXT = 2048  # longest row where neither the application nor the model says less


@dataclass(frozen=True, slots=True)
class Target:
    """`context` is the longest row; `identity` as in a set's manifest."""

    loaded: LoadedModel
    context: int
    identity: dict[str, Any]
    compiler: Compiler = field(repr=False)

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer


def load_target(app: App) -> Target:
    """Reads headers, tokenizer and digests, not the weights.

    Raises ModelError for what cannot be served, and InvalidRequest for a model without a chat
    template or a context that is too long for it.
    """
    loaded = load_model(app.model)
    if not getattr(loaded.tokenizer, "chat_template", None):
        raise InvalidRequest("model", app.model, "a model with a chat template")
    if app.context is not None and app.context > loaded.max_context:
        expected = f"at most the model's {loaded.max_context} tokens"
        raise InvalidRequest("context", app.context, expected)
    context = app.context or min(CONTEXT, loaded.max_context)
    most = app.params.max_tokens or 0
    if most >= context:
        expected = f"fewer than {context}, the longest row, in which the prompt stands too"
        raise InvalidRequest("sampling.max_tokens", most, expected)
    compiler = Compiler(loaded.tokenizer, loaded.config.vocab_size, loaded.eos_ids)
    return Target(loaded, context, identity(loaded), compiler)
