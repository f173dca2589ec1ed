"""Prompts of requests as token ids, made off the event loop so that others' tokens are not late."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from jinja2 import TemplateError

from paceline.core import InvalidRequest
from paceline.core.errors import OwnWords
from paceline.engine.tool_formats import CHANNELS, GENERIC, HARMONY, format_of, reasoning_of
from paceline.engine.tool_prompt import Message, instructions, plain_turns, with_instructions
from paceline.llm import RenderedChat
from paceline.models.tokenizer import Tokenizer, template_for
from paceline.server.bodies import read_objects
from paceline.server.fields import JsonObject
from paceline.server.prompt_size import PromptSize, token_ids
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.protocol import Message as RequestMessage
from paceline.server.structured import ToolCall
from paceline.server.thinking import ThinkingControl
from paceline.server.turns import Turns

T = TypeVar("T")
SHORT = 16384  # bytes of a body, or characters of a prompt, that take some 10 ms to encode
VARIABLES = "chat_template_kwargs"
LONGEST_REASON = 300  # characters of what a template says


class PromptEncoder:
    """Encodes prompts on two threads, one of them for short prompts, which never wait behind long
    ones. Clients take turns on each.

    What waits for the threads is bounded by whoever calls: reserve room in the engine first.
    """

    def __init__(self, tokenizer: Tokenizer, size: PromptSize) -> None:
        self._backend = tokenizer.backend_tokenizer
        # a tokenizer's file may set these two; `tokenizer()` switches them off in each call
        self._backend.no_truncation()
        self._backend.no_padding()
        self.conversations = Conversations(tokenizer)
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
            return [await self.run(partial(self._chat, request), client, request.size)]
        return [
            await self.run(partial(self._text, prompt), client, len(prompt))
            if isinstance(prompt, str)
            else prompt
            for prompt in request.prompts
        ]

    async def ids(self, text: str, client: str, *, special: bool) -> list[int]:
        """Return the token ids of a text; `special` adds those that begin or end every text."""
        return await self.run(
            partial(self._ids, "prompt", text, special=special), client, len(text)
        )

    async def texts(self, prompts: Sequence[list[int]], client: str, *, special: bool) -> list[str]:
        """Return the text of each prompt, with its special tokens if `special`."""
        decode = partial(self._backend.decode, skip_special_tokens=not special)
        return [await self.run(partial(decode, ids), client, len(ids)) for ids in prompts]

    async def run(self, job: Callable[[], T], client: str, cost: int) -> T:
        """Return or raise what `job` does on a thread. `cost` is in characters of text."""
        turns = self._short if cost <= SHORT else self._long
        return await turns.run(job, client=client, cost=cost)

    def _chat(self, request: ChatRequest) -> list[int]:
        shown = [m.text.strip() for m in request.messages if m.role != "assistant"]
        self._size.refuse_texts("messages", shown)
        return self._ids("messages", self.conversations.render(request), special=False)

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

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = template_for(tokenizer, with_tools=False)
        tool_template = template_for(tokenizer, with_tools=True)
        templates = {False: self._template, True: tool_template}
        self._words = {
            with_tools: frozenset(re.findall(r"\w+", template))
            for with_tools, template in templates.items()
        }
        self._thinking = {
            with_tools: ThinkingControl(template) for with_tools, template in templates.items()
        }
        self._reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)
        self._tool_format, self._reasoning = format_of(tool_template), reasoning_of(self._template)

    def render(self, request: ChatRequest) -> str:
        """Return the text of a conversation. Raises InvalidRequest for what the template drops."""
        if not self._template:
            expected = "a model with a chat template; use /v1/completions with this one"
            raise InvalidRequest("messages", request.model, OwnWords(expected))
        arguments = read_objects(_argument_texts(request))
        words = self._words[self._has_tools(request)]
        messages = [
            self._entry(f"messages[{i}]", message, arguments, words)
            for i, message in enumerate(request.messages)
        ]
        variables = self._variables(request)
        if self._tool_format is not GENERIC:
            if request.tools:
                variables["tools"] = self._shown_tools(request)
            text = self._template_text(request, messages, variables)
        else:
            text = self._with_instructions(request, plain_turns(messages), variables)
        self._check_shown(request, text)
        return text

    def _has_tools(self, request: ChatRequest) -> bool:
        """Return whether a request takes the template that writes tools."""
        return bool(request.tools) and self._tool_format is not GENERIC

    def _check_shown(self, request: ChatRequest, text: str) -> None:
        rendered = RenderedChat(text)
        for index, message in enumerate(request.messages):
            rendered.refuse_dropped(index, message.role, message.text)
            for call in message.tool_calls or ():
                if not rendered.shows(
                    "tool_calls", self._tool_format.shown_name(call.function.name)
                ):
                    expected = OwnWords("null: the model's chat template does not show calls")
                    raise InvalidRequest(f"messages[{index}].tool_calls", "calls", expected)

    def _with_instructions(
        self, request: ChatRequest, messages: list[Message], variables: JsonObject
    ) -> str:
        """Return the text of a conversation under a template without tools. They are described in
        the system message, or in the first one of the user where the template takes no other."""
        if not request.tools or request.tool_choice == "none":
            return self._template_text(request, messages, variables)
        told = instructions(
            self._shown_tools(request), several=request.several_calls(GENERIC.several)
        )
        with contextlib.suppress(InvalidRequest):
            text = self._template_text(
                request, with_instructions(messages, told, "system"), variables
            )
            if told in text:
                return text
        return self._template_text(request, with_instructions(messages, told, "user"), variables)

    def _shown_tools(self, request: ChatRequest) -> list[JsonObject]:
        tools = [tool.model_dump(exclude_unset=True) for tool in request.tools or ()]
        if self._tool_format is HARMONY:
            for tool in tools:  # gpt-oss's template cannot do without a description
                tool["function"].setdefault("description", "")
        return tools

    def _variables(self, request: ChatRequest) -> JsonObject:
        """Return the template's variables. Raises InvalidRequest for one that it does not read."""
        with_tools = self._has_tools(request)
        variables = self._thinking[with_tools].variables(
            request.chat_template_kwargs or {}, request.enable_thinking, request.reasoning_effort
        )
        for name in variables:
            if name in self._reserved or name not in self._words[with_tools]:
                expected = OwnWords("variables that the model's chat template reads")
                raise InvalidRequest(VARIABLES, name, expected)
        return variables

    def without_unread(self, request: ChatRequest) -> tuple[ChatRequest, list[str]]:
        """Return a request without the variables that the template cannot honour, and their names:
        what a lenient server leaves out."""
        names: list[str] = []
        while True:
            try:
                self._variables(request)
            except InvalidRequest as error:
                stated = dict(request.chat_template_kwargs or {})
                field, _, name = error.field.partition(".")
                if field == VARIABLES:
                    name = name or str(error.value)
                    del stated[name]
                    names.append(f"{VARIABLES}.{name}")
                    request = request.model_copy(update={VARIABLES: stated})
                else:
                    names.append(field)
                    request = request.model_copy(update={field: None})
            else:
                return request, names

    def _template_text(
        self, request: ChatRequest, messages: Sequence[Message], variables: JsonObject
    ) -> str:
        begins = request.add_generation_prompt is not False and not request.continue_final_message
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=begins,
                continue_final_message=bool(request.continue_final_message),
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            reason = str(error)[:LONGEST_REASON]  # a template may quote the messages
            expected = f"a conversation that the model's chat template takes: {reason}"
            raise InvalidRequest("messages", f"{len(messages)} messages", expected) from None
        return text

    def _entry(
        self,
        field: str,
        message: RequestMessage,
        arguments: Mapping[str, JsonObject],
        words: frozenset[str],
    ) -> dict[str, object]:
        role = message.role
        if role == "developer" and role not in words:
            role = "system"  # OpenAI's newer name for the same thing
        entry: dict[str, object] = {"role": role, "content": message.text}
        if message.tool_calls:
            entry["tool_calls"] = [
                _call(call, arguments[_arguments_field(field, place)])
                for place, call in enumerate(message.tool_calls)
            ]
        if name := message.reasoning_field:
            self._add_reasoning(f"{field}.{name}", getattr(message, name), entry, words)
        if message.name:  # some clients send an empty one for none
            if "name" not in words:
                expected = OwnWords(
                    "null, or nothing: the model's chat template does not read `name`, "
                    "so the model would not see it"
                )
                raise InvalidRequest(f"{field}.name", message.name, expected)
            entry["name"] = message.name
        if message.tool_call_id is not None:
            if role != "tool":
                expected = OwnWords("null, unless the role is tool")
                raise InvalidRequest(f"{field}.tool_call_id", message.tool_call_id, expected)
            entry["tool_call_id"] = message.tool_call_id
        return entry

    def _add_reasoning(
        self, field: str, text: str, entry: dict[str, object], words: frozenset[str]
    ) -> None:
        """Hand past reasoning to a template that reads it. Others of models that think leave it out
        on purpose, as most do with reasoning from before the user's last message."""
        if "reasoning_content" in words:
            entry["reasoning_content"] = text
        elif self._reasoning is CHANNELS and "tool_calls" in entry and not entry["content"]:
            entry["thinking"] = text  # the one place where gpt-oss's template takes it
        elif self._reasoning is None:
            expected = OwnWords("null, or nothing: the model's chat template has no reasoning")
            raise InvalidRequest(field, text, expected)


def _argument_texts(request: ChatRequest) -> dict[str, str]:
    """Return the arguments of all past calls, by the names of their fields."""
    return {
        _arguments_field(f"messages[{index}]", place): call.function.arguments or "{}"
        for index, message in enumerate(request.messages)
        for place, call in enumerate(message.tool_calls or ())
    }


def _arguments_field(message: str, place: int) -> str:
    return f"{message}.tool_calls[{place}].function.arguments"


def _call(call: ToolCall, arguments: JsonObject) -> dict[str, object]:
    """Return a past call as templates take it: they write its arguments as JSON themselves."""
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
