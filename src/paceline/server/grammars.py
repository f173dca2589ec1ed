"""Grammars of requests: read from their fields, and compiled.

Nothing here runs on the event loop or on the thread that encodes prompts: reading fields has a
thread, which takes small bodies first, and the compiler has a thread and a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar import CompiledGrammar, Compiler
from paceline.engine.grammar_bounds import check_schema
from paceline.engine.grammar_trial import TrialBusy, TrialUnavailable
from paceline.engine.smallest_first import SmallestFirst
from paceline.engine.tool_calls import ToolFormat, arguments_schema, calls_grammar, format_of
from paceline.server.errors import ApiError
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.structured import (
    Function,
    NamedTool,
    chosen_tools,
    format_grammar,
    schema_grammar,
)

NAMING = 6.0  # seconds that the search for the part at fault may take
LONGEST_WAIT = 15.0  # seconds; far longer than a grammar takes unless many costly ones wait


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form that an answer must have: a grammar, and the format of calls in it.

    `parts` are the grammars that the user wrote, where `grammar` was made from several.
    """

    grammar: Grammar | None = None
    calls: ToolFormat | None = None
    parts: tuple[Grammar, ...] = ()


class GrammarReader:
    """Reads the grammars that requests for one model ask for, and has them compiled."""

    def __init__(self, tokenizer: Any, compiler: Compiler) -> None:
        self._template: str = tokenizer.chat_template or ""
        self._added = tokenizer.get_added_vocab()
        self._compiler = compiler
        self._thread = SmallestFirst("paceline-grammars")

    async def form(self, body: ChatRequest | CompletionRequest, size: float) -> AnswerForm:
        """Return the form that a body of `size` bytes asks for, with its grammar compiled.

        Raises InvalidRequest, naming the field, for fields that contradict each other or cannot be
        honoured, and ApiError (503) while no grammar can be tried out.
        """
        if not asks(body):
            return AnswerForm()
        read = await asyncio.wrap_future(self._thread.submit(size, lambda: self._read(body)))
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

    def _read(self, body: ChatRequest | CompletionRequest) -> AnswerForm:
        stated = body.structured_outputs
        grammar = None if stated is None else stated.grammar()
        if isinstance(body, CompletionRequest):
            return AnswerForm(grammar)
        format_bound = format_grammar(body.response_format)
        if format_bound is not None and grammar is not None:
            expected = "null, or text, beside response_format"
            raise InvalidRequest("structured_outputs", "an object", expected)
        grammar = grammar or format_bound
        if not body.tools or body.tool_choice == "none":
            return AnswerForm(grammar)
        return self._with_tools(body, grammar)

    def _with_tools(self, body: ChatRequest, final: Grammar | None) -> AnswerForm:
        assert body.tools is not None
        choice = body.tool_choice or "auto"
        if final is not None and final.kind != "json_schema":
            expected = "a JSON schema beside tools"
            raise InvalidRequest(final.field, final.source, expected)
        tool_format = format_of(self._template)
        tools = chosen_tools(body.tools, choice)
        parts = [_parameters(index, function) for index, function in tools]
        if final is not None and choice == "auto":
            check_schema(json.loads(final.source), final.field)
            parts.append(final)
        grammar = calls_grammar(
            tool_format,
            [function for _, function in tools],
            required=choice != "auto",
            several=body.parallel_tool_calls is not False and not isinstance(choice, NamedTool),
            final=final,
            is_token=self._added.__contains__,
        )
        return AnswerForm(grammar, tool_format, tuple(parts))


def asks(body: ChatRequest | CompletionRequest) -> bool:
    """Return whether a request asks for a grammar or tools; most do not."""
    of_chat = isinstance(body, ChatRequest) and (body.response_format is not None or body.tools)
    return body.structured_outputs is not None or bool(of_chat)


def _parameters(index: int, function: Function) -> Grammar:
    field, parameters = f"tools[{index}].function.parameters", function.parameters or {}
    if parameters.get("type", "object") != "object":
        raise InvalidRequest(f"{field}.type", parameters["type"], "object")
    check_schema(parameters, field)
    return schema_grammar(arguments_schema(function), field)
