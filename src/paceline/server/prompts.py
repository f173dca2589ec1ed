"""Requests to prompt token ids, off the event loop: a long prompt must not delay others' tokens."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jinja2 import TemplateError

from paceline.core import InvalidRequest
from paceline.engine.tool_calls import format_of
from paceline.llm import refuse_dropped
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.tools import ToolCall

T = TypeVar("T")


class PromptEncoder:
    """Encodes prompts on one thread, because a tokenizer does not like two.

    What waits for the thread is bounded by whoever calls: reserve room in the engine first.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template: str = tokenizer.chat_template or ""
        self._reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)
        self._thread = ThreadPoolExecutor(1, "paceline-prompts")

    async def chat(self, request: ChatRequest) -> list[list[int]]:
        """Token ids of a conversation, a list of one prompt.

        Raises InvalidRequest for what the template cannot show.
        """
        return await self.off_loop(lambda: [self._encode_chat(request)])

    async def prompts(self, request: CompletionRequest) -> list[list[int]]:
        """Token ids of each prompt."""
        return await self.off_loop(lambda: [self._encode(p) for p in request.prompts])

    async def off_loop(self, job: Callable[[], T]) -> T:
        """Runs what takes milliseconds, and may need the tokenizer, on the same thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def soon(self, job: Callable[[], object]) -> None:
        """The same for what nobody waits for."""
        self._thread.submit(job)

    # -- inside -----------------------------------------------------------------------------------

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        return self._ids("prompt", prompt, add_special_tokens=True)

    def _encode_chat(self, request: ChatRequest) -> list[int]:
        text = self._render(request)
        for index, message in enumerate(request.messages):
            refuse_dropped(index, message.role, message.text, text)
            for call in message.tool_calls or ():
                if json.dumps(call.function.name) not in text:
                    expected = "null: the model's chat template does not show calls"
                    raise InvalidRequest(f"messages[{index}].tool_calls", "calls", expected)
        return self._ids("messages", text, add_special_tokens=False)

    def _render(self, request: ChatRequest) -> str:
        if not self._template:
            expected = "a model with a chat template; use /v1/completions with this one"
            raise InvalidRequest("messages", request.model, expected)
        variables = dict(request.chat_template_kwargs or {})
        for name in variables:
            if name in self._reserved or not self._reads(name):
                expected = "variables that the model's chat template reads"
                raise InvalidRequest("chat_template_kwargs", name, expected)
        messages = self._messages(request)
        if request.tools:
            format_of(self._template)
            variables["tools"] = [tool.model_dump(exclude_unset=True) for tool in request.tools]
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=request.add_generation_prompt is not False,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            expected = f"a conversation that the model's chat template takes: {error}"
            raise InvalidRequest(
                "messages", f"{len(request.messages)} messages", expected
            ) from None

    def _messages(self, request: ChatRequest) -> list[dict[str, Any]]:
        messages = []
        for index, message in enumerate(request.messages):
            role = message.role
            if role == "developer" and not self._reads("developer"):
                role = "system"  # OpenAI's newer name for the same thing
            entry: dict[str, Any] = {"role": role, "content": message.text}
            if message.tool_calls:
                entry["tool_calls"] = [
                    _shown(f"messages[{index}].tool_calls[{place}].function", call)
                    for place, call in enumerate(message.tool_calls)
                ]
            if message.name:  # some clients send an empty one for none
                if not self._reads("name"):
                    expected = (
                        "null, or nothing: the model's chat template does not read `name`, "
                        "so the model would not see it"
                    )
                    raise InvalidRequest(f"messages[{index}].name", message.name, expected)
                entry["name"] = message.name
            if message.tool_call_id is not None:
                if role != "tool":
                    expected = "null, unless the role is tool"
                    field = f"messages[{index}].tool_call_id"
                    raise InvalidRequest(field, message.tool_call_id, expected)
                entry["tool_call_id"] = message.tool_call_id
            messages.append(entry)
        return messages

    def _reads(self, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", self._template) is not None

    def _ids(self, field: str, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return list(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])
        except (UnicodeError, TypeError):  # half a surrogate pair, which JSON can escape
            raise InvalidRequest(field, text, "text that can be written as UTF-8") from None


def _shown(field: str, call: ToolCall) -> dict[str, Any]:
    """A past call as templates want it: they write its arguments as JSON themselves."""
    text = call.function.arguments
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        raise InvalidRequest(f"{field}.arguments", text, "a JSON object, as text") from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{field}.arguments", text, "a JSON object, as text")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
