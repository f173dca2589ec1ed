"""Chat completions as synth speaks them: requests to servers, and their replies."""

from __future__ import annotations

import json

from pydantic import AliasPath, BaseModel, Field

from paceline.core import Grammar, SamplingParams
from paceline.synth.answer import Ask, TargetAnswer
from paceline.synth.ask import Asker

# Fields that OpenAI's own API does not have are sent only where they are not the default.
OPTIONAL = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
ENDED = {"stop": "stop", "tool_calls": "stop", "length": "length"}
# A server's own spelling of JSON is as good as ours.
ANY_SPELLING = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}


class ReplyMessage(BaseModel):
    """The message of a server's reply. Other fields of a reply are ignored, as in all of it.

    Reasoning that a server takes out of the content has one of two names.
    """

    content: str | None = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: list[object] | None = None


class ChatReply(BaseModel):
    """A chat completion. Token ids and counts are None where the server does not return them."""

    message: ReplyMessage = Field(validation_alias=AliasPath("choices", 0, "message"))
    reason: str | None = Field(validation_alias=AliasPath("choices", 0, "finish_reason"))
    token_ids: tuple[int, ...] | None = Field(
        None, validation_alias=AliasPath("choices", 0, "token_ids")
    )
    prompt_token_ids: tuple[int, ...] | None = None
    stated_prompt: int | None = Field(None, validation_alias=AliasPath("usage", "prompt_tokens"))
    stated_answer: int | None = Field(
        None, validation_alias=AliasPath("usage", "completion_tokens")
    )

    @property
    def finish_reason(self) -> str:
        return ENDED.get(self.reason or "", "failed")

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt as the server read it, None where it does not say."""
        return self.stated_prompt if self.prompt_token_ids is None else len(self.prompt_token_ids)

    @property
    def completion_tokens(self) -> int:
        return self.stated_answer or len(self.token_ids or ())


class Wire:
    """Speaks for one application: writes requests and reads answers."""

    def __init__(self, asker: Asker, model: str) -> None:
        self.asker, self.app, self.model = asker, asker.app, model
        self._grammar = asker.grammar
        if self._grammar is not None and self._grammar.kind == "json_schema":
            schema = json.loads(self._grammar.source)
            guidance = {**(schema.get("x-guidance") or {}), **ANY_SPELLING}
            schema = json.dumps({**schema, "x-guidance": guidance})
            self._grammar = Grammar("json_schema", schema)
            asker.target.compiler.compile(self._grammar)

    def body(self, ask: Ask, *, token_ids: bool) -> dict[str, object]:
        """Return the body of a request."""
        params, default = ask.params, SamplingParams()
        body: dict[str, object] = {
            "model": self.model,
            "messages": list(ask.messages),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
        }
        for name in OPTIONAL:
            if getattr(params, name) != getattr(default, name):
                body[name] = getattr(params, name)
        if params.stop:
            body["stop"] = list(params.stop)
        if token_ids:
            body["return_token_ids"] = True
        if self.app.chat_template_kwargs:
            body["chat_template_kwargs"] = self.app.chat_template_kwargs
        if ask.tools:
            body["tools"] = list(ask.tools)
        return {**body, **(self.app.bounds.body if ask.bound else {})}

    def answer(self, ask: Ask, reply: ChatReply) -> TargetAnswer:
        """Return a reply as token ids, or with the reason why it cannot be used."""
        fault, ids = self._ids(ask, reply)
        bound = ask.bound and reply.finish_reason == "stop"
        if fault is None and bound and not self._in_bounds(reply, ids):
            fault = "grammar_ignored"
        return TargetAnswer(ask.index, ids, reply.finish_reason, fault)

    def _ids(self, ask: Ask, reply: ChatReply) -> tuple[str | None, tuple[int, ...]]:
        """Return the fault of a reply, if it has one, and its token ids."""
        compiler = self.asker.target.compiler
        if reply.finish_reason not in ENDED.values():
            return "failed", ()
        if reply.prompt_token_ids not in (None, ask.prompt_ids):
            return "prompt_mismatch", ()
        if reply.prompt_tokens not in (None, len(ask.prompt_ids)):
            return "prompt_mismatch", ()
        apart = reply.message.reasoning_content or reply.message.reasoning
        if apart and reply.token_ids is None:
            return "reasoning_apart", ()
        ids = self._encoded(reply.message.content) if reply.token_ids is None else reply.token_ids
        if ids is None:
            return "not_retokenised", ()
        if any(not 0 <= token < compiler.vocab_size for token in ids):
            return "not_in_vocabulary", ()
        # Some servers keep the end of turn to themselves; behind a stop text there is none.
        ended = len(self.asker.without_end(ids)) < len(ids)
        if reply.finish_reason == "stop" and not ask.params.stop and not ended:
            ids = (*ids, compiler.eos_ids[0])
        return None, ids

    def _encoded(self, text: str | None) -> tuple[int, ...] | None:
        """Return the ids of a text, None where they do not give the same text back."""
        if text is None:
            return None
        tokenizer = self.asker.target.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        same = tokenizer.decode(ids, skip_special_tokens=False) == text
        return tuple(ids) if same else None

    def _in_bounds(self, reply: ChatReply, ids: tuple[int, ...]) -> bool:
        """Return whether an answer keeps to the grammar: some servers ignore grammars."""
        if self.app.bounds.tools:
            return bool(reply.message.tool_calls) or not self.app.bounds.required
        assert self._grammar is not None
        matcher = self.asker.target.compiler.compile(self._grammar).deep_copy()
        text = list(self.asker.without_end(ids))
        if matcher.validate_tokens(text) != len(text):
            return False
        return bool(matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting())
