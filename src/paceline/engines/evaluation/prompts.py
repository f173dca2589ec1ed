"""Prompts for an engine elsewhere: token ids where its tokenizer is ours, else conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.prompts import load_prompts
from paceline.core import Grammar, InvalidRequest, PacelineError
from paceline.core.names import local_path
from paceline.engines.answers import EngineAsk, Message
from paceline.engines.client import EngineClient, EngineRefused
from paceline.evaluate.doctor import encoded
from paceline.evaluate.evaluation import check_target
from paceline.evaluate.sets import EvalSet, SetSpec, evenly, load_set
from paceline.models.any_target import AnyTarget, read_target
from paceline.models.catalog import CATALOGUE, canonical
from paceline.models.on_disk import stored_models

TOKEN_IDS, MESSAGES = "token ids", "messages"
# Letters, digits, spaces, signs and scripts that tokenizers cut in different ways.
PROBE = "Paceline 0.32 reads:\n\n  def f(x): return x**2  # 12345 Grüße, 你好, Привет 🙂"


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """One prompt as an engine takes it."""

    name: str
    prompt: tuple[int, ...] | tuple[Message, ...]
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class ServedSet:
    """The prompts of one of SETS. `left_out` prompts do not fit the context."""

    spec: SetSpec
    prompts: list[ServedPrompt]
    left_out: int = 0

    @property
    def grammar(self) -> Grammar | None:
        return next((prompt.grammar for prompt in self.prompts if prompt.grammar), None)


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Reads sets for one engine. `target` is the model that it serves, where that lies here and has
    the engine's tokenizer; `missing` says why it does not."""

    target: AnyTarget | None
    missing: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, client: EngineClient, model: str) -> PromptSource:
        """Look the target up on this machine, and compare its tokenizer with the engine's."""
        target = local_target(model)
        if target is None:
            why = f"{model} is not on this machine"
        elif not has_tokenizer(client, target):
            why = f"the tokenizer of {client.model} at the engine is not that of {model} here"
        else:
            return cls(target)
        missing = f"Prompts went as {MESSAGES}, under the engine's own chat template: {why}."
        return cls(None, [missing])

    @property
    def form(self) -> str:
        return MESSAGES if self.target is None else TOKEN_IDS

    def read(self, spec: SetSpec, prompts: int, fits: int) -> ServedSet:
        """Read a set: at most `prompts` prompts, of at most `fits` tokens where tokens are known.

        Raises InvalidRequest (field `sets`).
        """
        if self.target is None:
            return _conversations(spec, prompts)
        target = self.target
        loaded = load_set(
            spec,
            lambda messages: encoded(target.tokenizer, messages),
            prompts=prompts,
            fits=fits,
            answers=0,
        )
        check_target(target, loaded)
        return _token_ids(loaded)


def local_target(model: str) -> AnyTarget | None:
    """Load a model's config and tokenizer, of whatever family; None where that would have to be
    fetched, or cannot be read."""
    try:
        name = canonical(model)
        known = name in CATALOGUE or local_path(name, "model").exists()
        if not known and name not in {stored.name for stored in stored_models()}:
            return None
        return read_target(name)
    except PacelineError:
        return None


def has_tokenizer(client: EngineClient, target: AnyTarget) -> bool:
    """Return whether the engine reads a text as the same tokens. Raises EngineError where it is
    gone."""
    try:
        told = client.ask(EngineAsk(PROBE, max_tokens=1)).prompt_token_ids
    except EngineRefused:
        return False
    return told == list(target.tokenizer(PROBE)["input_ids"])


def _token_ids(loaded: EvalSet) -> ServedSet:
    prompts = [ServedPrompt(each.name, each.ids, each.grammar) for each in loaded.prompts]
    return ServedSet(loaded.spec, prompts, loaded.left_out)


def _conversations(spec: SetSpec, count: int) -> ServedSet:
    if spec.choice is not None:
        expected = "a file of prompts: the rows of a training set are token ids of another model"
        raise InvalidRequest("sets", spec.name, expected)
    given = load_prompts(spec.path, "sets")
    different: dict[str, Sequence[Message]] = {}
    names = {repr(prompt.messages): prompt.name for prompt in reversed(given)}
    for prompt in given:
        different.setdefault(repr(prompt.messages), prompt.messages)
    chosen = evenly(list(different), count)
    return ServedSet(spec, [ServedPrompt(names[key], tuple(different[key])) for key in chosen])
