"""From a request's fields to the grammar that its output is bound to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.core import Grammar, InvalidRequest
from paceline.engine.tool_calls import NO_ARGUMENTS, ToolFormat, calls_grammar, format_of
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.structured import format_grammar, schema_grammar
from paceline.server.tools import NamedTool, chosen_tools


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an answer is bound to: a grammar, and the format of the calls that it may hold."""

    grammar: Grammar | None = None
    calls: ToolFormat | None = None


class GrammarReader:
    """Reads the wishes of requests for one model. `compile` raises InvalidRequest for a grammar
    that does not compile; run it off the event loop."""

    def __init__(self, tokenizer: Any, compile_: Callable[[Grammar], object]) -> None:
        self._template: str = tokenizer.chat_template or ""
        self._added = tokenizer.get_added_vocab()
        self._compile = compile_

    def bounds(self, body: ChatRequest | CompletionRequest) -> Bounds:
        """Raises InvalidRequest, naming the field, for wishes that contradict each other or cannot
        be honoured."""
        grammar = None
        if body.structured_outputs is not None:
            grammar = body.structured_outputs.grammar()
        if isinstance(body, CompletionRequest):
            return self._compiled(Bounds(grammar))
        wanted = format_grammar(body.response_format)
        if wanted is not None and grammar is not None:
            expected = "null, or text, beside response_format"
            raise InvalidRequest("structured_outputs", "an object", expected)
        grammar = grammar or wanted
        if not body.tools or body.tool_choice == "none":
            return self._compiled(Bounds(grammar))
        return self._compiled(self._with_tools(body, grammar))

    # -- inside -----------------------------------------------------------------------------------

    def _with_tools(self, body: ChatRequest, final: Grammar | None) -> Bounds:
        assert body.tools is not None
        choice = body.tool_choice or "auto"
        if final is not None and final.kind != "json_schema":
            expected = "a JSON schema beside tools"
            raise InvalidRequest(final.field, final.source, expected)
        tool_format = format_of(self._template)
        tools = chosen_tools(body.tools, choice)
        for index, function in tools:
            self._check_parameters(f"tools[{index}].function.parameters", function.parameters)
        if final is not None and choice == "auto":
            self._compile(final)
        grammar = calls_grammar(
            tool_format,
            [function for _, function in tools],
            required=choice != "auto",
            several=body.parallel_tool_calls is not False and not isinstance(choice, NamedTool),
            final=final,
            is_token=self._added.__contains__,
        )
        return Bounds(grammar, tool_format)

    def _check_parameters(self, field: str, parameters: dict[str, Any] | None) -> None:
        if parameters is None:
            return
        if parameters.get("type", "object") != "object":
            raise InvalidRequest(f"{field}.type", parameters["type"], "object")
        self._compile(schema_grammar(parameters or NO_ARGUMENTS, field))

    def _compiled(self, bounds: Bounds) -> Bounds:
        if bounds.grammar is not None:
            self._compile(bounds.grammar)
        return bounds
