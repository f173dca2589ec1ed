"""Grammars of requests: read from their fields, and compiled.

Nothing here runs on the event loop or on the thread that encodes prompts: reading fields has a
thread, which takes small bodies first, and the compiler has a thread and a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from paceline.core import Grammar, InvalidRequest
from paceline.core.errors import OwnWords
from paceline.engine.grammar import CompiledGrammar, Compiler
from paceline.engine.grammar_bounds import check_schema
from paceline.engine.grammar_trial import TrialBusy, TrialUnavailable
from paceline.engine.smallest_first import SmallestFirst
from paceline.engine.tool_calls import Calls, Thinking, answer_grammar
from paceline.engine.tool_formats import (
    ReasoningFormat,
    arguments_schema,
    format_of,
    reasoning_of,
)
from paceline.engine.tool_values import properties
from paceline.models.tokenizer import Tokenizer, template_for
from paceline.server.errors import ApiError
from paceline.server.parsing import AnswerFormat
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.structured import (
    Function,
    chosen_tools,
    format_grammar,
    schema_grammar,
)

NAMING = 6.0  # seconds that the search for the part at fault may take
TAIL = 16  # tokens at the end of a prompt that hold the mark of open or ended reasoning
LONGEST_WAIT = 15.0  # seconds; far longer than a grammar takes unless many costly ones wait


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form that an answer must have.

    grammar       what binds it; None: it is free
    format        how its text marks reasoning and calls; None: all of it is content
    parts         the grammars that the user wrote, where `grammar` was made from them
    has_specials  special tokens are among the marks: they must be in the text
    """

    grammar: Grammar | None = None
    format: AnswerFormat | None = None
    parts: tuple[Grammar, ...] = ()
    has_specials: bool = False


class GrammarReader:
    """Reads the grammars that requests for one model ask for, and has them compiled."""

    def __init__(self, tokenizer: Tokenizer, compiler: Compiler) -> None:
        self._tool_format = format_of(template_for(tokenizer, with_tools=True))
        self._reasoning = reasoning_of(template_for(tokenizer, with_tools=False))
        self._added: dict[str, int] = tokenizer.get_added_vocab()
        added = tokenizer.added_tokens_decoder.values()
        self._specials = {token.content for token in added if token.special}
        self._decode = tokenizer.backend_tokenizer.decode
        self._compiler = compiler
        self._thread = SmallestFirst("paceline-grammars")

    async def form(
        self, body: ChatRequest | CompletionRequest, size: float, prompt_ids: Sequence[int]
    ) -> AnswerForm:
        """Return the form that a body of `size` bytes asks for, with its grammar compiled. The end
        of `prompt_ids` says whether the model is thinking already.

        Raises InvalidRequest, naming the field, for fields that contradict each other or cannot be
        honoured, and ApiError (503) while no grammar can be tried out.
        """
        thinking = self._thinking(body, prompt_ids)
        if not asks(body):
            return self._form(body, thinking)
        read = await asyncio.wrap_future(
            self._thread.submit(size, lambda: self._read(body, thinking))
        )
        if read.grammar is None:
            return read
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                return replace(read, grammar=await self._compiled(read.grammar, size))
        except InvalidRequest:
            await self._name_part(read.parts, size)
            raise
        except (TimeoutError, TrialBusy):
            field = read.grammar.field
            message = f"{field}: too many costly grammars are being tried out; come back later"
            raise ApiError(429, message, param=field, code="grammars_busy", retry_after=5) from None
        except TrialUnavailable as error:
            message = f"grammars cannot be compiled now: {error}"
            raise ApiError(503, message, code="grammars_unavailable", retry_after=1) from None

    async def _compiled(self, grammar: Grammar, size: float) -> Grammar:
        starting = self._thread.submit(size, lambda: self._compiler.start(grammar))
        compiling: Future[CompiledGrammar] = await asyncio.wrap_future(starting)
        return await asyncio.wrap_future(compiling)

    async def _name_part(self, parts: tuple[Grammar, ...], size: float) -> None:
        """Raise InvalidRequest for the first part that does not compile by itself, if there is time
        to look for it: a refused grammar of many tools has many."""
        with contextlib.suppress(TimeoutError, TrialBusy, TrialUnavailable):
            async with asyncio.timeout(NAMING):
                for part in parts:
                    await self._compiled(part, size)

    def _thinking(
        self, body: ChatRequest | CompletionRequest, prompt_ids: Sequence[int]
    ) -> Thinking:
        form = self._reasoning
        if form is None or not isinstance(body, ChatRequest):
            return Thinking.DONE
        end = self._decode(prompt_ids[-TAIL:], skip_special_tokens=False).rstrip()
        return thinking_at(form, end)

    def _form(
        self,
        body: ChatRequest | CompletionRequest,
        thinking: Thinking,
        grammar: Grammar | None = None,
        calls: Calls | None = None,
    ) -> AnswerForm:
        """Return the form of an answer that `grammar`, which the user wrote, binds."""
        reasoning = self._reasoning if isinstance(body, ChatRequest) else None
        if reasoning is None and calls is None:
            return AnswerForm(grammar)
        parts = () if grammar is None else (grammar,)
        if calls is not None or (grammar is not None and thinking is not Thinking.DONE):
            grammar = answer_grammar(calls, grammar, self._added, reasoning, thinking)
        arguments = {}
        if calls is not None and calls.format.tags is not None:
            arguments = {
                function.name: properties(arguments_schema(function), "tools")
                for function in calls.functions
            }
        tool_format = None if calls is None else calls.format
        marks = [] if reasoning is None else [reasoning.opening, reasoning.closing]
        has_specials = calls is not None or any(
            special in mark for special in self._specials for mark in marks
        )
        form = AnswerFormat(tool_format, reasoning, thinking, arguments)
        return AnswerForm(grammar, form, parts, has_specials)

    def _read(self, body: ChatRequest | CompletionRequest, thinking: Thinking) -> AnswerForm:
        stated = body.structured_outputs
        grammar = None if stated is None else stated.grammar()
        if isinstance(body, CompletionRequest):
            return self._form(body, thinking, grammar)
        format_bound = format_grammar(body.response_format)
        if format_bound is not None and grammar is not None:
            expected = OwnWords("null, or text, beside response_format")
            raise InvalidRequest("structured_outputs", "an object", expected)
        grammar = grammar or format_bound
        if not body.tools or body.tool_choice == "none":
            return self._form(body, thinking, grammar)
        return self._with_tools(body, thinking, grammar)

    def _with_tools(
        self, body: ChatRequest, thinking: Thinking, final: Grammar | None
    ) -> AnswerForm:
        assert body.tools is not None
        choice = body.tool_choice or "auto"
        if final is not None and final.kind != "json_schema":
            expected = OwnWords("a JSON schema beside tools")
            raise InvalidRequest(final.field, final.source, expected)
        tools = chosen_tools(body.tools, choice)
        parts = [self._parameters(index, function) for index, function in tools]
        if final is not None and choice == "auto":
            check_schema(json.loads(final.source), final.field)
            parts.append(final)
        calls = Calls(
            self._tool_format,
            [function for _, function in tools],
            required=choice != "auto",
            several=body.several_calls(self._tool_format.several),
        )
        return replace(self._form(body, thinking, final, calls), parts=tuple(parts))

    def _parameters(self, index: int, function: Function) -> Grammar:
        """Return the grammar of a function's arguments alone, which errors quote."""
        field, parameters = f"tools[{index}].function.parameters", function.parameters or {}
        if parameters.get("type", "object") != "object":
            raise InvalidRequest(f"{field}.type", parameters["type"], OwnWords("object"))
        check_schema(parameters, field)
        if self._tool_format.tags is not None:
            properties(parameters, field)
        return schema_grammar(arguments_schema(function), field)


def thinking_at(form: ReasoningFormat, end: str) -> Thinking:
    """Return where a prompt leaves the reasoning, by the text at its end."""
    if form.header:  # the answer opens a channel, unless it continues a message
        return Thinking.MAYBE if end.endswith(form.start) else Thinking.DONE
    if end.endswith(form.opening):
        return Thinking.OPEN
    return Thinking.DONE if end.endswith(form.closing) else Thinking.MAYBE


def asks(body: ChatRequest | CompletionRequest) -> bool:
    """Return whether a request asks for a grammar or tools; most do not."""
    of_chat = isinstance(body, ChatRequest) and (body.response_format is not None or body.tools)
    return body.structured_outputs is not None or bool(of_chat)
