"""OpenAI's chat completions as synth speaks them: what is sent, and what comes back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from paceline.core import Grammar, SamplingParams
from paceline.engine.grammar import Compiler
from paceline.synth.answer import Answer, Ask
from paceline.synth.app import App
from paceline.synth.target import Target

# What OpenAI's own API does not know is sent only where it is not the default.
OPTIONAL = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
ENDED = {"stop": "stop", "tool_calls": "stop", "length": "length"}
# A server's own spelling of JSON is as good as ours.
ANY_SPELLING = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}


@dataclass(frozen=True, slots=True)
class Reply:
    """`ids` and `prompt_ids` are None where the server does not return them."""

    finish_reason: str
    text: str | None
    calls: bool
    ids: tuple[int, ...] | None
    prompt_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    completion_tokens: int


class Wire:
    """Speaks for one application: requests out, answers in."""

    def __init__(self, app: App, target: Target, grammar: Grammar | None, model: str) -> None:
        self.app, self.target, self.model = app, target, model
        self._grammar = _judge(app, target.compiler, grammar)

    def body(self, ask: Ask, *, token_ids: bool) -> dict[str, Any]:
        params = ask.params
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(ask.messages),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
        }
        default = SamplingParams()
        for name in OPTIONAL:
            if getattr(params, name) != getattr(default, name):
                body[name] = getattr(params, name)
        if params.stop:
            body["stop"] = list(params.stop)
        if token_ids:
            body["return_token_ids"] = True
        return body | (self._bounds() if ask.bound else {})

    def answer(self, ask: Ask, reply: Reply) -> Answer:
        """A reply as token ids, or the reason why it cannot be used."""
        fault, ids = self._ids(ask, reply)
        if fault is None and ask.bound and reply.finish_reason == "stop":
            fault = self._unbound(reply, ids)
        return Answer(ask.index, ids, reply.finish_reason, fault)

    # -- inside -----------------------------------------------------------------------------------

    def _bounds(self) -> dict[str, Any]:
        bounds = self.app.bounds
        if bounds.tools:
            choice = "required" if bounds.required else "auto"
            return {"tools": list(bounds.tools), "tool_choice": choice}
        assert bounds.grammar is not None
        if bounds.kind == "json":
            name = re.sub(r"[^A-Za-z0-9_.-]", "-", self.app.name)[:64]
            schema = {"name": name, "schema": json.loads(bounds.grammar.source), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        value = list(bounds.choices) if bounds.kind == "choice" else bounds.grammar.source
        return {"structured_outputs": {bounds.kind: value}}

    def _ids(self, ask: Ask, reply: Reply) -> tuple[str | None, tuple[int, ...]]:
        if reply.finish_reason not in ENDED.values():
            return "failed", ()
        if reply.prompt_ids not in (None, ask.prompt_ids):
            return "prompt_mismatch", ()
        if reply.prompt_tokens not in (None, len(ask.prompt_ids)):
            return "prompt_mismatch", ()
        ids = self._encoded(reply.text) if reply.ids is None else reply.ids
        if ids is None:
            return "not_retokenised", ()
        if any(not 0 <= token < self.target.compiler.vocab_size for token in ids):
            return "not_in_vocabulary", ()
        ends = self.target.loaded.eos_ids
        # Some servers keep the end of turn to themselves; behind a stop text there is none.
        if reply.finish_reason == "stop" and not ask.params.stop and ids[-1:] not in _single(ends):
            ids = (*ids, self.target.compiler.eos_ids[0])
        return None, ids

    def _encoded(self, text: str | None) -> tuple[int, ...] | None:
        """The ids of a text that is all there is: None where they do not give it back."""
        if text is None:
            return None
        tokenizer = self.target.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        same = tokenizer.decode(ids, skip_special_tokens=False) == text
        return tuple(ids) if same else None

    def _unbound(self, reply: Reply, ids: tuple[int, ...]) -> str | None:
        """Servers exist that leave out what they do not know, a grammar included."""
        if self.app.bounds.tools:
            return None if reply.calls or not self.app.bounds.required else "grammar_ignored"
        assert self._grammar is not None
        matcher = self.target.compiler.compile(self._grammar).deep_copy()
        said = list(ids[:-1] if ids[-1:] in _single(self.target.loaded.eos_ids) else ids)
        right = matcher.validate_tokens(said) == len(said)
        if right and matcher.try_consume_tokens(said) == len(said) and matcher.is_accepting():
            return None
        return "grammar_ignored"


def read_reply(body: Any) -> Reply:
    """Raises KeyError, TypeError, IndexError or ValueError for what is no chat completion."""
    choice = body["choices"][0]
    message, usage = choice["message"], body.get("usage") or {}
    ids, prompt = choice.get("token_ids"), body.get("prompt_token_ids")
    return Reply(
        finish_reason=ENDED.get(choice["finish_reason"], "failed"),
        text=message.get("content"),
        calls=bool(message.get("tool_calls")),
        ids=None if ids is None else tuple(map(int, ids)),
        prompt_ids=None if prompt is None else tuple(map(int, prompt)),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=int(usage.get("completion_tokens") or len(ids or ())),
    )


def _single(ids: frozenset[int]) -> set[tuple[int, ...]]:
    return {(token,) for token in ids}


def _judge(app: App, compiler: Compiler, grammar: Grammar | None) -> Grammar | None:
    if grammar is None or app.bounds.kind != "json":
        return grammar
    schema = json.loads(grammar.source)
    own = schema.get("x-guidance") or {}
    loose = Grammar("json_schema", json.dumps({**schema, "x-guidance": {**own, **ANY_SPELLING}}))
    compiler.compile(loose)
    return loose
