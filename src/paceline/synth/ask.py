"""From a prompt to a request: the application's messages, rendered as serving renders them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.dataset.training_set import Binding
from paceline.engine.grammar import Compiler
from paceline.engine.tool_calls import arguments_schema, calls_grammar, format_of
from paceline.llm import encode_chat, render_chat
from paceline.models.loader import LoadedModel, identity, load_model
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.plan import Item
from paceline.synth.prompts import Message, SourcePrompt, keyed, make_prompt
from paceline.synth.source_spec import SourceSpec, TurnSource
from paceline.synth.sources import Source

CONTEXT = 2048  # longest row where neither the application nor the model says less
SENTINEL = "paceline-user-turn"


class ItemDropped(Exception):
    """A prompt or an answer becomes no row; the text is the reason under which it is counted."""


@dataclass(frozen=True, slots=True)
class SynthTarget:
    """The target as far as prompts need it. `context` is the longest row; `identity` is as in a
    set's manifest."""

    loaded: LoadedModel
    context: int
    identity: dict[str, Any]
    compiler: Compiler = field(repr=False)

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer


def load_target(app: App) -> SynthTarget:
    """Read headers, tokenizer and digests of the target, but not its weights.

    Raises ModelError for a model that cannot be served, and InvalidRequest for a model without a
    chat template or a context that is too long for it.
    """
    loaded = load_model(app.model)
    if not getattr(loaded.tokenizer, "chat_template", None):
        raise InvalidRequest("model", app.model, "a model with a chat template")
    if app.context is not None and app.context > loaded.max_context:
        expected = f"at most the model's {loaded.max_context} tokens"
        raise InvalidRequest("context", app.context, expected)
    context = app.context or min(CONTEXT, loaded.max_context)
    if app.sampling.max_tokens >= context:
        expected = f"fewer than {context}, the longest row, in which the prompt stands too"
        raise InvalidRequest("sampling.max_tokens", app.sampling.max_tokens, expected)
    compiler = Compiler(loaded.tokenizer, loaded.config.vocab_size, loaded.eos_ids)
    return SynthTarget(loaded, context, identity(loaded), compiler)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A prompt that ends where the user begins to speak. The turn ends at `stop_ids` or at
    `stop_texts`."""

    ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]


class Asker:
    """Makes requests of one application for one target.

    The constructor raises InvalidRequest for a grammar that does not compile, and for a template
    that drops a message of the application.
    """

    def __init__(self, app: App, target: SynthTarget) -> None:
        self.app, self.target = app, target
        self.tools = app.bounds.tools
        added = target.tokenizer.added_tokens_decoder.values()
        self._special = {token.content for token in added if token.special}
        self.grammar = self._compiled()
        self._turns: dict[tuple[str, str], OpenTurn] = {}
        for spec in app.sources:
            try:
                self._encode(spec, self.messages(spec, _probe()))
            except InvalidRequest as error:
                raise InvalidRequest(spec.where, error.value, error.expected) from error
            if isinstance(spec, TurnSource):
                self._open_turn(spec, spec.starts[0])

    # -- answers ----------------------------------------------------------------------------------

    def ask(self, item: Item, prompt: SourcePrompt) -> Ask:
        """Return the application's request for a prompt. Raises ItemDropped."""
        messages = self.messages(item.spec, prompt)
        if any(token in message["content"] for message in messages for token in self._special):
            raise ItemDropped("special_token")  # would end the turn that it stands in
        try:
            ids = self._encode(item.spec, messages)
        except InvalidRequest:
            raise ItemDropped("not_rendered") from None
        params = self.params(item, prompt)
        if len(ids) + (params.max_tokens or 0) > self.target.context:
            raise ItemDropped("too_long")
        return Ask(item.index, tuple(ids), params, tuple(messages), self.bound(item.spec))

    def params(self, item: Item, prompt: SourcePrompt) -> SamplingParams:
        temperatures = self.app.temperatures
        place = keyed(self.app.seed, "temperature", prompt.key, item.sample) % len(temperatures)
        return replace(
            self.app.params,
            temperature=temperatures[place],
            seed=item.seed,
            grammar=self.grammar if self.bound(item.spec) else None,
        )

    def bound(self, spec: SourceSpec) -> bool:
        """Return True where answers to this source keep to the application's grammar or tools."""
        return spec.own_system and bool(self.app.bounds)

    @property
    def binding(self) -> Binding | None:
        """The grammar that answers are bound to, None where all are free."""
        names = tuple(spec.name for spec in self.app.sources if self.bound(spec))
        if self.grammar is None or not names:
            return None
        grammar = {"kind": self.grammar.kind, "value": self.grammar.source}
        return Binding.read(grammar | {"sources": names})

    def messages(self, spec: SourceSpec, prompt: SourcePrompt) -> list[Message]:
        """Return the conversation as the application sends it."""
        text = spec.template.replace("{prompt}", prompt.text)
        messages = [*prompt.messages[:-1], {"role": "user", "content": text}]
        if not spec.own_system:
            return messages
        messages[-1]["content"] = self.app.template.replace("{prompt}", text)
        messages = [message for message in messages if message["role"] != "system"]
        return [*self._system(spec), *messages]

    def probes(self, sources: Sequence[Source]) -> Iterator[Ask]:
        """Yield a short request as the application sends it, and another as plain chat, where the
        sources have such."""
        seen = set()
        for source in sources:
            if source.spec.own_system not in seen and source.prompts:
                seen.add(source.spec.own_system)
                item = Item(-1, source.spec, source.prompts[0], 0, 0, 0)
                yield self.ask(item, _probe())

    # -- the user's turn, written by the target ---------------------------------------------------

    def turn(self, item: Item) -> Ask:
        """Return the request for a user's turn (Magpie, arXiv 2406.08464): its prompt stops where
        the user would begin to speak. Raises ItemDropped."""
        spec = _turn_source(item)
        seed, start = self._begun(item)
        turn = self._open_turn(spec, start)
        if len(turn.ids) + spec.max_tokens > self.target.context:
            raise ItemDropped("too_long")
        params = SamplingParams(
            temperature=spec.temperature,
            max_tokens=spec.max_tokens,
            stop=turn.stop_texts,
            stop_token_ids=turn.stop_ids,
            seed=seed,
        )
        return Ask(item.index, turn.ids, params, ())

    def written(self, item: Item, answer: TargetAnswer) -> SourcePrompt:
        """Return the user's turn that the target wrote, as a prompt. Raises ItemDropped."""
        if answer.finish_reason != "stop":
            raise ItemDropped("turn_cut")
        spec, tokenizer = _turn_source(item), self.target.tokenizer
        _, start = self._begun(item)
        turn = self._open_turn(spec, start)
        ends = self.target.loaded.eos_ids | set(turn.stop_ids)
        ids = answer.ids[:-1] if answer.ids[-1:] and answer.ids[-1] in ends else answer.ids
        text = tokenizer.decode(ids, skip_special_tokens=False)
        for end in turn.stop_texts:
            text = text.split(end)[0]
        text = (start + text).strip()
        if "\ufffd" in text or any(token in text for token in self._special):
            raise ItemDropped("turn_undecodable")
        prompt = make_prompt(text, str(item.number))
        if prompt is None or not spec.length[0] <= len(prompt.text) <= spec.length[1]:
            raise ItemDropped("turn_length")
        return prompt

    def _begun(self, item: Item) -> tuple[int, str]:
        """Return seed and beginning of a user's turn."""
        seed = keyed(self.app.seed, "turn", item.spec.name, item.number)
        starts = _turn_source(item).starts
        return seed, starts[seed % len(starts)]

    def _open_turn(self, spec: TurnSource, start: str) -> OpenTurn:
        turn = self._turns.get((spec.name, start))
        if turn is None:
            turn = self._turns[spec.name, start] = self._rendered_turn(spec, start)
        return turn

    def _rendered_turn(self, spec: TurnSource, start: str) -> OpenTurn:
        tokenizer = self.target.tokenizer
        messages = [*self._system(spec), {"role": "user", "content": SENTINEL}]
        tools = self.tools if spec.own_system else ()
        head, sentinel, tail = render_chat(tokenizer, messages, tools).partition(SENTINEL)
        if not sentinel or not tail.strip():
            expected = "another kind: the model's chat template has no end of the user's turn"
            raise InvalidRequest(f"{spec.where}.kind", spec.kind, expected)
        ids = tuple(tokenizer(head + start, add_special_tokens=False)["input_ids"])
        end = tokenizer(tail, add_special_tokens=False)["input_ids"]
        if end[0] in tokenizer.get_added_vocab().values():
            return OpenTurn(ids, (end[0],), ())
        return OpenTurn(ids, (), (tail.strip().splitlines()[0],))

    # -- inside -----------------------------------------------------------------------------------

    def _system(self, spec: SourceSpec) -> list[Message]:
        if not spec.own_system or self.app.system is None:
            return []
        return [{"role": "system", "content": self.app.system}]

    def _encode(self, spec: SourceSpec, messages: list[Message]) -> list[int]:
        tools = self.tools if spec.own_system else ()
        return encode_chat(self.target.tokenizer, messages, tools)

    def _compiled(self) -> Grammar | None:
        bounds, compiler = self.app.bounds, self.target.compiler
        grammar = bounds.grammar
        if bounds.tools:
            for index, function in enumerate(bounds.functions):
                schema, where = arguments_schema(function), f"tools[{index}].function.parameters"
                compiler.compile(Grammar("json_schema", json.dumps(schema), where))
            grammar = calls_grammar(
                format_of(self.target.tokenizer.chat_template),
                bounds.functions,
                required=bounds.required,
                several=True,
                final=None,
                is_token=self.target.tokenizer.get_added_vocab().__contains__,
            )
        if grammar is not None:
            compiler.compile(grammar)
        return grammar


def _turn_source(item: Item) -> TurnSource:
    assert isinstance(item.spec, TurnSource)
    return item.spec


def _probe() -> SourcePrompt:
    prompt = make_prompt("Where is my parcel?", "0")
    assert prompt is not None
    return prompt
