"""From a prompt to what is asked: the application's messages, rendered as serving renders them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.dataset.binding import Binding
from paceline.engine.tool_calls import arguments_schema, calls_grammar, format_of
from paceline.llm import encode_chat, render_chat
from paceline.synth.answer import Answer, Ask
from paceline.synth.app import App
from paceline.synth.plan import Item
from paceline.synth.prompts import Message, Prompt, keyed, make_prompt
from paceline.synth.source_spec import SourceSpec
from paceline.synth.sources import Source
from paceline.synth.target import Target

SENTINEL = "paceline-user-turn"


# Token ids up to where the user speaks, with how it begins; what ends the turn, tokens or texts.
Turn = tuple[list[int], tuple[int, ...], tuple[str, ...]]


class Dropped(Exception):
    """A prompt or an answer that becomes no row; the text is the reason it is counted under."""


class Asker:
    """Makes asks of one application for one target. Raises InvalidRequest, when it is made, for a
    grammar that does not compile and a template that drops what the application says."""

    def __init__(self, app: App, target: Target) -> None:
        self.app, self.target = app, target
        self.tools = app.bounds.tools
        added = target.tokenizer.added_tokens_decoder.values()
        self._special = {token.content for token in added if token.special}
        self.grammar = self._compiled()
        self._turns: dict[tuple[str, str], Turn] = {}
        for spec in app.sources:
            try:
                self._encode(spec, self.messages(spec, _probe()))
            except InvalidRequest as error:
                raise InvalidRequest(spec.where, error.value, error.expected) from error
            if spec.kind == "self":
                self._turn(spec, spec.starts[0])

    # -- answers ----------------------------------------------------------------------------------

    def ask(self, item: Item, prompt: Prompt) -> Ask:
        """The application's request for a prompt. Raises Dropped."""
        messages = self.messages(item.spec, prompt)
        if any(token in message["content"] for message in messages for token in self._special):
            raise Dropped("special_token")  # would end the turn that it stands in
        try:
            ids = self._encode(item.spec, messages)
        except InvalidRequest:
            raise Dropped("not_rendered") from None
        params = self.params(item, prompt)
        if len(ids) + (params.max_tokens or 0) > self.target.context:
            raise Dropped("too_long")
        return Ask(item.index, tuple(ids), params, tuple(messages), self.bound(item.spec))

    def params(self, item: Item, prompt: Prompt) -> SamplingParams:
        temperatures = self.app.temperatures
        chosen = keyed(self.app.seed, "temperature", prompt.key, item.sample) % len(temperatures)
        return replace(
            self.app.params,
            temperature=temperatures[chosen],
            seed=item.seed,
            grammar=self.grammar if self.bound(item.spec) else None,
        )

    def bound(self, spec: SourceSpec) -> bool:
        return spec.own_system and bool(self.app.bounds)

    @property
    def binding(self) -> Binding | None:
        """What answers are bound to, where any are."""
        names = tuple(spec.name for spec in self.app.sources if self.bound(spec))
        return Binding(self.grammar, names) if self.grammar is not None and names else None

    def messages(self, spec: SourceSpec, prompt: Prompt) -> list[Message]:
        """The conversation as the application sends it."""
        text = spec.template.replace("{prompt}", prompt.text)
        messages = [*prompt.messages[:-1], {"role": "user", "content": text}]
        if not spec.own_system:
            return messages
        messages[-1]["content"] = self.app.template.replace("{prompt}", text)
        messages = [message for message in messages if message["role"] != "system"]
        return [*self._system(spec), *messages]

    def probes(self, sources: Sequence[Source]) -> Iterator[Ask]:
        """A short ask as the application sends it, and one as plain chat, where there are such."""
        seen = set()
        for source in sources:
            if source.spec.own_system not in seen and source.prompts:
                seen.add(source.spec.own_system)
                item = Item(-1, source.spec, source.prompts[0], 0, 0, 0)
                yield self.ask(item, _probe())

    # -- the user's turn, written by the target ---------------------------------------------------

    def turn(self, item: Item) -> Ask:
        """Asks the target for a user's turn (Magpie, arXiv 2406.08464): the prompt stops where the
        user would begin to speak. Raises Dropped."""
        spec = item.spec
        seed, start = self._begun(item)
        ids, stop, texts = self._turn(spec, start)
        if len(ids) + spec.max_tokens > self.target.context:
            raise Dropped("too_long")
        params = SamplingParams(
            temperature=spec.temperature,
            max_tokens=spec.max_tokens,
            stop=texts,
            stop_token_ids=stop,
            seed=seed,
        )
        return Ask(item.index, tuple(ids), params, ())

    def written(self, item: Item, answer: Answer) -> Prompt:
        """The user's turn that the target wrote. Raises Dropped."""
        if answer.finish_reason != "stop":
            raise Dropped("turn_cut")
        spec, tokenizer = item.spec, self.target.tokenizer
        _, start = self._begun(item)
        _, stop, texts = self._turn(spec, start)
        ends = self.target.loaded.eos_ids | set(stop)
        said = answer.ids[:-1] if answer.ids[-1:] and answer.ids[-1] in ends else answer.ids
        text = tokenizer.decode(said, skip_special_tokens=False)
        for end in texts:
            text = text.split(end)[0]
        text = (start + text).strip()
        if "\ufffd" in text or any(token in text for token in self._special):
            raise Dropped("turn_undecodable")
        prompt = make_prompt(text, str(item.number))
        if prompt is None or not spec.length[0] <= len(prompt.text) <= spec.length[1]:
            raise Dropped("turn_length")
        return prompt

    def _begun(self, item: Item) -> tuple[int, str]:
        """Seed and beginning of a user's turn."""
        seed = keyed(self.app.seed, "turn", item.spec.name, item.number)
        return seed, item.spec.starts[seed % len(item.spec.starts)]

    def _turn(self, spec: SourceSpec, start: str) -> Turn:
        known = self._turns.get((spec.name, start))
        if known is None:
            known = self._turns[spec.name, start] = self._opened_turn(spec, start)
        return known

    def _opened_turn(self, spec: SourceSpec, start: str) -> Turn:
        tokenizer = self.target.tokenizer
        messages = [*self._system(spec), {"role": "user", "content": SENTINEL}]
        tools = self.tools if spec.own_system else ()
        head, found, tail = render_chat(tokenizer, messages, tools).partition(SENTINEL)
        if not found or not tail.strip():
            expected = "another kind: the model's chat template has no end of the user's turn"
            raise InvalidRequest(f"{spec.where}.kind", spec.kind, expected)
        ids = list(tokenizer(head + start, add_special_tokens=False)["input_ids"])
        end = tokenizer(tail, add_special_tokens=False)["input_ids"]
        if end[0] in tokenizer.get_added_vocab().values():
            return ids, (end[0],), ()
        return ids, (), (tail.strip().splitlines()[0],)

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
                schema, field = arguments_schema(function), f"tools[{index}].function.parameters"
                compiler.compile(Grammar("json_schema", json.dumps(schema), field))
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


def _probe() -> Prompt:
    prompt = make_prompt("Where is my parcel?", "0")
    assert prompt is not None
    return prompt
