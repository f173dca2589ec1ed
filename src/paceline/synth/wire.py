"""Chat completions as synth speaks them: requests to servers, and their replies."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, Field

from paceline.core import Grammar, SamplingParams
from paceline.engine.grammar import Compiler
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.ask import SynthTarget

# Fields that OpenAI's own API does not have are sent only where they are not the default.
OPTIONAL = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
ENDED = {"stop": "stop", "tool_calls": "stop", "length": "length"}
# A server's own spelling of JSON is as good as ours.
ANY_SPELLING = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}


class ReplyMessage(BaseModel):
    """The message of a server's reply. Other fields of a reply are ignored, as in all of it."""

    content: str | None = None
    tool_calls: list[Any] | None = None


class ReplyChoice(BaseModel):
    """The answer of a server; `token_ids` is None where the server does not return them."""

    finish_reason: str | None
    message: ReplyMessage
    token_ids: tuple[int, ...] | None = None


class ReplyUsage(BaseModel):
    """The token counts of a reply, as far as the server states them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChatReply(BaseModel):
    """A chat completion; `prompt_token_ids` is None where the server does not return them."""

    choices: list[ReplyChoice] = Field(min_length=1)
    usage: ReplyUsage | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def answer(self) -> ReplyChoice:
        return self.choices[0]

    @property
    def finish_reason(self) -> str:
        return ENDED.get(self.answer.finish_reason or "", "failed")

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt as the server read it, None where it does not say."""
        if self.prompt_token_ids is not None:
            return len(self.prompt_token_ids)
        return None if self.usage is None else self.usage.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        tokens = None if self.usage is None else self.usage.completion_tokens
        return tokens or len(self.answer.token_ids or ())


class Wire:
    """Speaks for one application: writes requests and reads answers."""

    def __init__(self, app: App, target: SynthTarget, grammar: Grammar | None, model: str) -> None:
        self.app, self.target, self.model = app, target, model
        self._grammar = _judge(app, target.compiler, grammar)

    def body(self, ask: Ask, *, token_ids: bool) -> dict[str, Any]:
        """Return the body of a request."""
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

    def answer(self, ask: Ask, reply: ChatReply) -> TargetAnswer:
        """Return a reply as token ids, or with the reason why it cannot be used."""
        fault, ids = self._ids(ask, reply)
        if fault is None and ask.bound and reply.finish_reason == "stop":
            fault = self._unbound(reply, ids)
        return TargetAnswer(ask.index, ids, reply.finish_reason, fault)

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

    def _ids(self, ask: Ask, reply: ChatReply) -> tuple[str | None, tuple[int, ...]]:
        """Return the fault of a reply, if it has one, and its token ids."""
        if reply.finish_reason not in ENDED.values():
            return "failed", ()
        if reply.prompt_token_ids not in (None, ask.prompt_ids):
            return "prompt_mismatch", ()
        if reply.prompt_tokens not in (None, len(ask.prompt_ids)):
            return "prompt_mismatch", ()
        ids = reply.answer.token_ids
        ids = self._encoded(reply.answer.message.content) if ids is None else ids
        if ids is None:
            return "not_retokenised", ()
        if any(not 0 <= token < self.target.compiler.vocab_size for token in ids):
            return "not_in_vocabulary", ()
        # Some servers keep the end of turn to themselves; behind a stop text there is none.
        if reply.finish_reason == "stop" and not ask.params.stop and not self._ends(ids):
            ids = (*ids, self.target.compiler.eos_ids[0])
        return None, ids

    def _encoded(self, text: str | None) -> tuple[int, ...] | None:
        """Return the ids of a text, None where they do not give the same text back."""
        if text is None:
            return None
        tokenizer = self.target.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        same = tokenizer.decode(ids, skip_special_tokens=False) == text
        return tuple(ids) if same else None

    def _ends(self, ids: tuple[int, ...]) -> bool:
        return bool(ids) and ids[-1] in self.target.loaded.eos_ids

    def _unbound(self, reply: ChatReply, ids: tuple[int, ...]) -> str | None:
        """Return the fault of an answer that breaks the grammar: some servers ignore grammars."""
        if self.app.bounds.tools:
            calls = bool(reply.answer.message.tool_calls)
            return None if calls or not self.app.bounds.required else "grammar_ignored"
        assert self._grammar is not None
        matcher = self.target.compiler.compile(self._grammar).deep_copy()
        text = list(ids[:-1] if self._ends(ids) else ids)
        if matcher.validate_tokens(text) != len(text):
            return "grammar_ignored"
        if matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting():
            return None
        return "grammar_ignored"


def _judge(app: App, compiler: Compiler, grammar: Grammar | None) -> Grammar | None:
    """Return the grammar that answers of servers are judged by."""
    if grammar is None or app.bounds.kind != "json":
        return grammar
    schema = json.loads(grammar.source)
    guidance = {**(schema.get("x-guidance") or {}), **ANY_SPELLING}
    loose = Grammar("json_schema", json.dumps({**schema, "x-guidance": guidance}))
    compiler.compile(loose)
    return loose
