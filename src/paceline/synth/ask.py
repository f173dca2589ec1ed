"""From a prompt to a request: the application's messages, rendered as serving renders them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.dataset.training_set import Binding
from paceline.engine.grammar import Compiler
from paceline.engine.tool_calls import Calls, answer_grammar
from paceline.engine.tool_formats import arguments_schema, format_of
from paceline.llm import encode_chat, render_chat
from paceline.models.any_target import AnyTarget, read_target
from paceline.models.loader import LoadedModel, identity
from paceline.models.tokenizer import template_for, template_variables
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.plan import Item
from paceline.synth.prompts import Message, SourcePrompt, Tool, keyed, make_prompt
from paceline.synth.source_spec import (
    AnySource,
    PackageSource,
    RecordSource,
    RewriteSource,
    TurnSource,
)
from paceline.synth.sources import Source

CONTEXT = 2048  # longest row where neither the application nor the model says less
SENTINEL = "paceline-user-turn"
PROBE = SourcePrompt(({"role": "user", "content": "Where is my parcel?"},), place="0", key="0")


class ItemDropped(Exception):
    """A prompt or an answer becomes no row; the text is the reason under which it is counted."""


@dataclass(frozen=True, slots=True)
class SynthTarget:
    """The target as far as prompts need it. `context` is the longest row; `identity` is as in a
    set's manifest."""

    model: AnyTarget
    context: int
    identity: dict[str, str]
    compiler: Compiler = field(repr=False)

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def loaded(self) -> LoadedModel:
        """The target for an engine of our own. Raises InvalidRequest (field `url`) for a family
        that no engine of ours serves."""
        if self.model.loaded is None:
            expected = f"a server of {self.model.name}: {self.model.refusal}"
            raise InvalidRequest("url", None, expected)
        return self.model.loaded


def load_target(app: App) -> SynthTarget:
    """Read headers, tokenizer and digests of the target, but not its weights.

    Raises ModelError for a model that cannot be read, and InvalidRequest for a model without a
    chat template or a context that is too long for it.
    """
    model = read_target(app.model)
    if not getattr(model.tokenizer, "chat_template", None):
        raise InvalidRequest("model", app.model, "a model with a chat template")
    if app.context is not None and app.context > model.max_context:
        expected = f"at most the model's {model.max_context} tokens"
        raise InvalidRequest("context", app.context, expected)
    context = app.context or min(CONTEXT, model.max_context)
    if app.sampling.max_tokens >= context:
        expected = f"fewer than {context}, the longest row, in which the prompt stands too"
        raise InvalidRequest("sampling.max_tokens", app.sampling.max_tokens, expected)
    compiler = Compiler(model.tokenizer, model.shape.vocab_size, model.eos_ids)
    return SynthTarget(model, context, identity(model), compiler)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A prompt that ends where the user begins to speak, with `start`. The turn ends at `stop_ids`
    or at `stop_texts`."""

    start: str
    ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]


class Asker:
    """Makes requests of one application for one target.

    The constructor raises InvalidRequest for a grammar that does not compile, and for a template
    that drops a message of the application or does not read its variables.
    """

    def __init__(self, app: App, target: SynthTarget) -> None:
        self.app, self.target = app, target
        self.tools = app.bounds.tools
        self._params = app.sampling.params
        added = target.tokenizer.added_tokens_decoder.values()
        self._special = {token.content for token in added if token.special}
        self._check_variables()
        self.grammar = self._compiled()
        self._turns: dict[tuple[bool, str], OpenTurn] = {}
        for index, spec in enumerate(app.sources):
            where = f"sources[{index}]"
            try:
                self._encode(self.messages(spec, PROBE), self._tools_of(spec))
            except InvalidRequest as error:
                raise InvalidRequest(where, error.value, error.expected) from error
            if isinstance(spec, TurnSource):
                try:
                    self._open_turn(spec, spec.starts[0])
                except InvalidRequest as error:
                    raise error.within(where) from error

    def ask(self, item: Item, prompt: SourcePrompt) -> Ask:
        """Return the application's request for a prompt. Raises ItemDropped."""
        messages = self.messages(item.spec, prompt, item.sample)
        if any(token in message["content"] for message in messages for token in self._special):
            raise ItemDropped("special_token")  # would end the turn that it stands in
        try:
            ids = self._encode(messages, self._tools_of(item.spec, prompt.tools))
        except InvalidRequest:
            raise ItemDropped("not_rendered") from None
        sampling, bound = self.app.sampling, self.bound(item.spec)
        if len(ids) + sampling.max_tokens > self.target.context:
            raise ItemDropped("too_long")
        draw = keyed(self.app.seed, "temperature", prompt.key, item.sample)
        params = replace(
            self._params,
            temperature=sampling.temperature[draw % len(sampling.temperature)],
            seed=item.seed,
            grammar=self.grammar if bound else None,
        )
        return Ask(item.index, tuple(ids), params, tuple(messages), bound, prompt.tools, not bound)

    def check(self, ask: Ask, answer: TargetAnswer) -> None:
        """Raise ItemDropped for an answer that cannot be used: faulty, empty, or cut before the end
        of its grammar."""
        if answer.fault is not None:
            raise ItemDropped(answer.fault)
        if not self.without_end(answer.ids):
            raise ItemDropped("empty")
        if ask.bound and answer.finish_reason != "stop":
            raise ItemDropped("grammar_cut")

    def without_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the end of turn, where there is one."""
        return ids[:-1] if ids and ids[-1] in self.target.model.eos_ids else ids

    def bound(self, spec: AnySource) -> bool:
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

    def messages(self, spec: AnySource, prompt: SourcePrompt, sample: int = 0) -> list[Message]:
        """Return the conversation as the application sends it."""
        draw = keyed(self.app.seed, "template", spec.name, prompt.key) + sample
        template = spec.template[draw % len(spec.template)]
        text = template.replace("{prompt}", prompt.text)
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
                yield self.ask(Item(-1, source.spec, source.prompts[0], 0, 0, 0), PROBE)

    def turn(self, item: Item) -> Ask:
        """Return the request for a user's turn (Magpie, arXiv 2406.08464): its prompt stops where
        the user would begin to speak. Where another prompt is to be said anew, the target is asked
        for that. Raises ItemDropped."""
        if item.base is not None:
            return self._rewriting(item, item.base)
        spec, seed, turn = self._begun(item)
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
        if answer.fault is not None:
            raise ItemDropped(answer.fault)
        if answer.finish_reason != "stop":
            raise ItemDropped("turn_cut")
        turn = OpenTurn("", (), (), ()) if item.base is not None else self._begun(item)[2]
        ends = self.target.model.eos_ids | set(turn.stop_ids)
        ids = answer.ids[:-1] if answer.ids and answer.ids[-1] in ends else answer.ids
        text = self.target.tokenizer.decode(ids, skip_special_tokens=False)
        for end in turn.stop_texts:
            text = text.split(end)[0]
        text = (turn.start + text).strip()
        if "\ufffd" in text or any(token in text for token in self._special):
            raise ItemDropped("turn_undecodable")
        return self._prompt(item, text, turn.start)

    def _prompt(self, item: Item, text: str, start: str) -> SourcePrompt:
        """Return a prompt of what the target wrote. Raises ItemDropped."""
        base = item.base
        if base is None:
            prompt = make_prompt(text, str(item.number), start)
        else:
            user = {"role": "user", "content": text.strip('"“”')}
            prompt = make_prompt([*base.messages[:-1], user], base.place, base.family, base.tools)
        if prompt is None or not item.spec.length[0] <= len(prompt.text) <= item.spec.length[1]:
            raise ItemDropped("turn_length")
        return prompt

    def _rewriting(self, item: Item, base: SourcePrompt) -> Ask:
        """Return the request to say a prompt anew, as plain chat. Raises ItemDropped."""
        spec = item.spec
        assert isinstance(spec, RewriteSource)
        way = spec.ways[base.place.partition(":")[0]]
        messages = [{"role": "user", "content": way.ask.replace("{prompt}", base.text)}]
        if any(token in base.text for token in self._special):
            raise ItemDropped("special_token")
        ids = self._encode(messages)
        if len(ids) + spec.max_tokens > self.target.context:
            raise ItemDropped("too_long")
        seed = keyed(self.app.seed, "turn", spec.name, item.number, item.sample)
        params = SamplingParams(temperature=spec.temperature, max_tokens=spec.max_tokens, seed=seed)
        return Ask(item.index, tuple(ids), params, tuple(messages))

    def _begun(self, item: Item) -> tuple[TurnSource, int, OpenTurn]:
        """Return the source, the seed and the beginning of a user's turn."""
        spec = item.spec
        assert isinstance(spec, TurnSource)
        seed = keyed(self.app.seed, "turn", spec.name, item.number)
        return spec, seed, self._open_turn(spec, spec.starts[seed % len(spec.starts)])

    def _open_turn(self, spec: TurnSource, start: str) -> OpenTurn:
        key = (spec.own_system, start)
        if key not in self._turns:
            self._turns[key] = self._rendered_turn(spec, start)
        return self._turns[key]

    def _rendered_turn(self, spec: TurnSource, start: str) -> OpenTurn:
        tokenizer = self.target.tokenizer
        messages = [*self._system(spec), {"role": "user", "content": SENTINEL}]
        tools, variables = self._tools_of(spec), self.app.chat_template_kwargs
        text = render_chat(tokenizer, messages, tools, variables)
        head, sentinel, tail = text.partition(SENTINEL)
        if not sentinel or not tail.strip():
            expected = "another kind: the model's chat template has no end of the user's turn"
            raise InvalidRequest("kind", spec.kind, expected)
        ids = tuple(tokenizer(head + start, add_special_tokens=False)["input_ids"])
        end = tokenizer(tail, add_special_tokens=False)["input_ids"]
        if end[0] in tokenizer.get_added_vocab().values():
            return OpenTurn(start, ids, (end[0],), ())
        return OpenTurn(start, ids, (), (tail.strip().splitlines()[0],))

    def _system(self, spec: AnySource) -> list[Message]:
        if not spec.own_system or self.app.system is None:
            return []
        return [{"role": "system", "content": self.app.system}]

    def _tools_of(self, spec: AnySource, tools: Sequence[Tool] = ()) -> Sequence[Tool]:
        """Return the tools of a prompt: its own, or else those of the application."""
        return tools or (self.tools if spec.own_system else ())

    def _encode(self, messages: list[Message], tools: Sequence[Tool] = ()) -> list[int]:
        variables = self.app.chat_template_kwargs
        return encode_chat(self.target.tokenizer, messages, tools, variables)

    def _check_variables(self) -> None:
        """Raise InvalidRequest for a variable that a template of the prompts does not read: that of
        plain chat, and that of requests with tools where there are such."""
        sources = self.app.sources
        of_records = [s.tools for s in sources if isinstance(s, RecordSource | PackageSource)]
        for with_tools in {False, bool(self.tools) or any(of_records)}:
            read = template_variables(self.target.tokenizer, with_tools=with_tools)
            for name, value in self.app.chat_template_kwargs.items():
                if name not in read:
                    expected = f"a variable that the model's chat template reads: {', '.join(read)}"
                    if not read:
                        expected = "no variables: the model's chat template reads none"
                    raise InvalidRequest(f"chat_template_kwargs.{name}", value, expected)

    def _compiled(self) -> Grammar | None:
        bounds, compiler = self.app.bounds, self.target.compiler
        grammar = bounds.grammar
        if bounds.tools:
            for index, function in enumerate(bounds.functions):
                schema, where = arguments_schema(function), f"tools[{index}].function.parameters"
                compiler.compile(Grammar("json_schema", json.dumps(schema), where))
            tool_format = format_of(template_for(self.target.tokenizer, with_tools=True))
            calls = Calls(tool_format, bounds.functions, required=bounds.required, several=True)
            grammar = answer_grammar(calls, None, self.target.tokenizer.get_added_vocab())
        if grammar is not None:
            compiler.compile(grammar)
        return grammar
