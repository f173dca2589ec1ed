"""Chat templates: Jinja in a sandbox, with the names and filters that models' templates expect.

The conventions are those of transformers, which models are published for; tests compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Message = Mapping[str, object]
# Names that a message's reasoning goes by; the first is the one that most templates read.
REASONING = ("reasoning_content", "thinking", "reasoning")
END = "\x02END OF THE MESSAGE TO CONTINUE "  # ends in a space: a template that trims is noticed
MOST_TEMPLATES = 8


def render(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    documents: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    **variables: object,
) -> str:
    """Return the text of a conversation. With `continue_final_message` it ends within the last one.

    Raises TemplateError where the template refuses the conversation, TypeError for values that are
    no JSON, and ValueError for a last message that cannot be continued.
    """
    if not messages:
        raise ValueError("no messages: a conversation has at least one")
    if continue_final_message and add_generation_prompt:
        raise ValueError("continue_final_message and add_generation_prompt exclude each other")
    chat = [_message(message) for message in messages]
    final = ""
    if continue_final_message:
        final = _mark_end(chat[-1])
    text = compiled(template).render(
        messages=chat,
        tools=_plain(tools),
        documents=_plain(documents),
        add_generation_prompt=add_generation_prompt,
        **{name: _plain(value) for name, value in variables.items()},
    )
    return _until_mark(text, final) if continue_final_message else text


@lru_cache(MOST_TEMPLATES)
def compiled(template: str) -> Template:
    """Return the compiled template. Raises TemplateError for bad syntax."""
    return _environment().from_string(template)


def variables_of(template: str) -> set[str]:
    """Return the variables that a chat template reads, those of every conversation too; none where
    it is no template, which the first conversation says."""
    environment = _environment()
    try:
        return find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError:
        return set()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": lambda *values, **named: dict(*values, **named),
        "namespace": _GuardedNamespace,
    }
    return environment


def _message(message: Message) -> dict[str, Any]:
    """Return a copy without null fields, and with its reasoning under the names templates read."""
    if not isinstance(message, Mapping):
        raise TypeError(f"a message is an object, not {type(message).__name__}")
    chat = {key: _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((chat[name] for name in REASONING if name in chat), None)
    if reasoning is not None:
        chat = {"thinking": reasoning, **chat, "reasoning_content": reasoning}
    return chat


def _plain(value: object) -> Any:
    """Return a copy of plain JSON types: no object's methods are within a template's reach."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _mark_end(message: dict[str, Any]) -> str:
    """Append END to the message's text, and return what the text was."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + END
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text = str(part["text"])
            part["text"] = text + END
            return text
    raise ValueError("the last message has no text to continue")


def _until_mark(text: str, final: str) -> str:
    place = text.rfind(END.strip())
    if place < 0 or final.strip() not in text:
        raise ValueError("the chat template does not show the last message as it is")
    kept = text.startswith(END, place)  # with its space: the template trims nothing
    return text[:place] if kept else text[:place].rstrip()


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as models have seen it in training; Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


class _GuardedNamespace(Namespace):
    """Refuses names that begin with an underscore, which Python's own attributes do."""

    def __init__(*given: Any, **values: Any) -> None:  # `self` may be a value's name
        this, *positional = given
        attributes = dict(*positional, **values)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(this, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not set {name!r} of a namespace")


class _GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is shown as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
