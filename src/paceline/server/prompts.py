"""Prompts of requests as token ids, made off the event loop so that others' tokens are not late."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from jinja2 import TemplateError

from paceline.core import InvalidRequest
from paceline.engine.tool_calls import format_of
from paceline.llm import RenderedChat
from paceline.server.prompt_size import PromptSize, token_ids
from paceline.server.protocol import ChatRequest, CompletionRequest, Message
from paceline.server.structured import ToolCall
from paceline.server.turns import Turns

SHORT = 16384  # bytes of a body, or characters of a prompt, that take some 10 ms to encode
LONGEST_REASON = 300  # characters of what a template says


class PromptEncoder:
    """Encodes prompts on two threads, one of them for short prompts, which never wait behind long
    ones. Clients take turns on each.

    What waits for the threads is bounded by whoever calls: reserve room in the engine first.
    """

    def __init__(self, tokenizer: Any, size: PromptSize) -> None:
        self._backend = tokenizer.backend_tokenizer
        # a tokenizer's file may set these two; `tokenizer()` switches them off in each call
        self._backend.no_truncation()
        self._backend.no_padding()
        self._conversations = Conversations(tokenizer)
        self._size = size
        self._short = Turns("paceline-short-prompts")
        self._long = Turns("paceline-long-prompts")

    async def encode(
        self, request: ChatRequest | CompletionRequest, client: str
    ) -> list[list[int]]:
        """Return the token ids of a conversation, or of each prompt, which takes its own turn.

        Raises InvalidRequest for what the template cannot show, ApiError for what cannot fit the
        context.
        """
        if isinstance(request, ChatRequest):
            return [await self._run(partial(self._chat, request), client, request.size)]
        return [
            await self._run(partial(self._text, prompt), client, len(prompt))
            if isinstance(prompt, str)
            else prompt
            for prompt in request.prompts
        ]

    async def _run(self, job: Callable[[], list[int]], client: str, cost: int) -> list[int]:
        turns = self._short if cost <= SHORT else self._long
        return await turns.run(job, client=client, cost=cost)

    def _chat(self, request: ChatRequest) -> list[int]:
        shown = [m.text.strip() for m in request.messages if m.role != "assistant"]
        self._size.refuse_texts("messages", shown)
        return self._ids("messages", self._conversations.render(request), special=False)

    def _text(self, prompt: str) -> list[int]:
        return self._ids("prompt", prompt, special=True)

    def _ids(self, field: str, text: str, *, special: bool) -> list[int]:
        try:
            self._size.refuse_tokens(field, text)
            return token_ids(self._backend, text, special=special)
        except (UnicodeError, TypeError):  # half a surrogate pair, which JSON can escape
            raise InvalidRequest(field, text, "text that can be written as UTF-8") from None


class Conversations:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template: str = tokenizer.chat_template or ""
        self._words = frozenset(re.findall(r"\w+", self._template))
        self._reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)

    def render(self, request: ChatRequest) -> str:
        """Return the text of a conversation. Raises InvalidRequest for what the template drops."""
        text = self._template_text(request)
        rendered = RenderedChat(text)
        for index, message in enumerate(request.messages):
            rendered.refuse_dropped(index, message.role, message.text)
            for call in message.tool_calls or ():
                if not rendered.shows("tool_calls", json.dumps(call.function.name)):
                    expected = "null: the model's chat template does not show calls"
                    raise InvalidRequest(f"messages[{index}].tool_calls", "calls", expected)
        return text

    def _template_text(self, request: ChatRequest) -> str:
        if not self._template:
            expected = "a model with a chat template; use /v1/completions with this one"
            raise InvalidRequest("messages", request.model, expected)
        variables = dict(request.chat_template_kwargs or {})
        for name in variables:
            if name in self._reserved or name not in self._words:
                expected = "variables that the model's chat template reads"
                raise InvalidRequest("chat_template_kwargs", name, expected)
        messages = [self._entry(f"messages[{i}]", m) for i, m in enumerate(request.messages)]
        if request.tools:
            format_of(self._template)
            variables["tools"] = [tool.model_dump(exclude_unset=True) for tool in request.tools]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=request.add_generation_prompt is not False,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            reason = str(error)[:LONGEST_REASON]  # a template may quote the messages
            expected = f"a conversation that the model's chat template takes: {reason}"
            raise InvalidRequest("messages", f"{len(messages)} messages", expected) from None
        return text

    def _entry(self, field: str, message: Message) -> dict[str, object]:
        role = message.role
        if role == "developer" and role not in self._words:
            role = "system"  # OpenAI's newer name for the same thing
        entry: dict[str, object] = {"role": role, "content": message.text}
        if message.tool_calls:
            entry["tool_calls"] = [
                _call(f"{field}.tool_calls[{place}].function.arguments", call)
                for place, call in enumerate(message.tool_calls)
            ]
        if message.name:  # some clients send an empty one for none
            if "name" not in self._words:
                expected = (
                    "null, or nothing: the model's chat template does not read `name`, "
                    "so the model would not see it"
                )
                raise InvalidRequest(f"{field}.name", message.name, expected)
            entry["name"] = message.name
        if message.tool_call_id is not None:
            if role != "tool":
                expected = "null, unless the role is tool"
                raise InvalidRequest(f"{field}.tool_call_id", message.tool_call_id, expected)
            entry["tool_call_id"] = message.tool_call_id
        return entry


def _call(field: str, call: ToolCall) -> dict[str, object]:
    """Return a past call as templates take it: they write its arguments as JSON themselves."""
    text = call.function.arguments
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(field, text, "a JSON object, as text")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
